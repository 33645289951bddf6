// The service threads: one for each device pumps its engine while something is in flight, one
// beside each computes what is due (plans, choices), and one for all pins host memory ahead of need
// and gives it back.
//
// Owns the threads, which are never joined: one may be stuck in the driver. Lock: its own, a leaf,
// for the count of those that are in the driver.
#pragma once

#include <array>
#include <atomic>

#include "allocator/base/worker.h"
#include "allocator/runtime/host_memory.h"
#include "allocator/runtime/runtime.h"
#include "firn/ranked_mutex.h"

namespace firn {

class Service {
 public:
  using Engines = std::array<std::atomic<Engine*>, Runtime::devices_most>;

  /// Both outlive it, and it the threads: it is never destroyed while one runs.
  Service(HostMemory& host, const Engines& engines) : host_(host), engines_(engines) {}

  /// Starts the threads of a device. Error: host_out_of_memory, the system has no more threads.
  Result<void> start(Engine& engine, int ordinal);
  /// The threads are to leave the driver. False: they were told already.
  bool begin_stop();
  /// Waits until they have left, for two seconds at most.
  void wait_stopped();

 private:
  struct Planner;
  void serve(Engine& engine, int ordinal);
  bool serve_once(Engine& engine, Planner& planner);
  void pin_ahead(Engine& engine);
  void give_host_back();
  template <class Work>
  void serve_host(Work&& work);
  bool stopping() const { return stopping_.load(std::memory_order_acquire); }
  void enter();
  void leave();

  HostMemory& host_;
  const Engines& engines_;
  Worker host_worker_{"firn-host"};
  RankedMutex<Rank::service> mutex_;
  RankedCondition left_;
  int serving_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> pinning_{false};  // pinning host memory, or giving it back, for one engine
};

}  // namespace firn
