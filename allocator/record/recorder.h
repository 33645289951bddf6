// Records what a program does with one device's memory, for `firn simulate`. Fed only when tracing:
// by the engine with allocations and frees, by a front end with operators and the blocks they use.
//
// One kernel for each outermost operator that has a kernel of its own, including the operators that
// it calls, so that every piece of device time counts once. Its time is that of its enqueued work,
// without its waits: where a block has to come back, or memory is allocated, one measured stretch
// ends before and another begins behind.
//
// Owns: the recording, its events. Locks: one of its own, a leaf: taken with the engine's held.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "allocator/record/device_times.h"
#include "allocator/record/recording.h"
#include "firn/driver.h"
#include "firn/ranked_mutex.h"

namespace firn::record {

class Recorder;

/// An operator that runs now; it is its thread's, which passes it to the recorder.
struct Operator {
  struct Use {
    uint32_t block;
    bool read, written;
    bool made;  // allocated by it
  };
  std::string name;
  bool kernel = false;       // it has used memory, not only allocated it
  std::vector<Use> uses;     // one for each use of a block
  std::vector<Stretch> stretches;
  CUevent begin = nullptr;   // of the stretch being measured
  CUstream stream = nullptr; // that it is on
  Recorder* recorder = nullptr;  // of the device it was first seen to use; others are left out
};

class Recorder {
 public:
  /// Files left under `prefix` by an earlier run are removed. `driver` outlives this; `context` is
  /// the device's. No more than `kernels_most` are kept.
  Recorder(const Driver& driver, CUcontext context, std::string prefix,
           size_t kernels_most = Recording::kernels_most_default);

  // The engine.
  void allocated(uint64_t address, uint64_t bytes);
  void freed(uint64_t address);

  // The front end. All do nothing for another recorder's operator, or once the recording is full.
  /// The operator is about to wait: for a block, or for memory.
  void pause(Operator& op);
  /// It reads or writes the block around `pointer`. A written block that holds bytes already counts
  /// as read too: operators do not say whether they only replace it.
  void uses(Operator& op, const void* pointer, bool write);
  /// It has allocated the block at `pointer`: an output, whatever it does with it.
  void makes(Operator& op, const void* pointer);
  /// From here on it enqueues its work on `stream`.
  void resume(Operator& op, CUstream stream);
  /// All its work is enqueued.
  void end(Operator& op);

  /// Cuts one iteration out and writes the two files; reports anything unexpected on standard
  /// error. Does not wait for the device.
  void finish();

 private:
  struct Live {
    uint32_t block;
    uint64_t bytes;
  };
  bool mine(Operator& op);
  bool room();
  const Live* live_at(const void* pointer) const;
  void collect(bool all);

  const std::string prefix_;
  DeviceTimes times_;
  RankedMutex<Rank::recorder> mutex_;
  Recording recording_;
  std::map<uint64_t, Live> live_;  // by address
  std::vector<bool> written_;      // by block: an operator that is over wrote it
  std::atomic<bool> cut_off_{false};  // the recording is full, something was left out
  bool finished_ = false;
};

}  // namespace firn::record
