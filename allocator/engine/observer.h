// Whoever follows what happens to one device's memory: a front end, on behalf of its framework.
#pragma once

#include <cstdint>

#include "firn/cuda_abi.h"

namespace firn {

/// Events of memory beside the calls that ask for it.
struct MemoryEvent {
  enum class Kind : uint8_t {
    segment_made,    // memory mapped for a large block, or for small ones to share
    segment_given,   // and given back
    free_completed,  // a freed block has waited: for other streams, or for its own bytes
  };
  Kind kind;
  void* address = nullptr;
  uint64_t bytes = 0;
  CUstream stream = nullptr;
};

/// A thread has waited, until now.
struct Wait {
  uint64_t ns = 0;
  const void* block = nullptr;        // what for; null: for room
  uint64_t bytes = 0;                 // the block's, or the room's
  const char* maker = nullptr;        // who allocated the block, if that is asked for and known
};

/// Called without the engine's lock, unless said: it may call the engine, but not wait for room there
/// (threads whose events it is told wait for it). What happened in a call of the engine's is known
/// before that call returns; in a callback of the driver's, soon after. It must not throw.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  /// Uses of memory have to be reported from here on. Once, by the thread whose allocation crossed
  /// watch_fraction; or by observe(), if that was before.
  virtual void watching_begins() {}
  /// In the order in which they happened, one at a time.
  virtual void happened(const MemoryEvent&) {}
  /// By the thread that has waited. Returns the operator, a string that lives on, or null: for the
  /// trace.
  virtual const char* waited(const Wait&) { return nullptr; }
  /// `asked`: the program waits for memory most of the time, so that finding out who does is worth
  /// its cost (Engine::waited()); or that ends.
  virtual void storm(bool) {}
  /// Names the user of memory in the calling thread, for the history of a block that was found
  /// written unseen; null: there is none. From any thread, maybe under the engine's lock.
  virtual const char* doing() { return nullptr; }
};

}  // namespace firn
