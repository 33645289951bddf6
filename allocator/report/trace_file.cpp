#include "allocator/report/trace_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "allocator/base/numbers.h"
#include "allocator/base/sizes.h"

namespace firn::report {

namespace {
constexpr std::string_view header = "time_ns,event,device,stream,block,bytes,detail";

Error unreadable(const std::string& path) {
  return make_error(Code::io, errno, fmt::format("{}: {}", path, std::strerror(errno)));
}

template <class Number>
bool take_number(std::string_view word, Number& to) {
  const std::optional<Number> number = as_number<Number>(word);
  if (number) to = *number;
  return number.has_value();
}
}  // namespace

Result<TraceFile> TraceFile::open(const std::string& path) {
  TraceFile file(path);
  if (Result<void> mapped = file.map(); !mapped) return mapped.error();
  const std::string_view text(file.data_, file.bytes_);
  if (text.substr(0, text.find('\n')) != header)
    return file.wrong("not a trace of firn run --trace, whose first line is \"" +
                      std::string(header) + "\"");
  const size_t last = text.rfind('\n');
  file.cut_ = last != text.size() - 1;
  file.bytes_ = last == std::string_view::npos ? 0 : last + 1;
  file.at_ = std::min(header.size() + 1, file.bytes_);
  file.line_ = 1;
  return file;
}

Result<void> TraceFile::map() {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return unreadable(path_);
  struct stat found{};
  Result<void> done;
  if (::fstat(fd, &found) != 0)
    done = unreadable(path_);
  else if (!S_ISREG(found.st_mode))
    done = make_error(Code::io, 0, path_ + ": not a regular file");
  else if (found.st_size == 0)
    done = make_error(Code::io, 0, path_ + ": is empty");
  if (done) {
    bytes_ = mapped_ = static_cast<size_t>(found.st_size);
    void* at = ::mmap(nullptr, mapped_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED)
      done = unreadable(path_);
    else
      data_ = static_cast<const char*>(at);
  }
  ::close(fd);
  return done;
}

TraceFile::TraceFile(TraceFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      mapped_(other.mapped_),
      bytes_(other.bytes_),
      at_(other.at_),
      line_(other.line_),
      cut_(other.cut_) {}

TraceFile::~TraceFile() {
  if (data_) ::munmap(const_cast<char*>(data_), mapped_);
}

Error TraceFile::wrong(const std::string& text) const {
  return invalid(fmt::format("{}:{}: {}", path_, line_ ? line_ : 1, text));
}

Result<bool> TraceFile::next(Row& row) {
  if (at_ >= bytes_) return false;
  const char* begin = data_ + at_;
  const auto* end = static_cast<const char*>(std::memchr(begin, '\n', bytes_ - at_));
  at_ = static_cast<size_t>(end - data_) + 1;
  ++line_;
  if (Result<void> done = split({begin, static_cast<size_t>(end - begin)}, row); !done)
    return done.error();
  return true;
}

Result<void> TraceFile::split(std::string_view line, Row& row) {
  std::string_view fields[6];
  for (std::string_view& field : fields) {
    const size_t comma = line.find(',');
    if (comma == std::string_view::npos) return wrong("has fewer than 7 fields");
    field = line.substr(0, comma);
    line.remove_prefix(comma + 1);
  }
  row.event = fields[1];
  if (!take_number(fields[0], row.time_ns) || !take_number(fields[2], row.device) ||
      !take_number(fields[3], row.stream) || !take_number(fields[4], row.block) ||
      !take_number(fields[5], row.bytes))
    return wrong("a number is missing in the row of " + quote_word(fields[1]));
  row.detail = line;
  if (!line.starts_with('"')) return {};
  unquoted_.clear();
  for (size_t i = 1; i < line.size(); ++i) {
    if (line[i] != '"')
      unquoted_ += line[i];
    else if (i + 1 < line.size() && line[i + 1] == '"')
      unquoted_ += line[++i];
    else if (i + 1 != line.size())
      return wrong("a quote ends within a field");
  }
  row.detail = unquoted_;
  return {};
}

std::string_view text_of(std::string_view detail, std::string_view name) {
  while (!detail.empty()) {
    const size_t end = std::min(detail.find(';'), detail.size());
    const std::string_view word = detail.substr(0, end);
    if (word.size() > name.size() && word.starts_with(name) && word[name.size()] == '=')
      // The command is the last, and may hold anything.
      return name == "command" ? detail.substr(name.size() + 1) : word.substr(name.size() + 1);
    detail.remove_prefix(std::min(end + 1, detail.size()));
  }
  return {};
}

uint64_t value_of(std::string_view detail, std::string_view name, uint64_t otherwise) {
  uint64_t value = 0;
  return take_number(text_of(detail, name), value) ? value : otherwise;
}

}  // namespace firn::report
