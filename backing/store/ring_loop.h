// The ring thread of a DirIo: one io_uring, created, used and closed on one thread, so that no
// other can submit to it. Sleeps in the kernel until a transfer completes or the eventfd wakes it.
// Owns: the ring, its registered buffers, the requests in flight. Locks: DirIo's, while taking
// transfers and regions; none while it waits.
#pragma once

#include <liburing.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backing/store/dir_io.h"

namespace firn {

/// Sets `ring` up with the best flags this kernel takes. 0 or -errno.
int set_up_ring(io_uring& ring, unsigned entries);
/// Why io_uring does not work with that file; empty when a trial block could be written and read.
/// Nothing: a request got no answer. Then the kernel may still write to the file, whenever it
/// likes.
std::optional<std::string> ring_trial(int fd);
std::string no_answer();

class RingLoop {
 public:
  explicit RingLoop(DirIo& io) : io_(io) {}
  void run();

 private:
  struct Buffer {  // a registered one
    std::byte* begin;
    size_t bytes;
    int index;
  };
  struct Request {
    Transfer transfer;
    FileCall call;
  };

  void loop();
  void register_regions();
  void register_piece(std::byte* begin, size_t bytes);
  void refuse_buffers(const std::string& words);
  void arm_wake();
  void fill();
  /// Submits the transfer's next call; answers it at once where the seam says so.
  void begin(size_t number);
  void submit();
  void check(int result);
  void reap();
  void completed(size_t number, ssize_t result);
  int buffer_of(const FileCall& call) const;

  DirIo& io_;
  io_uring ring_{};
  std::vector<Request> requests_;
  std::vector<size_t> free_;  // numbers of requests not in flight
  std::vector<Buffer> buffers_;
  int buffers_most_ = 0;  // 0: none can be registered
  bool buffers_asked_ = false;
  bool wake_armed_ = false;
};

}  // namespace firn
