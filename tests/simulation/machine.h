// The machine of a seed: the software GPU with tags in place of bytes, a simulated store, an engine
// per device, all on one virtual clock; and kernels that write and compare tags.
// Owns: all of it. Locks: none of its own (one thread at a time).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "allocator/engine/baseline.h"
#include "allocator/engine/engine.h"
#include "allocator/memory/host_tier.h"
#include "firn/software_gpu.h"
#include "firn/virtual_clock.h"
#include "tests/simulation/events.h"
#include "tests/simulation/options.h"

namespace firn::sim {

/// The software GPU's own controls.
struct Controls {
  decltype(&firnGpuConfigure) configure;
  decltype(&firnGpuReset) reset;
  decltype(&firnGpuNow) now;
  decltype(&firnGpuFailAt) fail_at;
  decltype(&firnGpuFailFrom) fail_from;
  decltype(&firnGpuFailRate) fail_rate;
  decltype(&firnGpuDie) die;
  decltype(&firnGpuCounts) counts;
  decltype(&firnGpuReservedBytes) reserved_bytes;
  decltype(&firnGpuFallibleCalls) fallible_calls;
  decltype(&firnGpuKernelCreate) kernel_create;
  decltype(&firnGpuBusy) busy;
  decltype(&firnGpuObserve) observe;
  decltype(&firnGpuTagsFill) fill;
  decltype(&firnGpuTagsCompare) compare;
  decltype(&firnGpuTagsRead) read;
  decltype(&firnGpuTagsWrite) write;
  CUresult (*launch)(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                     unsigned by, unsigned bz, unsigned shared, CUstream stream, void** params,
                     void** extra);
};

/// A clock that asks before it waits: false, somebody else went on meanwhile.
class AskingClock final : public Clock {
 public:
  AskingClock(Clock& clock, std::function<bool()> may_wait)
      : clock_(clock), may_wait_(std::move(may_wait)) {}
  uint64_t now_ns() override { return clock_.now_ns(); }
  void wait(uint64_t ns_max) override {
    if (may_wait_()) clock_.wait(ns_max);
  }
  void notify() override { clock_.notify(); }

 private:
  Clock& clock_;
  std::function<bool()> may_wait_;
};

class Machine final : public TagMemory {
 public:
  /// `may_wait` is asked before an engine waits. `kernel_failed` is told what a kernel found.
  Machine(const Options& options, std::function<bool()> may_wait);
  ~Machine() override;
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  /// Not empty: an engine could not be opened.
  std::string error;
  Engine& engine(int device) { return *engines_[static_cast<size_t>(device)]; }
  bool open(int device) const {
    return static_cast<size_t>(device) < engines_.size() &&
           engines_[static_cast<size_t>(device)] != nullptr;
  }
  /// Ends it, with whatever is in flight.
  void close(int device) { engines_[static_cast<size_t>(device)].reset(); }
  Driver& driver() { return *driver_; }
  const Controls& gpu() const { return gpu_; }
  SimulatedStore* store() { return store_.get(); }
  SeenStore* seen_store() { return seen_store_.get(); }
  VirtualClock& clock() { return *clock_; }
  Events& events() { return events_; }
  CUcontext context(int device) const { return contexts_[static_cast<size_t>(device)]; }
  CUstream make_stream(int device);
  void destroy_stream(int device, CUstream stream);
  /// Those that are the program's, or the device's own.
  uint64_t streams_of_others(int device) const;
  FirnGpuCounts counts(int device) const;
  void synchronize();

  /// Enqueues a kernel that writes the block's tags; when it is over, version_done[block] is that.
  bool write(int device, const void* address, size_t bytes, uint64_t block, uint64_t version,
             CUstream stream);
  /// And one that compares them.
  bool compare(int device, const void* address, size_t bytes, uint64_t block, uint64_t version,
               CUstream stream);
  std::vector<uint32_t> version_done;  // by block
  /// The memory that the machine has left for the engines (Options::host_pressed).
  HostRoom host_room;
  /// A kernel found something else, or was refused its memory: which oracle, in words.
  std::string wrong_oracle, wrong;

 private:
  void open_gpu();
  void open_engines(std::function<bool()> may_wait);
  bool launch(void* kernel, int device, const void* address, size_t bytes, uint64_t block,
              uint64_t version, CUstream stream);
  void read(const std::byte* address, size_t bytes, uint64_t* tags) override;
  void write(std::byte* address, size_t bytes, const uint64_t* tags) override;

  const Options& options_;
  std::unique_ptr<Driver> driver_;
  Controls gpu_{};
  Events events_;
  std::unique_ptr<VirtualClock> clock_;
  std::unique_ptr<AskingClock> asking_clock_;
  std::unique_ptr<SimulatedStore> store_;
  std::unique_ptr<SeenStore> seen_store_;
  std::atomic<uint64_t> host_left_{0};  // for all engines (Options::host_shared)
  std::vector<CUcontext> contexts_;
  std::vector<std::unique_ptr<Baseline>> baselines_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<std::pair<int, CUstream>> streams_;
  std::vector<uint64_t> own_streams_;  // of each device
  void* write_ = nullptr;
  void* compare_ = nullptr;
};

}  // namespace firn::sim
