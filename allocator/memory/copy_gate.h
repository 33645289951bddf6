// Gaps between copies to the host, for the driver's calls that give access to mapped memory.
//
// A driver gives access (cuMemSetAccess) by work of its own on the engine that copies to the host.
// While copies follow each other there, that work waits for the end of a time slice: 1.06 ms for
// each handle on an H100, where it takes 20 to 40 us otherwise (bench/gpu/access_load.cpp measures
// it). So each copy to the host first waits, on its stream, for a word in host memory that says
// whether a thread is about to give access. The copies leave a gap then, for as long as the call
// takes; the gate costs them 1 % of the link while no call is made.
//
// A call may take long (another thread's call of the driver may have to end first, and may itself
// wait for these copies): after closed_ns_most a thread of the gate's own, which calls no driver,
// opens it until all such calls have returned.
//
// Owns: the word's page, pinned, and the thread. Lock: its own, held for a few instructions; it is
// taken under the engine's or without it.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>

#include "firn/driver.h"
#include "firn/ranked_mutex.h"

namespace firn {

class CopyGate {
 public:
  static constexpr uint64_t closed_ns_most = 2'000'000;

  /// A gate that is always open, until start().
  explicit CopyGate(const Driver& driver) : driver_(driver) {}
  ~CopyGate();
  CopyGate(const CopyGate&) = delete;
  CopyGate& operator=(const CopyGate&) = delete;

  /// With the device's context current. Where the driver cannot wait for values in host memory the
  /// gate stays open for ever.
  void start();
  /// With the context current, when the device has nothing more to do.
  void end();
  /// The context is lost, or the parent's of a fork: the page is left to it.
  void abandon();

  /// Work enqueued on `stream` from now on waits until the gate is open.
  void pass(CUstream stream);
  /// How often it was opened while a call went on.
  uint64_t forced() const { return forced_.load(std::memory_order_relaxed); }

  /// Closes the gate for a scope, in which access is given. Scopes of several threads add up.
  class [[nodiscard]] Closed {
   public:
    explicit Closed(CopyGate& gate) : gate_(gate), closed_(gate.close()) {}
    ~Closed() {
      if (closed_) gate_.open();
    }
    Closed(const Closed&) = delete;
    Closed& operator=(const Closed&) = delete;

   private:
    CopyGate& gate_;
    const bool closed_;
  };

 private:
  using WaitValue = CUresult (*)(CUstream stream, CUdeviceptr address, uint32_t value,
                                 unsigned flags);

  bool close();
  void open();
  void watch();
  void stop_watching();

  const Driver& driver_;
  WaitValue wait_value_ = nullptr;
  void* page_ = nullptr;
  std::atomic<uint32_t>* word_ = nullptr;  // in the page: 1 while closed; null: never started
  CUdeviceptr address_ = 0;                // of the word, for the device
  std::atomic<bool> works_{false};
  RankedMutex<Rank::copy_gate> mutex_;
  RankedCondition changed_;
  unsigned closers_ = 0;      // scopes
  uint64_t closed_at_ns_ = 0;  // when the first of them began
  uint64_t used_at_ns_ = 0;    // a copy passed
  bool asleep_ = false, over_ = false;
  std::atomic<uint64_t> forced_{0};
  std::thread watcher_;
};

}  // namespace firn
