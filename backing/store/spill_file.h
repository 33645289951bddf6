// The spill file of one directory: opened without a name, private, direct, and preallocated in
// steps. Owns its descriptors. Locks: none of its own; grow() is called by one thread at a time.
#pragma once

#include <cstdint>
#include <string>

#include "backing/store/file_calls.h"
#include "firn/descriptor.h"
#include "firn/result.h"

namespace firn {

class SpillFile {
 public:
  /// Checks the directory (who owns it, who may write to it, what file system it is), opens the
  /// file and decides by a trial write and read whether direct I/O works. Errors begin with
  /// "firn_dir: DIR".
  static Result<SpillFile> open(const std::string& dir, bool allow_tmpfs, FileCalls& calls);

  /// Makes the file `step` bytes longer, by less, but at least `need`, where the disk has little
  /// room; the answer is by how much. On failure the file is as long as before. lost: see ours().
  Result<uint64_t> grow(uint64_t step, uint64_t need, FileCalls& calls);

  const std::string& dir() const { return dir_; }
  int direct_fd() const { return direct_.get(); }
  int buffered_fd() const { return buffered_ ? buffered_.get() : direct_.get(); }
  /// Are the numbers above still this file? The program may have closed them, and have opened files
  /// of its own that got them: never write before asking.
  bool ours(bool buffered) const;
  /// The answer where they are not.
  Error closed_by_program() const;
  uint64_t bytes() const { return bytes_; }
  /// Why not better, in words; empty when all is well.
  const std::string& why() const { return why_; }

 private:
  SpillFile() = default;
  int extend(uint64_t bytes, FileCalls& calls);
  uint64_t fitting(uint64_t step, uint64_t need) const;

  std::string dir_;
  Descriptor direct_, buffered_;
  uint64_t bytes_ = 0;  // length of the file, all of it preallocated
  std::string why_;
};

/// "ext4", "tmpfs", ...; "0x..." for an unknown magic number.
std::string filesystem_name(int64_t magic);

/// "No space left on device" for ENOSPC.
std::string errno_words(int error);

}  // namespace firn
