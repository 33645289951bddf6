// The spill file of one directory: opened without a name, private, direct, and preallocated in
// steps; and how a thread reaches it. Owns its descriptors. Locks: none of its own; grow() is
// called by one thread at a time, a ThreadFile is one thread's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "backing/store/file_calls.h"
#include "firn/descriptor.h"
#include "firn/result.h"

namespace firn {

class ThreadFile;

class SpillFile {
 public:
  /// Checks the directory (its owner, its writers, its file system), opens the file and decides by
  /// a trial write and read whether direct I/O works. Errors begin with "firn_dir: DIR".
  static Result<SpillFile> open(const std::string& dir, bool allow_tmpfs, FileCalls& calls);

  /// Makes the file `step` bytes longer, or less, but at least `need`, where the disk has little
  /// room; returns by how much. On failure the file is as long as before. lost: see ours().
  Result<uint64_t> grow(ThreadFile& at, uint64_t step, uint64_t need, FileCalls& calls);

  const std::string& dir() const { return dir_; }
  int direct_fd() const { return direct_.get(); }
  int buffered_fd() const { return buffered_ ? buffered_.get() : direct_.get(); }
  /// Are the numbers above still this file? The program may have closed them, and have opened files
  /// of its own that got them: never write before asking.
  bool ours(bool buffered) const;
  /// The error where they are not.
  Error closed_by_program() const;
  uint64_t bytes() const { return bytes_; }
  /// Why not better, in words; empty when all is well.
  const std::string& why() const { return why_; }

 private:
  friend class ThreadFile;
  SpillFile() = default;
  int extend(ThreadFile& at, uint64_t bytes, FileCalls& calls);
  uint64_t fitting(int fd, uint64_t step, uint64_t need) const;

  std::string dir_;
  Descriptor direct_, buffered_;
  int direct_flags_ = 0;   // as it was opened
  int64_t born_ns_ = 0;    // 0: not known. An inode's number comes again, in another file
  uint64_t bytes_ = 0;  // length of the file, all of it preallocated
  std::string why_;
};

/// A spill file as one thread reaches it: by descriptors in a table of that thread's own, or, where
/// there is no such table, by the process's, which the program may close.
class ThreadFile {
 public:
  /// By the process's, at first. `file` outlives this.
  explicit ThreadFile(const SpillFile& file) : file_(&file) {}
  ThreadFile(ThreadFile&& other) noexcept
      : file_(other.file_),
        in_own_table_(other.in_own_table_),
        direct_(std::exchange(other.direct_, -1)),
        buffered_(std::exchange(other.buffered_, -1)) {}
  ThreadFile& operator=(ThreadFile&&) = delete;
  /// By the same thread. The room of a closed file is free when this has ended.
  ~ThreadFile();

  /// Gives the calling thread a table of its own with `files`, opened anew, and nothing else; or
  /// takes that of the thread that started it. Returns why there is none, in words; then all is as
  /// before.
  static std::string take_table(std::span<ThreadFile> files, FileCalls& calls);

  const SpillFile& file() const { return *file_; }
  /// In a table of the thread's own. False also where the program had closed the file before.
  bool own() const { return direct_ >= 0; }
  /// Is it for a thread with a table of its own, this one or one that shares it?
  bool in_own_table() const { return in_own_table_; }
  int fd(bool buffered) const;
  /// ok: fd() is the file. The process's numbers are checked each time; else the file is opened if
  /// it could not be before. lost: the program has closed it; io.
  Error reach(bool buffered);
  /// The same, without words: 0, or an errno; EBADF where the program has closed it.
  int reach_errno(bool buffered);
  /// For a thread that this one is about to start, which shares its table; not own() where there
  /// is no number.
  ThreadFile copy() const;

 private:
  int open_anew();

  const SpillFile* file_;
  bool in_own_table_ = false;
  int direct_ = -1, buffered_ = -1;
};

/// "ext4", "tmpfs", ...; "0x..." for an unknown magic number.
std::string filesystem_name(int64_t magic);

/// "No space left on device" for ENOSPC.
std::string errno_words(int error);

}  // namespace firn
