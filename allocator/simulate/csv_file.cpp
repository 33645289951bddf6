#include "allocator/simulate/csv_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "allocator/runtime/config.h"

#ifndef FIRN_CSV_READ_BYTES  // a fuzzer sets it low: lines that straddle reads
#define FIRN_CSV_READ_BYTES 4u << 20
#endif

namespace firn::simulate {

namespace {
constexpr size_t read_bytes = FIRN_CSV_READ_BYTES;
constexpr size_t line_bytes_max = 64u << 20;
}  // namespace

Error CsvFile::wrong_at(uint64_t line, const std::string& text) const {
  return invalid(fmt::format("{}:{}: {}", path_, line, text));
}

CsvFile::CsvFile(CsvFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)),
      file_bytes_(other.file_bytes_), line_(other.line_), buffer_(std::move(other.buffer_)),
      at_(other.at_), end_(other.end_), all_read_(other.all_read_),
      names_(std::move(other.names_)), columns_(std::move(other.columns_)) {}
// fields_ point into the header's line, and are dropped

CsvFile::~CsvFile() {
  if (fd_ >= 0) ::close(fd_);
}

Result<CsvFile> CsvFile::open(const std::string& path, std::vector<std::string_view> columns) {
  CsvFile file;
  file.path_ = path;
  // A pipe without a writer must not block the open.
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat about {};
  if (file.fd_ < 0 || ::fstat(file.fd_, &about) != 0)
    return make_error(Code::io, errno, fmt::format("{}: {}", path, std::strerror(errno)));
  if (!S_ISREG(about.st_mode))
    return invalid(path + ": is not a regular file");
  file.file_bytes_ = static_cast<uint64_t>(about.st_size);
  file.buffer_.resize(read_bytes);
  std::string_view header;
  Result<bool> more = file.next_line(header);
  if (!more) return more.error();
  if (!*more) return invalid(path + ": is empty");
  if (header.starts_with("\xef\xbb\xbf")) header.remove_prefix(3);
  if (Result<void> done = file.split(header); !done) return done.error();
  for (std::string_view column : columns) {
    const auto found = std::find(file.fields_.begin(), file.fields_.end(), column);
    if (found == file.fields_.end())
      return file.wrong(fmt::format("no column \"{}\" in the header", column));
    if (std::find(found + 1, file.fields_.end(), column) != file.fields_.end())
      return file.wrong(fmt::format("column \"{}\" appears twice in the header", column));
    file.columns_.push_back(static_cast<size_t>(found - file.fields_.begin()));
  }
  file.names_.assign(file.fields_.begin(), file.fields_.end());
  return file;
}

Result<bool> CsvFile::also(std::string_view column) {
  const auto found = std::find(names_.begin(), names_.end(), column);
  if (found == names_.end()) return false;
  if (std::find(found + 1, names_.end(), column) != names_.end())
    return wrong(fmt::format("column \"{}\" appears twice in the header", column));
  columns_.push_back(static_cast<size_t>(found - names_.begin()));
  return true;
}

Result<bool> CsvFile::next_line(std::string_view& line) {
  for (size_t searched = at_;;) {
    const char* begin = buffer_.data() + at_;
    const void* found = std::memchr(buffer_.data() + searched, '\n', end_ - searched);
    if (found || (all_read_ && at_ < end_)) {
      const char* end = found ? static_cast<const char*>(found) : buffer_.data() + end_;
      at_ = static_cast<size_t>(end - buffer_.data()) + (found ? 1 : 0);
      line = {begin, static_cast<size_t>(end - begin)};
      if (line.ends_with('\r')) line.remove_suffix(1);
      ++line_;
      return true;
    }
    if (all_read_) return false;
    if (end_ - at_ > line_bytes_max)
      return wrong_at(line_ + 1,
                      fmt::format("the line is longer than {} MiB", line_bytes_max >> 20));
    std::memmove(buffer_.data(), begin, end_ - at_);
    end_ -= at_;
    at_ = 0;
    searched = end_;
    if (end_ + read_bytes > buffer_.size()) buffer_.resize(end_ + read_bytes);
    const ssize_t got = ::read(fd_, buffer_.data() + end_, read_bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return make_error(Code::io, errno, fmt::format("{}: {}", path_, std::strerror(errno)));
    all_read_ = got == 0;
    end_ += static_cast<size_t>(got);
  }
}

Result<void> CsvFile::split(std::string_view line) {
  fields_.clear();
  if (line.find('"') != std::string_view::npos) return split_quoted(line);
  for (size_t begin = 0;;) {
    const size_t comma = std::min(line.find(',', begin), line.size());
    fields_.push_back(line.substr(begin, comma - begin));
    if (comma == line.size()) return {};
    begin = comma + 1;
  }
}

Result<void> CsvFile::split_quoted(std::string_view line) {
  unquoted_.clear();
  unquoted_.reserve(line.size());  // views into it stay valid
  for (size_t at = 0;;) {
    const size_t begin = unquoted_.size();
    if (at < line.size() && line[at] == '"') {
      for (++at;; ++at) {
        if (at >= line.size()) return wrong("a quote is not closed");
        if (line[at] == '"' && (at + 1 >= line.size() || line[at + 1] != '"')) break;
        if (line[at] == '"') ++at;  // two are one
        unquoted_ += line[at];
      }
      ++at;
      if (at < line.size() && line[at] != ',') return wrong("text after a closing quote");
    } else {
      for (; at < line.size() && line[at] != ','; ++at) unquoted_ += line[at];
    }
    fields_.push_back(std::string_view(unquoted_).substr(begin));
    if (at >= line.size()) return {};
    ++at;
  }
}

Result<bool> CsvFile::next() {
  std::string_view line;
  Result<bool> more = next_line(line);
  if (!more || !*more) return more;
  if (Result<void> done = split(line); !done) return done.error();
  if (fields_.size() != names_.size())
    return wrong(fmt::format("{} fields, but the header has {}", fields_.size(), names_.size()));
  return true;
}

Result<uint64_t> whole_number(std::string_view word, uint64_t most) {
  const auto trouble = [&](const char* what) {
    return invalid(quote_word(word) + " " + what);
  };
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (word.starts_with('-')) return trouble("is negative");
  if (word.empty() || end != word.data() + word.size()) return trouble("is not a whole number");
  if (error == std::errc::result_out_of_range || value > most) return trouble("is too large");
  return value;
}

Result<uint64_t> positive_number(std::string_view word, uint64_t most) {
  Result<uint64_t> value = whole_number(word, most);
  if (value && *value == 0)
    return invalid(quote_word(word) + " is zero");
  return value;
}

}  // namespace firn::simulate
