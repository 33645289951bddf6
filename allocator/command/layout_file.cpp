// Locks: none.
#include "allocator/command/layout_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "allocator/runtime/config.h"
#include "allocator/simulate/csv_file.h"

namespace firn::command {
namespace {

const std::vector<std::string_view> columns = {"id", "lower", "upper", "size"};
constexpr size_t id_bytes_max = 256;

Result<void> read_row(const simulate::CsvFile& file, layout::Buffer& buffer) {
  if (file.field(0).empty()) return file.wrong("the id is empty");
  if (file.field(0).size() > id_bytes_max)
    return file.wrong(fmt::format("the id is longer than {} bytes", id_bytes_max));
  constexpr uint64_t time_max = std::numeric_limits<uint64_t>::max();
  Result<uint64_t> lower = simulate::whole_number(file.field(1), time_max);
  if (!lower) return file.wrong("lower: " + lower.error().text);
  Result<uint64_t> upper = simulate::whole_number(file.field(2), time_max);
  if (!upper) return file.wrong("upper: " + upper.error().text);
  if (*lower >= *upper)
    return file.wrong(fmt::format("lower {} is not below upper {}", *lower, *upper));
  Result<uint64_t> size = simulate::positive_number(file.field(3), layout::size_max);
  if (!size) return file.wrong("size: " + size.error().text);
  buffer = {*lower, *upper, *size};
  return {};
}

/// As a field of a CSV file.
std::string field_of(std::string_view text) {
  if (text.find_first_of(",\"") == std::string_view::npos) return std::string(text);
  std::string field = "\"";
  for (const char c : text) field += c == '"' ? std::string("\"\"") : std::string(1, c);
  return field + '"';
}

}  // namespace

Result<LayoutFile> LayoutFile::read(const std::string& path) {
  Result<simulate::CsvFile> file = simulate::CsvFile::open(path, columns);
  if (!file) return file.error();
  LayoutFile result;
  result.path_ = path;
  for (const std::string& name : file->names()) {
    const auto known = std::find(columns.begin(), columns.end(), name);
    if (known == columns.end())
      return file->wrong(fmt::format("unknown column {}; the columns are id, lower, upper, size",
                                     quote_word(name)));
    result.order_.push_back(static_cast<size_t>(known - columns.begin()));
  }
  for (;;) {
    Result<bool> more = file->next();
    if (!more) return more.error();
    if (!*more) break;
    if (result.buffers_.size() == buffers_most)
      return file->wrong(fmt::format("more than {} buffers", buffers_most));
    layout::Buffer buffer;
    if (Result<void> done = read_row(*file, buffer); !done) return done.error();
    result.buffers_.push_back(buffer);
    result.ids_ += file->field(0);
    result.id_ends_.push_back(result.ids_.size());
  }
  if (result.buffers_.empty()) return file->wrong("no buffers");
  if (Result<void> done = result.check_ids(); !done) return done.error();
  if (Result<void> done = result.examine(); !done) return done.error();
  return result;
}

std::string_view LayoutFile::id(size_t buffer) const {
  const size_t begin = buffer == 0 ? 0 : id_ends_[buffer - 1];
  return std::string_view(ids_).substr(begin, id_ends_[buffer] - begin);
}

std::string LayoutFile::file_and_line(size_t buffer) const {
  return fmt::format("{}:{}", path_, buffer + 2);  // a line each, below the header
}

Error LayoutFile::wrong(size_t buffer, const std::string& text) const {
  return invalid(file_and_line(buffer) + ": " + text);
}

Result<void> LayoutFile::check_ids() const {
  std::vector<std::pair<size_t, uint32_t>> hashes(buffers_.size());
  for (size_t i = 0; i < hashes.size(); ++i)
    hashes[i] = {std::hash<std::string_view>()(id(i)), static_cast<uint32_t>(i)};
  std::sort(hashes.begin(), hashes.end(), [&](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first < b.first;
    const int compared = id(a.second).compare(id(b.second));
    return compared != 0 ? compared < 0 : a.second < b.second;
  });
  size_t again = buffers_.size(), first = 0;
  for (size_t at = 1; at < hashes.size(); ++at) {
    const auto [hash, buffer] = hashes[at];
    if (buffer >= again || hash != hashes[at - 1].first || id(buffer) != id(hashes[at - 1].second))
      continue;
    again = buffer;
    first = hashes[at - 1].second;
  }
  if (again == buffers_.size()) return {};
  return wrong(again, fmt::format("id {} repeats line {}", quote_word(id(again)), first + 2));
}

Result<void> LayoutFile::examine() {
  const layout::Examined examined = layout::examine(buffers_);
  load_ = examined.load;
  if (!examined.trouble) return {};
  using Kind = layout::Trouble::Kind;
  if (examined.trouble->kind == Kind::load)
    return wrong(examined.trouble->buffer,
                 fmt::format("more than {} bytes are alive at time {}, too many for a layout",
                             layout::load_max_of_many,
                             buffers_[examined.trouble->buffer].lower));
  return wrong(examined.trouble->buffer, "cannot be laid out");  // not met: rows were checked
}

std::string LayoutFile::with_offsets(std::span<const uint64_t> offsets) const {
  std::string text;
  for (size_t column : order_) fmt::format_to(std::back_inserter(text), "{},", columns[column]);
  text += "offset\n";
  for (size_t i = 0; i < buffers_.size(); ++i) {
    for (size_t column : order_) {
      const layout::Buffer& buffer = buffers_[i];
      if (column == 0)
        text += field_of(id(i));
      else
        fmt::format_to(std::back_inserter(text), "{}",
                       column == 1   ? buffer.lower
                       : column == 2 ? buffer.upper
                                     : buffer.size);
      text += ',';
    }
    fmt::format_to(std::back_inserter(text), "{}\n", offsets[i]);
  }
  return text;
}

}  // namespace firn::command
