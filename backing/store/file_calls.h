// The thin seam to the system calls that move or place bytes, so that tests can put short writes,
// EIO, ENOSPC, EAGAIN, EINTR and flipped bits on the very path that production runs. Owns nothing;
// called from any thread without a lock.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace firn {

/// One transfer between memory and a spill file.
struct FileCall {
  bool write = false;
  bool buffered = false;  // through the page cache: the last re-read after a mismatch
  int fd = -1;
  uint64_t offset = 0;
  std::byte* data = nullptr;
  size_t bytes = 0;
};

/// Results are those of the system call, or -errno.
class FileCalls {
 public:
  virtual ~FileCalls() = default;

  virtual int fallocate(int fd, uint64_t offset, uint64_t bytes);
  virtual int ftruncate(int fd, uint64_t bytes);
  /// Largest file this process may write (RLIMIT_FSIZE).
  virtual uint64_t file_bytes_max();

  /// Something that newer kernels let I/O threads do; false: as if this one were older.
  enum class RingHelp : uint8_t {
    own_table,   // 5.9: descriptors that no other thread can close (take_empty_table())
    own_index,   // 5.18: io_uring_enter by an index of the thread's, not by a descriptor
    no_number,   // 6.3: the same for io_uring_register, so that none is needed
    fixed_files, // files by an index of the ring's
    futex,       // 6.7: a request that ends when a word in memory is woken
  };
  virtual bool helps(RingHelp) { return true; }

  /// Before every transfer, by ring or by thread: how many bytes to ask the kernel for (fewer: a
  /// short transfer), or -errno to answer without asking.
  virtual ssize_t begin(const FileCall& call) { return static_cast<ssize_t>(call.bytes); }
  /// After every transfer the kernel answered; returns the result to go on with.
  virtual ssize_t end(const FileCall&, ssize_t result) { return result; }

  /// begin, pread or pwrite, end.
  ssize_t transfer(const FileCall& call);

  static FileCalls& real();
};

}  // namespace firn
