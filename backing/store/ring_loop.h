// The ring thread of a DirIo: one io_uring, created, used and closed on one thread, so that no
// other can submit to it. With nothing in flight it sleeps like any thread; else in the kernel,
// until a transfer completes or a word in memory is woken.
//
// Its descriptors are in a table of the thread's own. Without one, no descriptor is needed once it
// is set up: the kernel knows the thread's ring and the ring's files by index, so that the program
// may close what it likes. If io_uring_enter is refused later, nothing in flight is lost, and
// threads go on.
//
// Owns: the ring, its registered buffers, the requests in flight. Locks: DirIo's, while taking
// transfers and staging, and while it sleeps with nothing in flight.
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
  explicit RingLoop(DirIo& io) : io_(io), at_(io.file_) {}
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
    bool in_flight = false;
  };

  void loop();
  void register_files();
  void give_up_number();
  int enroll(unsigned opcode, void* words, unsigned count);
  void apply_staging_changes();
  void register_piece(std::byte* begin, size_t bytes);
  void forget_staging(std::span<std::byte> staging);
  int update_buffer(int index, iovec buffer);
  void refuse_buffers(const std::string& words);
  /// Takes what there is room for. Otherwise waits for it, with nothing in flight; false: the end.
  bool fill();
  void arm_wake(uint32_t value);
  void start(Transfer transfer);
  /// Submits the transfer's next call; answers it at once where the seam says so.
  void begin(size_t number);
  void wait();
  void told(int result);
  void leave();
  void reap();
  void completed(size_t number, ssize_t result);
  void over(size_t number);
  bool idle() const { return free_.size() == requests_.size(); }
  int buffer_of(const FileCall& call) const;

  DirIo& io_;
  ThreadFile at_;  // goes after the ring
  io_uring ring_{};
  std::vector<Request> requests_;
  std::vector<size_t> free_;  // numbers of requests not in flight
  std::vector<Buffer> buffers_;
  std::vector<int> spare_buffers_;  // indices that are free again
  int buffers_used_ = 0;            // indices that ever were in use
  int buffers_most_ = 0;  // 0: none can be registered
  bool buffers_asked_ = false, buffers_refused_ = false;
  bool files_ = false;    // registered: [0] direct, [1] buffered
  bool indexed_ = false;  // io_uring_enter takes an index of this thread's
  bool numbered_ = true;  // io_uring_register needs `number_`; false: there is none
  Descriptor number_;     // of the ring
  bool futex_ = true;     // the kernel may know such requests
  bool wake_armed_ = false;
  std::string refused_;   // io_uring_enter, in words: nothing is submitted any more
};

}  // namespace firn
