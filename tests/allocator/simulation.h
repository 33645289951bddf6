// A machine in software for tests of the engine: the software GPU on its virtual clock, a simulated
// store, one engine per device; and two kernels, one that fills a block with a pattern and one that
// checks it. Everything runs in the calling thread, in an order that depends on the seed alone.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "allocator/engine/baseline.h"
#include "allocator/engine/engine.h"
#include "allocator/memory/host_tier.h"
#include "firn/check.h"
#include "firn/software_gpu.h"
#include "firn/virtual_clock.h"

namespace firn::test {

/// The software GPU's own controls, resolved once.
struct GpuControls {
  decltype(&firnGpuConfigure) configure;
  decltype(&firnGpuReset) reset;
  decltype(&firnGpuAdvanceTo) advance_to;
  decltype(&firnGpuNow) now;
  decltype(&firnGpuNextEvent) next_event;
  decltype(&firnGpuFailAt) fail_at;
  decltype(&firnGpuFailFrom) fail_from;
  decltype(&firnGpuFailRate) fail_rate;
  decltype(&firnGpuDie) die;
  decltype(&firnGpuFallibleCalls) fallible_calls;
  decltype(&firnGpuCounts) counts;
  decltype(&firnGpuReservedBytes) reserved_bytes;
  decltype(&firnGpuKernelCreate) kernel_create;
  decltype(&firnGpuBusy) busy;
  CUresult (*launch)(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                     unsigned by, unsigned bz, unsigned shared, CUstream stream, void** params,
                     void** extra);
};

struct SimulationOptions {
  int devices = 1;
  uint64_t memory_bytes = 256u << 20;
  uint64_t budget_bytes = 64u << 20;
  uint64_t host_bytes = 32u << 20;
  uint64_t piece_bytes = 2u << 20;
  uint64_t span_bytes = 32u << 20;
  bool with_store = true;
  bool adversarial = false;
  bool verify = false, guard = false, poison = false;
  bool sums = false;
  bool places = false;
  bool notices = false;
  uint64_t io_patience_ns = 60'000'000'000;
  HostRoom* host_room = nullptr;     // not null: host memory is made by prepare_host() alone
  SlowWorks* slow_works = nullptr;
  std::function<void()> on_wait;     // called whenever an engine is about to wait; it may be asked
  TraceWriter* trace = nullptr;
  Policy policy = Policy::age;
  bool greedy = false;  // Policy::lifetime: the published plan decides instead
  double watch_fraction = 0;
  bool served = false;               // as if a thread called pump() all the while
  SimulatedStoreOptions store;
  // Not null: the engines have this in place of the store, which it is given.
  std::function<std::unique_ptr<Store>(Store& store)> in_front_of_store;
  const char* fail_entry = nullptr;  // the nth call of it while engines are opened fails
  uint64_t fail_nth = 0;
};

/// Three blocks of 6 MiB fit; host memory is plenty.
inline SimulationOptions small_budget() {
  SimulationOptions options;
  options.budget_bytes = 18u << 20;
  options.host_bytes = 64u << 20;
  return options;
}

/// A clock that says when somebody waits.
class ToldClock : public Clock {
 public:
  ToldClock(Clock& clock, std::function<void()> on_wait)
      : clock_(clock), on_wait_(std::move(on_wait)) {}
  uint64_t now_ns() override { return clock_.now_ns(); }
  void wait(uint64_t ns_most) override {
    on_wait_();
    clock_.wait(ns_most);
  }
  void notify() override { clock_.notify(); }

 private:
  Clock& clock_;
  std::function<void()> on_wait_;
};

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options);
  ~Simulation();

  Engine& engine(int device) { return *engines_[device]; }
  void end_engine(int device) { engines_[device].reset(); }
  /// Null when the driver refused (faults injected before): see error.
  bool ok() const { return error.empty(); }
  std::string error;
  Driver& driver() { return *driver_; }
  const GpuControls& gpu() const { return gpu_; }
  SimulatedStore* store() { return store_.get(); }
  VirtualClock& clock() { return *clock_; }
  CUcontext context(int device) const { return contexts_[device]; }
  CUstream make_stream(int device);
  FirnGpuCounts counts(int device) const;

  /// Enqueues a kernel that writes the pattern of `seed` over [address, address + bytes).
  /// False when the driver refused the launch (a fault injected).
  bool fill(int device, void* address, size_t bytes, uint64_t seed, CUstream stream);
  /// Enqueues a kernel that compares; a difference raises wrong_bytes.
  bool verify(int device, void* address, size_t bytes, uint64_t seed, CUstream stream);
  /// The same at once by the processor, of a block of `bytes` that is in use in host memory.
  static void fill(const OnHost& there, size_t bytes, uint64_t seed);
  static void verify(const OnHost& there, size_t bytes, uint64_t seed);
  /// Waits for everything on every device.
  void synchronize();
  static uint64_t wrong_bytes;   // since the simulation began
  static std::string first_wrong;

 private:
  std::unique_ptr<Driver> driver_;
  GpuControls gpu_{};
  std::unique_ptr<VirtualClock> clock_;
  std::unique_ptr<ToldClock> told_clock_;
  std::unique_ptr<SimulatedStore> store_;
  std::unique_ptr<Store> in_front_;
  std::vector<CUcontext> contexts_;
  std::vector<std::unique_ptr<Baseline>> baselines_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<std::pair<int, CUstream>> streams_;
  std::atomic<uint64_t> host_left_{uint64_t{1} << 40};
  void* fill_ = nullptr;
  void* verify_ = nullptr;
};

}  // namespace firn::test
