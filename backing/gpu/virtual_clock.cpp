// The virtual clock: the software GPU's time, which moves only when a thread waits. Owns nothing
// but its list of stores; needs no lock beyond that list's.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "firn/ranked_mutex.h"
#include "firn/software_gpu.h"
#include "firn/virtual_clock.h"

namespace firn {

namespace {
class GpuVirtualClock final : public VirtualClock {
 public:
  bool open(const Driver& driver) {
    now_ = reinterpret_cast<decltype(now_)>(::dlsym(driver.handle, "firnGpuNow"));
    next_ = reinterpret_cast<decltype(next_)>(::dlsym(driver.handle, "firnGpuNextEvent"));
    advance_ = reinterpret_cast<decltype(advance_)>(::dlsym(driver.handle, "firnGpuAdvanceTo"));
    return now_ && next_ && advance_;
  }

  uint64_t now_ns() override { return now_(); }

  void wait(uint64_t ns_max) override {
    none_held("a wait");
    if (notified_.exchange(false)) return;
    const uint64_t now = now_();
    uint64_t next = next_();
    {
      std::lock_guard lock(mutex_);
      for (const SimulatedStore* store : stores_)
        next = std::min(next, store->next_completion_ns());
    }
    if (ns_max == UINT64_MAX && next == UINT64_MAX) {
      std::fprintf(stderr, "firn: virtual clock: deadlock: a thread waits, but nothing is queued "
                           "on the GPU or in a store\n");
      std::abort();
    }
    const uint64_t limit = ns_max > UINT64_MAX - now ? UINT64_MAX : now + ns_max;
    // The caller can see what is due already. If it waits again at the same time, the event was
    // another's (another engine's completion): time must go on all the same.
    if (next <= now && stood_at_.exchange(now) == now) next = now + step_ns;
    advance_(std::max(now, std::min(next, limit)));
  }

  void notify() override { notified_ = true; }

  void attach(const SimulatedStore* store) override {
    std::lock_guard lock(mutex_);
    stores_.push_back(store);
  }

 private:
  static constexpr uint64_t step_ns = 1000;
  uint64_t (*now_)() = nullptr;
  uint64_t (*next_)() = nullptr;
  void (*advance_)(uint64_t) = nullptr;
  RankedMutex<Rank::virtual_clock> mutex_;
  std::vector<const SimulatedStore*> stores_;
  std::atomic<bool> notified_{false};
  std::atomic<uint64_t> stood_at_{UINT64_MAX};  // when a wait last found something due
};
}  // namespace

Result<std::unique_ptr<VirtualClock>> open_virtual_clock(const Driver& driver) {
  auto clock = std::make_unique<GpuVirtualClock>();
  if (!driver.software || !clock->open(driver))
    return make_error(Code::not_supported, 0,
                      driver.library + " lacks a virtual clock: simulation needs the software GPU");
  return std::unique_ptr<VirtualClock>(std::move(clock));
}

}  // namespace firn
