// Reports to the observer: once the engine's lock is released, before the call of the engine's in
// which something happened returns.
#include <utility>

#include "allocator/engine/hot.h"
#include "firn/canary.h"
#include "firn/check.h"
#include "firn/said.h"

namespace firn {

thread_local EngineImpl::Entered* EngineImpl::entered = nullptr;

EngineImpl::Entered::Entered(EngineImpl& of)
    : DriverTimeScope(of.driver_times_),
      ContextGuard(of.driver_, FIRN_CANARY_FIRST(25, of.options_.context)),
      engine(of),
      outer(std::exchange(entered, this)) {}

EngineImpl::Entered::~Entered() {
  entered = outer;
  if (std::uncaught_exceptions() > thrown_) {
    engine.left_undone();
    return;
  }
  try {
    // (In a callback of the driver's the lock's holder may wait for the callback's end.)
    const bool in_callback = result() == CUDA_ERROR_NOT_PERMITTED;
    if (!stalls.empty() && !in_callback) engine.report(stalls);
    if (told && !in_callback) engine.report_events();
    if (Said& said = Said::of_process(); said.waits()) said.write();
  } catch (const std::bad_alloc&) {  // lines are written later
  }
}

void EngineImpl::tell(const MemoryEvent& event) {
  if (!observer_.load(std::memory_order_relaxed)) return;
  events_.push_back(event);
  if (entered) entered->told = true;
}

void EngineImpl::observe(EngineObserver* observer) {
  bool now;
  {
    Lock lock(mutex_);
    observer_.store(observer, std::memory_order_release);
    if (net_) net_->observer.store(observer, std::memory_order_release);
    events_.clear();
    now = watching_;
    watch_told_ = now;
  }
  if (now && observer) observer->watching_begins();
}

/// The program's thread is held up from here to count_stall(): that time is not the program's.
void EngineImpl::begin_stall() {
  if (!learner_ || !learner_->timing() || !watching_.load(std::memory_order_relaxed)) return;
  (void)take_events();
  learner_->mark_time(program_stream_.load(std::memory_order_relaxed), 0);
}

/// `room`: bytes waited for, if not for a block.
void EngineImpl::count_stall(uint64_t begin_ns, const Block* waited_for, uint64_t room) {
  const uint64_t now = clock_.now_ns();
  if (learner_) learner_->clock().stalled(now);
  counted_.stall_ns += now - begin_ns;
  ++counted_.stalls;
  if (!observer_.load(std::memory_order_relaxed) && !trace_ && !options_.notices) return;
  Stalled stalled{begin_ns, now, 0, {now - begin_ns, nullptr, room, nullptr}};
  if (waited_for) {
    stalled.address = waited_for->address;
    stalled.wait.block = reinterpret_cast<const void*>(waited_for->address);
    stalled.wait.bytes = waited_for->requested;
    if (thrash_notices_.asking()) stalled.wait.maker = thrash_notices_.maker_of(*waited_for);
  }
  FIRN_CHECK(entered && &entered->engine == this, "a wait in no call of device %d",
             options_.device);
  entered->stalls.push_back(stalled);
}

namespace {
/// An observer that throws misses the rest of that call.
template <class Call>
void ask(EngineObserver* observer, Call&& call) {
  if (!observer) return;
  none_held("an observer");
  try {
    call(*observer);
  } catch (...) {  // NOLINT: there is nobody to hand it to
  }
}
}  // namespace

/// Waits of the calling thread's, which holds no lock.
void EngineImpl::report(const std::vector<Stalled>& stalls) {
  for (const Stalled& stalled : stalls) {
    EngineObserver* const observer = observer_.load(std::memory_order_acquire);
    const char* who = nullptr;
    ask(observer, [&](EngineObserver& each) { who = each.waited(stalled.wait); });
    std::optional<bool> asked;
    {
      Lock lock(mutex_);
      if (trace_ && stalled.wait.ns > 0)
        trace_->row(stalled.end_ns, "stall", options_.device, TraceWriter::thread(),
                    stalled.address, stalled.wait.ns, who ? who : "");
      if (options_.notices) asked = look_for_thrash(stalled);
    }
    if (asked) ask(observer, [&](EngineObserver& each) { each.storm(*asked); });
  }
}

/// Events of memory, in their order: a thread whose events another one reports waits for that. One
/// that is called from the observer leaves them to the call that is under way.
void EngineImpl::report_events() {
  const std::thread::id me = std::this_thread::get_id(), nobody;
  Lock lock(mutex_);
  if (reporting_ == me) return;
  while (reporting_ != nobody) wait(lock, poll_ns);
  reporting_ = me;
  for (std::vector<MemoryEvent> events; !events_.empty();) {
    events.clear();
    events.swap(events_);
    EngineObserver* const observer = observer_.load(std::memory_order_relaxed);
    lock.unlock();
    for (const MemoryEvent& event : events)
      ask(observer, [&](EngineObserver& each) { each.happened(event); });
    lock.lock();
  }
  reporting_ = nobody;
}

}  // namespace firn
