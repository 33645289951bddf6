// A CSV file with a header, read line by line: fields separated by commas, optionally quoted; every
// line has as many fields as the header. Errors name file and line.
// Owns: the descriptor and one buffer. Locks: none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "firn/result.h"

namespace firn::simulate {

class CsvFile {
 public:
  /// Opens `path` (a regular file) and reads its header. `columns` are required; others are
  /// allowed.
  static Result<CsvFile> open(const std::string& path, std::vector<std::string_view> columns);
  CsvFile(CsvFile&& other) noexcept;
  CsvFile& operator=(CsvFile&&) = delete;
  ~CsvFile();

  /// One more column, which the header may lack: false. Before next().
  Result<bool> also(std::string_view column);
  /// The next line; false at the end of the file.
  Result<bool> next();
  /// The field of columns[index] in the present line. Valid until next().
  std::string_view field(size_t index) const { return fields_[columns_[index]]; }
  /// All of the header's columns, in its order.
  const std::vector<std::string>& names() const { return names_; }
  uint64_t line() const { return line_; }
  uint64_t file_bytes() const { return file_bytes_; }
  /// An error that begins with "FILE:LINE: ", of the present line or of `line`.
  Error wrong(const std::string& text) const { return wrong_at(line_, text); }
  Error wrong_at(uint64_t line, const std::string& text) const;
  const std::string& path() const { return path_; }

 private:
  CsvFile() = default;
  /// The next line without its end; false at the end of the file.
  Result<bool> next_line(std::string_view& line);
  Result<void> split(std::string_view line);
  Result<void> split_quoted(std::string_view line);

  std::string path_;
  int fd_ = -1;
  uint64_t file_bytes_ = 0, line_ = 0;
  std::string buffer_;           // [at_, end_) is read and not yet used
  size_t at_ = 0, end_ = 0;
  bool all_read_ = false;
  std::vector<std::string_view> fields_;
  std::string unquoted_;         // storage for the quoted fields of the present line
  std::vector<std::string> names_;
  std::vector<size_t> columns_;  // indices among the fields
};

/// A whole number up to `most`, in plain digits. The error has no file and line.
Result<uint64_t> whole_number(std::string_view word, uint64_t most);
/// The same, from 1 on.
Result<uint64_t> positive_number(std::string_view word, uint64_t most);

}  // namespace firn::simulate
