// A file that Firn writes from front to back beside the program: traces, statistics, recordings.
// They hold command lines and lines of programs, so they are the user's alone; and they may lie in
// folders that others write to, so no symbolic link is followed. (Figures for monitoring name
// directories at most, and others read them.)
//
// Owns: the descriptor, out of the program's way (descriptor.h); nothing is buffered here, so that
// a forked child has nothing to write a second time. Locks: none, one thread at a time.
#pragma once

#include <string>
#include <string_view>

#include "firn/descriptor.h"
#include "firn/result.h"

namespace firn {

class OutputFile {
 public:
  enum class If : unsigned char { empties, exists_fails };
  enum class Readers : unsigned char { owner, all };  // as far as the umask lets
  OutputFile() = default;
  /// Creates `path`, or empties what is there. Mode 0600 where it is new (0644 for Readers::all).
  /// Code::io names the path: a symbolic link (other than /dev/stdout and its like), a missing
  /// folder, a pipe without a reader, ...
  static Result<OutputFile> create(const std::string& path, If there = If::empties,
                                   Readers readers = Readers::owner);

  /// All of it, or Code::io. The program may have closed the descriptor, though it did not open it,
  /// and reused its number: that is an error, and nothing is written.
  Result<void> write(std::string_view text);
  /// Waits until it is on the disk, and closes it. Code::io where that failed.
  Result<void> close();
  explicit operator bool() const { return static_cast<bool>(file_); }

 private:
  Descriptor file_;
  std::string path_;
};

/// `text` becomes the file `path`, whole or not at all: it is written beside it and renamed.
Result<void> replace_file(const std::string& path, std::string_view text,
                          OutputFile::Readers readers = OutputFile::Readers::owner);

}  // namespace firn
