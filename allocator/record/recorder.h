// Records what a program does with one device's memory, for `firn simulate`: fed only when tracing,
// by the engine with allocations and frees, by a front end with operators and the blocks they use.
//
// One kernel for each outermost operator that has a kernel of its own; what it calls is part of it.
// So every piece of device time is counted once. Its time is that of the work that it enqueued,
// between what it waits for: where a block has to come back, or memory is allocated, the stretch
// that is measured ends before and another begins behind.
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

/// An operator that runs now: its thread's, who calls the recorder with it.
struct Operator {
  struct Use {
    uint32_t block;
    bool read, written;
    bool made;  // allocated by it
  };
  std::string name;
  bool kernel = false;       // something in it has used memory: not only an allocation
  std::vector<Use> uses;     // a block as often as it was used
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
  /// It reads or writes the block around `pointer`. What is written and holds bytes already counts
  /// as read too: operators do not say whether they only replace it.
  void uses(Operator& op, const void* pointer, bool write);
  /// It has allocated the block at `pointer`: an output, whatever it does with it.
  void makes(Operator& op, const void* pointer);
  /// What it enqueues from here on, on `stream`, is its work.
  void resume(Operator& op, CUstream stream);
  /// Everything was enqueued.
  void end(Operator& op);

  /// Cuts one iteration out and writes the two files; says on standard error what went otherwise
  /// than one would think. Does not wait for the device.
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
