// Instances of `firn layout`. An input: the CSV file.
//
// Beyond no crash: an error names the file and one of its lines; no two buffers that live at once
// overlap; the height is what the offsets say, the load is the one that is counted here, and no
// layout is lower; the answer is read back as what was given.
#include "allocator/command/layout_file.h"

#include <vector>

#include "allocator/simulate/csv_file.h"
#include "tests/fuzz/fuzz.h"

using namespace firn;

namespace {

constexpr size_t buffers_solved = 150;  // more: only read

fuzz::Folder& folder() {
  static fuzz::Folder made;
  return made;
}

fuzz::Wide load_of(std::span<const layout::Buffer> buffers) {
  fuzz::Wide most = 0;
  for (const layout::Buffer& at : buffers) {
    fuzz::Wide alive = 0;
    for (const layout::Buffer& each : buffers)
      if (each.lower <= at.lower && at.lower < each.upper) alive += each.size;
    most = std::max(most, alive);
  }
  return most;
}

void check_layout(std::span<const layout::Buffer> buffers, const layout::Layout& solved) {
  FUZZ_CHECK(solved.offsets.size() == buffers.size(), "offsets");
  fuzz::Wide height = 0;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const fuzz::Wide end = fuzz::Wide{solved.offsets[i]} + buffers[i].size;
    height = std::max(height, end);
    for (size_t j = 0; j < i; ++j) {
      const bool at_once =
          buffers[i].lower < buffers[j].upper && buffers[j].lower < buffers[i].upper;
      const bool apart = end <= solved.offsets[j] ||
                         fuzz::Wide{solved.offsets[j]} + buffers[j].size <= solved.offsets[i];
      FUZZ_CHECK(!at_once || apart, "buffers %zu and %zu overlap", j, i);
    }
  }
  FUZZ_CHECK(height == solved.height, "the height");
  FUZZ_CHECK(load_of(buffers) == solved.load, "the load");
  FUZZ_CHECK(solved.height >= solved.load, "lower than the load");
}

void check_written(const command::LayoutFile& file, const layout::Layout& solved) {
  const std::string path = folder().write("out.csv", file.with_offsets(solved.offsets));
  Result<simulate::CsvFile> again =
      simulate::CsvFile::open(path, {"id", "lower", "upper", "size", "offset"});
  FUZZ_CHECK(again, "%s", again.error().text.c_str());
  for (size_t i = 0; i < file.buffers().size(); ++i) {
    Result<bool> more = again->next();
    FUZZ_CHECK(more && *more, "row %zu", i);
    const layout::Buffer& buffer = file.buffers()[i];
    FUZZ_CHECK(again->field(0) == file.id(i) && again->field(1) == std::to_string(buffer.lower) &&
                   again->field(2) == std::to_string(buffer.upper) &&
                   again->field(3) == std::to_string(buffer.size) &&
                   again->field(4) == std::to_string(solved.offsets[i]),
               "row %zu", i);
  }
  Result<bool> more = again->next();
  FUZZ_CHECK(more && !*more, "more rows");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::string path = folder().write("in.csv", text);
  Result<command::LayoutFile> file = command::LayoutFile::read(path);
  if (!file) {
    fuzz::check_file_error(file.error().text, {{path, text}});
    return 0;
  }
  if (file->buffers().size() > buffers_solved) return 0;
  FUZZ_CHECK(load_of(file->buffers()) == file->load().bytes, "the load");
  const layout::Options options{.deadline = std::chrono::milliseconds(20), .seed = size, .steps = 4,
                                .threads = 1};
  const layout::Layout solved = layout::solve(file->buffers(), options);
  check_layout(file->buffers(), solved);
  check_written(*file, solved);
  return 0;
}
