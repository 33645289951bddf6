// The rows of a trace (allocator/record/trace.h), one after the other. If its process was killed
// while it wrote, the last line may lack its end: it is left out, and cut() says so.
// Owns: a mapping of the file. Locks: none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "firn/result.h"

namespace firn::report {

struct Row {
  uint64_t time_ns = 0;
  std::string_view event;
  uint32_t device = 0, stream = 0;
  uint64_t block = 0, bytes = 0;
  std::string_view detail;  // of next()'s row only
};

class TraceFile {
 public:
  /// Errors: it cannot be read, is empty, or lacks a trace's first line.
  static Result<TraceFile> open(const std::string& path);
  TraceFile(TraceFile&& other) noexcept;
  TraceFile& operator=(TraceFile&&) = delete;
  ~TraceFile();

  /// The next row; false at the end. Errors begin with "FILE:LINE: ".
  Result<bool> next(Row& row);
  /// The last line lacked its end.
  bool cut() const { return cut_; }
  const std::string& path() const { return path_; }

 private:
  explicit TraceFile(std::string path) : path_(std::move(path)) {}
  Result<void> map();
  Result<void> split(std::string_view line, Row& row);
  Error wrong(const std::string& text) const;

  std::string path_;
  const char* data_ = nullptr;
  size_t mapped_ = 0;           // bytes of the file
  size_t bytes_ = 0, at_ = 0;   // bytes up to the last line's end; where the next row begins
  uint64_t line_ = 0;
  bool cut_ = false;
  std::string unquoted_;
};

/// The value of "NAME=N" among the words of `detail`, which ';' separates; `otherwise` without one.
uint64_t value_of(std::string_view detail, std::string_view name, uint64_t otherwise = 0);
/// The same as text.
std::string_view text_of(std::string_view detail, std::string_view name);

}  // namespace firn::report
