#include "allocator/runtime/service.h"

#include <fmt/format.h>
#include <pthread.h>

#include <chrono>
#include <mutex>
#include <system_error>
#include <thread>

#include "allocator/base/survives.h"
#include "firn/clock.h"
#include "firn/signals_blocked.h"

namespace firn {

struct Service::Planner {
  explicit Planner(int ordinal) : worker(fmt::format("firn-plan-{}", ordinal)) {}
  std::atomic<bool> plans{false};
  Worker worker;
};

Result<void> Service::start(Engine& engine, int ordinal) {
  try {
    SignalsBlocked blocked;
    std::thread([this, &engine, ordinal] { serve(engine, ordinal); }).detach();
  } catch (const std::system_error& error) {  // (Without it no spill would end.)
    return make_error(Code::host_out_of_memory, error.code().value(),
                      fmt::format("device {}: Firn cannot start its service thread: {} (limits "
                                  "on processes: ulimit -u, pids.max)",
                                  ordinal, error.code().message()));
  }
  return {};
}

bool Service::begin_stop() { return !stopping_.exchange(true); }

void Service::wait_stopped() {
  wall_clock().notify();
  std::unique_lock lock(mutex_);
  left_.wait_for(lock, std::chrono::seconds(2), [this] { return serving_ == 0; });
}

void Service::enter() {
  std::lock_guard lock(mutex_);
  ++serving_;
}

void Service::leave() {
  std::lock_guard lock(mutex_);
  --serving_;
  left_.notify_all();
}

void Service::serve(Engine& engine, int ordinal) {
  Planner planner(ordinal);
  thread_serves();
  (void)survives([ordinal] {
    pthread_setname_np(pthread_self(), fmt::format("firn-pump-{}", ordinal).c_str());
  });
  enter();
  while (!stopping()) {
    bool changed = false;
    // A step that finds no memory is tried again, or the engine has ended with it.
    if (!survives([&] { changed = serve_once(engine, planner); })) changed = false;
    if (!changed) wall_clock().wait(engine.busy() ? 200'000 : 20'000'000);
  }
  leave();
}

bool Service::serve_once(Engine& engine, Planner& planner) {
  const bool changed = engine.pump();
  if (engine.ponder_due() && !planner.plans.exchange(true))
    planner.worker.post([&engine, &planner] {
      thread_serves();
      (void)survives([&engine] { (void)engine.ponder(); });
      planner.plans = false;
    });
  if (engine.host_due() && !pinning_.exchange(true))
    host_worker_.post([this, &engine] { pin_ahead(engine); });
  host_.look();
  if (!pinning_.load(std::memory_order_relaxed) && host_.give_due() && !pinning_.exchange(true))
    host_worker_.post([this] { give_host_back(); });
  return changed;
}

void Service::pin_ahead(Engine& engine) {
  serve_host([&] {
    while (!stopping() && engine.prepare_host()) {}
  });
}

/// One engine after the other.
void Service::give_host_back() {
  serve_host([this] {
    for (const auto& slot : engines_)
      if (Engine* engine = slot.load(std::memory_order_acquire); engine && !stopping())
        (void)engine->give_host_back(host_.pressed());
  });
}

/// It is waited for as service threads are: it is in the driver.
template <class Work>
void Service::serve_host(Work&& work) {
  thread_serves();
  enter();
  (void)survives(work);
  pinning_ = false;
  leave();
}

}  // namespace firn
