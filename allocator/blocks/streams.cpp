#include "allocator/blocks/streams.h"
#include "firn/canary.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace firn {

namespace {

/// An event can be recorded only on streams of its own context.
class OtherContext {
 public:
  OtherContext(const Driver& driver, CUcontext context) {
    if (context) guard_.emplace(driver, context);
  }

 private:
  std::optional<Driver::ContextGuard> guard_;
};

/// Refused because of a capture, which says nothing of the device.
bool about_captures(CUresult result) {
  return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= 910;
}

}  // namespace

Streams::~Streams() {
  if (abandoned_) return;
  for (CUevent event : spare_) (void)driver_.event_destroy(event);
  for (CUevent event : unwanted_) (void)driver_.event_destroy(event);
  for (unsigned i = 0; i < count(); ++i) {
    for (const Closed& closed : tracked_[i]->closed) (void)driver_.event_destroy(closed.event);
    for (CUevent event : tracked_[i]->spare) (void)driver_.event_destroy(event);
  }
}

int Streams::find(CUstream stream) const {
  for (size_t at = hash(stream), step = 0; step < slots_.size(); ++step, ++at) {
    uint32_t slot = slots_[at % slots_.size()].load(std::memory_order_acquire);
    if (slot == 0) return -1;
    if (slot != left && key(slot - 1) == stream) return static_cast<int>(slot - 1);
  }
  return -1;
}

int Streams::see(CUstream stream, CUcontext context) {
  const CUstream key = key_of(stream, context);
  int known = find(key);
  if (known >= 0) {
    if (context) tracked_[known]->context = context;
    return known;
  }
  unsigned index = count();
  if (index == capacity) {
    const int reused = reuse_ended();
    if (reused < 0) return -1;
    index = static_cast<unsigned>(reused);
  } else {
    tracked_[index] = std::make_unique<Tracked>();
  }
  Tracked& tracked = *tracked_[index];
  tracked.stream.store(plain(stream), std::memory_order_relaxed);
  tracked.key.store(key, std::memory_order_relaxed);
  tracked.context = context;
  if (index == count()) count_.store(index + 1, std::memory_order_release);
  enter(index, key);
  return static_cast<int>(index);
}

void Streams::enter(unsigned index, CUstream key) {
  size_t at = hash(key);
  for (;; ++at) {
    const uint32_t slot = slots_[at % slots_.size()].load(std::memory_order_relaxed);
    if (slot == 0 || slot == left) break;
  }
  slots_[at % slots_.size()].store(index + 1, std::memory_order_release);
}

/// Nothing is asked of the stream any more, nor of the device for it.
void Streams::forget_handle(Tracked& tracked) {
  device_waits_ -= std::exchange(tracked.device_wait, false);
  tracked.may_end.store(false, std::memory_order_release);
}

void Streams::list_ended(unsigned index) {
  if (tracked_[index]->listed) return;
  ended_.push_back(index);
  tracked_[index]->listed = true;
}

/// The index of the stream that ended first of those whose work is over; -1: there is none. Epochs
/// continue, so that uses of the old stream are over.
int Streams::reuse_ended() {
  for (size_t tries = ended_.size(); tries > 0; --tries) {
    const unsigned index = ended_.front();
    ended_.pop_front();
    Tracked& tracked = *tracked_[index];
    tracked.listed = false;
    if (!tracked.ended.load(std::memory_order_acquire)) continue;  // in use again
    if (!tracked.closed.empty()) {
      list_ended(index);
      continue;
    }
    (void)close_ended(tracked);
    for (size_t at = hash(key(index));; ++at) {
      auto& slot = slots_[at % slots_.size()];
      if (slot.load(std::memory_order_relaxed) != index + 1) continue;
      slot.store(left, std::memory_order_release);
      break;
    }
    for (CUevent event : tracked.spare) (void)driver_.event_destroy(event);
    tracked.spare.clear();
    forget_handle(tracked);
    tracked.aside.store(false, std::memory_order_relaxed);
    tracked.ended.store(false, std::memory_order_release);
    return static_cast<int>(index);
  }
  return -1;
}

bool Streams::takes_work(unsigned index) const {
  const Tracked& tracked = *tracked_[index];
  return !tracked.context && !no_handle(tracked) && !captured(tracked.stream);
}

bool Streams::any_captured() const {
  for (unsigned i = 0; i < count(); ++i)
    if (!no_handle(*tracked_[i])) {
      OtherContext other(driver_, tracked_[i]->context);
      if (captured(tracked_[i]->stream)) return true;
    }
  return false;
}

bool Streams::ask_for_device_wait(Tracked& tracked) {
  if (pause_ > 0 || any_captured()) return false;
  device_waits_ += !std::exchange(tracked.device_wait, true);
  return true;
}

std::optional<Streams::DeviceWait> Streams::begin_device_wait() {
  if (device_waits_ == 0 || pause_ > 0 || health_.dead() || any_captured()) return std::nullopt;
  std::optional<DeviceWait> wait;
  for (unsigned i = 0; i < count(); ++i) {
    Tracked& tracked = *tracked_[i];
    if (!tracked.device_wait || (wait && wait->context != tracked.context)) continue;
    if (!wait) wait.emplace().context = tracked.context;
    wait->over.emplace_back();  // (may throw: then nothing of this stream has changed)
    tracked.device_wait = false;
    --device_waits_;
    tracked.waiting = tracked.open.fetch_add(1, std::memory_order_seq_cst);
    wait->over.back() = Use::make(i, tracked.waiting);
  }
  return wait;
}

void Streams::end_device_wait(const DeviceWait& wait, CUresult result) {
  if (about_captures(result))
    pause_ = pause_polls;
  else if (!wait.context)  // (Another context's end is none of this device's.)
    health_.answered("cuCtxSynchronize", result);
  for (const Use use : wait.over) {
    Tracked& tracked = *tracked_[use.stream()];
    tracked.waiting = 0;
    if (result != CUDA_SUCCESS) continue;  // whoever still needs it closes its use again
    tracked.recorded = std::max(tracked.recorded, use.epoch());
    if (!over(use)) tracked.done.store(use.epoch(), std::memory_order_release);
  }
}

void Streams::ends(unsigned index) {
  Tracked& tracked = *tracked_[index];
  if (no_handle(tracked)) return;
  if (close(now(index))) {
    tracked.ended.store(true, std::memory_order_release);
    list_ended(index);
  } else {
    may_end(index);
  }
}

void Streams::context_ends(CUcontext context) {
  for (unsigned i = 0; i < count(); ++i) {
    Tracked& tracked = *tracked_[i];
    if (tracked.context != context) continue;
    OtherContext other(driver_, context);
    tracked.recorded = tracked.open.fetch_add(1, std::memory_order_seq_cst);
    tracked.done.store(tracked.recorded, std::memory_order_release);
    pending_ -= tracked.closed.size();
    for (const Closed& closed : tracked.closed) (void)driver_.event_destroy(closed.event);
    for (CUevent event : tracked.spare) (void)driver_.event_destroy(event);
    tracked.closed.clear();
    tracked.spare.clear();
    forget_handle(tracked);
    tracked.ended.store(true, std::memory_order_release);
    list_ended(i);
  }
}

/// Nothing was enqueued since the last event: it covers the epoch opened after it too.
bool Streams::close_ended(Tracked& tracked) {
  const uint64_t epoch = tracked.open.fetch_add(1, std::memory_order_seq_cst);
  tracked.recorded = epoch;
  if (!tracked.closed.empty())
    tracked.closed.back().epoch = epoch;
  else
    tracked.done.store(epoch, std::memory_order_release);
  return true;
}

bool Streams::captured(CUstream stream, CUresult* answer) const {
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!driver_.stream_is_capturing) return false;
  const CUresult result = driver_.stream_is_capturing(stream, &capture);
  if (!about_captures(result)) health_.answered("cuStreamIsCapturing", result);
  if (answer) *answer = result;
  return result != CUDA_SUCCESS || capture != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool Streams::close(Use use) {
  Tracked& tracked = *tracked_[use.stream()];
  if (use.epoch() <= tracked.recorded) return true;
  if (health_.dead()) return false;
  if (use.epoch() <= tracked.waiting) return true;
  if (tracked.may_end.load(std::memory_order_acquire)) return ask_for_device_wait(tracked);
  if (tracked.ended.load(std::memory_order_acquire)) return close_ended(tracked);
  OtherContext other(driver_, tracked.context);
  // An event recorded now would become part of somebody's graph.
  if (captured(tracked.stream)) return false;
  std::vector<CUevent>& spare = spare_of(tracked);
  CUevent event = nullptr;
  if (!spare.empty()) {
    event = spare.back();
    spare.pop_back();
  } else {
    const CUresult result = driver_.event_create(&event, CU_EVENT_DISABLE_TIMING);
    health_.answered("cuEventCreate", result);
    if (result != CUDA_SUCCESS) return false;
  }
  uint64_t epoch = tracked.open.fetch_add(1, std::memory_order_seq_cst);
  const CUresult result =
      FIRN_CANARY(1) ? CUDA_SUCCESS : driver_.event_record(event, tracked.stream);
  if (!about_captures(result)) health_.answered("cuEventRecord", result);
  if (result != CUDA_SUCCESS) {
    spare.push_back(event);
    return false;  // the number is spent; a later event closes this epoch too
  }
  // A capture that has begun meanwhile may contain the event: querying it would spoil the capture.
  if (captured(tracked.stream)) {
    if (driver_.event_destroy(event) != CUDA_SUCCESS) unwanted_.push_back(event);
    return false;
  }
  tracked.closed.push_back({epoch, event});  // (may throw: then no event is known to lie behind it)
  tracked.recorded = epoch;
  ++pending_;
  return use.epoch() <= epoch;
}

Result<void> Streams::order(unsigned index, Use use) {
  if (over(use) || use.stream() == index) return {};
  if (health_.dead()) return health_.error();
  const bool closed = close(use);
  if (over(use)) return {};
  // A graph knows nothing of work outside itself: a capture that were to wait would be invalid.
  if (closed && !no_handle(*tracked_[index]) && !captured(handle(index))) {
    for (const Closed& later : tracked_[use.stream()]->closed) {
      if (later.epoch < use.epoch()) continue;
      OtherContext other(driver_, tracked_[index]->context);  // whose default stream it may be
      if (driver_.stream_wait_event(handle(index), later.event, 0) == CUDA_SUCCESS) return {};
      break;
    }
  }
  return make_error(Code::busy, 0, "no event can be had behind its work now");
}

bool Streams::ask(Use use) {
  Tracked& tracked = *tracked_[use.stream()];
  if (over(use)) return true;
  if (health_.dead() || no_handle(tracked)) return false;
  OtherContext other(driver_, tracked.context);
  if (captured(tracked.stream)) return false;
  // The number first, so that everything at or below it was enqueued before the question.
  const uint64_t epoch = tracked.open.fetch_add(1, std::memory_order_seq_cst);
  const CUresult result = driver_.stream_query(tracked.stream);
  if (result != CUDA_ERROR_NOT_READY && !about_captures(result))
    health_.answered("cuStreamQuery", result);
  if (result != CUDA_SUCCESS) return false;
  tracked.done.store(epoch, std::memory_order_release);
  return true;
}

bool Streams::poll() {
  bool any = false;
  pause_ -= pause_ > 0;
  for (unsigned i = 0; pending_ > 0 && i < count(); ++i) {
    Tracked& tracked = *tracked_[i];
    while (!tracked.closed.empty() && !health_.dead()) {
      const CUresult result = driver_.event_query(tracked.closed.front().event);
      if (result == CUDA_ERROR_NOT_READY || about_captures(result)) break;
      health_.answered("cuEventQuery", result);
      if (result != CUDA_SUCCESS && !FIRN_CANARY(3)) break;
      if (tracked.closed.front().epoch > tracked.done.load(std::memory_order_relaxed))
        tracked.done.store(tracked.closed.front().epoch, std::memory_order_release);
      spare_of(tracked).push_back(tracked.closed.front().event);
      tracked.closed.pop_front();
      --pending_;
      any = true;
    }
  }
  return any;
}

Result<void> Streams::wait(Use use) {
  if (over(use)) return {};
  if (health_.dead()) return health_.error();
  Tracked& tracked = *tracked_[use.stream()];
  if (close(use)) {
    for (const Closed& closed : tracked.closed) {
      if (closed.epoch < use.epoch()) continue;
      CUresult result = driver_.event_synchronize(closed.event);
      if (result != CUDA_SUCCESS) return health_.failed("cuEventSynchronize", result);
      // Known from here, whatever a query would answer now.
      tracked.done.store(closed.epoch, std::memory_order_release);
      return {};
    }
    if (over(use)) return {};
  }
  OtherContext other(driver_, tracked.context);
  CUresult answer = CUDA_SUCCESS;
  if (tracked.may_end.load(std::memory_order_acquire) || captured(tracked.stream, &answer)) {
    if (answer != CUDA_SUCCESS && !about_captures(answer))
      return health_.failed("cuStreamIsCapturing", answer);
    return make_error(Code::driver, 0,
                      tracked.may_end.load(std::memory_order_acquire)
                          ? "the stream may have ended: Firn cannot wait for it alone"
                          : "a capture is under way: Firn cannot wait for its work");
  }
  // No event to be had: raise the number first, so that everything at or below it was enqueued
  // before the stream is waited for.
  uint64_t epoch = tracked.open.fetch_add(1, std::memory_order_seq_cst);
  CUresult result = driver_.stream_synchronize(tracked.stream);
  if (result != CUDA_SUCCESS) return health_.failed("cuStreamSynchronize", result);
  tracked.done.store(epoch, std::memory_order_release);
  return {};
}

}  // namespace firn
