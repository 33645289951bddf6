// Moves bytes from rank to rank through the shared memory's pipes, for the kernels of collectives
// and of sends and receives. Every transfer begins with a few words that both sides must agree on.
//
// Owns nothing. Locks: none; one kernel of a rank moves at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backing/gpu/software/nccl/shared_memory.h"

namespace firn::nccl {

struct Transfer {
  int peer;
  bool sends;
  char* at;
  size_t bytes;
  uint32_t kind;       // of the work: the other side's must be the same
  size_t done = 0;
  bool begun = false;  // its first words have passed
};

/// Thrown in a kernel that has to end: its communicator was aborted.
struct Aborted {};

/// Signals between a communicator's kernels and its host side.
struct Signals {
  std::atomic<bool> abort{false};
  std::atomic<int> error{ncclSuccess};  // ncclCommGetAsyncError's answer
  std::string words;                    // of the error; written before it
  void note(ncclResult_t result, std::string why) {
    if (error.load() != ncclSuccess) return;
    words = std::move(why);
    error.store(result, std::memory_order_release);
  }
};

class Mover {
 public:
  Mover(SharedMemory& shared, Signals& signals) : shared_(shared), signals_(signals) {}

  /// Moves all of them, side by side: those to one peer, and those from one, in their order. Where
  /// a rank is lost, or the sides disagree, the error is noted and the kernel stays, as a real
  /// one does, until the communicator is aborted.
  void move(std::vector<Transfer>& transfers);

 private:
  bool step(Transfer& transfer);
  bool send_some(Transfer& transfer);
  bool receive_some(Transfer& transfer);
  void wait(uint32_t seen);
  [[noreturn]] void stay(ncclResult_t result, std::string why);

  SharedMemory& shared_;
  Signals& signals_;
};

}  // namespace firn::nccl
