// Firn's own traces as `firn report` reads them. An input: the file.
//
// Beyond no crash: an error names the file and one of its lines; every whole line is a row or an
// error; a block's life and its stretches are in order and within the trace; no number leads out of
// its table; no two blocks that are drawn overlap; nothing that a trace says becomes a tag in the
// page.
#include "allocator/report/trace_file.h"

#include <set>

#include "allocator/report/lives.h"
#include "allocator/report/page.h"
#include "allocator/report/address_axis.h"
#include "tests/fuzz/fuzz.h"

using namespace firn;
using namespace firn::report;

namespace {

fuzz::Folder& folder() {
  static fuzz::Folder made;
  return made;
}

void check_axis(const DeviceLives& device) {
  constexpr uint64_t unit = 512;
  const AddressAxis axis(device.lives, unit);
  std::map<uint64_t, const Life*> by_address;
  for (const Life& life : device.lives) {
    FUZZ_CHECK(axis.position(life.address) <= axis.bytes(), "a position beyond the axis");
    by_address[life.address] = &life;
  }
  // In the order of addresses, and two blocks apart are apart.
  const Life* before = nullptr;
  for (const auto& [address, life] : by_address) {
    if (before && before->address + before->bytes <= address &&
        before->bytes <= UINT64_MAX - before->address)
      FUZZ_CHECK(axis.position(address) >= axis.position(before->address) + before->bytes,
                 "two blocks overlap");
    before = life;
  }
}

void check_device(const Lives& lives, const DeviceLives& device) {
  const auto word = [&](uint32_t number) { return number == none || number < lives.words.size(); };
  for (const Life& life : device.lives) {
    FUZZ_CHECK(life.born_ns <= life.died_ns && life.died_ns <= lives.duration_ns, "a life");
    FUZZ_CHECK(word(life.pin_reason) && word(life.maker), "a life's words");
  }
  uint64_t before = 0;
  for (const Stretch& stretch : device.stretches) {
    FUZZ_CHECK(stretch.life < device.lives.size(), "a stretch of no life");
    const Life& life = device.lives[stretch.life];
    FUZZ_CHECK(stretch.begin_ns <= stretch.end_ns && stretch.begin_ns >= life.born_ns &&
                   stretch.end_ns <= life.died_ns,
               "a stretch outside its life");
    FUZZ_CHECK(stretch.end_ns >= before, "stretches out of order");
    before = stretch.end_ns;
  }
  for (const Touch& touch : device.touches)
    FUZZ_CHECK(touch.life < device.lives.size() && touch.at_ns <= lives.duration_ns, "a touch");
  for (const Stall& stall : device.stalls)
    FUZZ_CHECK(stall.ns <= stall.end_ns &&
                   (stall.life == none || stall.life < device.lives.size()) && word(stall.name) &&
                   word(stall.site),
               "a stall");
  for (const Pinned& pinned : device.pinned) FUZZ_CHECK(word(pinned.reason), "a pin");
  check_axis(device);
}

size_t tags(const std::string& page) {
  return static_cast<size_t>(std::count(page.begin(), page.end(), '<'));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const nlohmann::ordered_json budgets = {{"why", "not asked"}};
  static const size_t tags_of_an_empty_page = tags(make_page(Lives{}, "t", budgets));
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::string path = folder().write("t.csv", text);
  Result<TraceFile> file = TraceFile::open(path);
  if (!file) {
    fuzz::check_file_error(file.error().text, {{path, text}});
    return 0;
  }
  Result<Lives> lives = Lives::read(*file);
  if (!lives) {
    fuzz::check_file_error(lives.error().text, {{path, text}});
    return 0;
  }
  const auto ends = static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n'));
  FUZZ_CHECK(lives->rows + 1 == ends, "%llu rows of %llu lines",
             static_cast<unsigned long long>(lives->rows), static_cast<unsigned long long>(ends));
  FUZZ_CHECK(lives->cut == !text.ends_with('\n'), "the last line's end");
  FUZZ_CHECK(!lives->devices.empty(), "no device");
  for (const auto& [number, device] : lives->devices) check_device(*lives, device);
  if (size % 4 != 0) return 0;  // (the page takes ten times as long as all else)
  const std::string page = make_page(*lives, "t", budgets);
  FUZZ_CHECK(tags(page) == tags_of_an_empty_page, "a tag in the page came from the trace");
  return 0;
}
