// The engine's end: everything in flight is waited for, and all is given back to the driver; or, of
// a dead device or after a fork, it is left as it is.
#include "allocator/engine/engine_impl.h"
#include "firn/canary.h"

namespace firn {

EngineImpl::~EngineImpl() {
  if (abandoned_ || !arena_ || !transfers_.started()) {
    abandon();
    return;
  }
  Entered context(*this);
  bool usable = false;
  try {
    usable = static_cast<bool>(can_use(context));
  } catch (const std::bad_alloc&) {  // not even for the error's words
  }
  Lock lock(mutex_);
  if (usable && settle_all(lock)) {
    give_all(lock);
    if (!health_.dead()) return;  // else something is mapped still
  }
  // A dead device's memory ends with its context; but the store may still use ours.
  while (transfers_.requesting()) {
    (void)movement_.reap_store();
    if (transfers_.requesting()) wait(lock, poll_ns);
  }
  abandon();
}

/// Waits for everything in flight. False: the device is dead.
bool EngineImpl::settle_all(Lock& lock) {
  drop_births();
  mapper_.drop_claims();
  while (!host_uses_.empty()) finish_host_use(host_uses_.begin()->first);
  for (Block* block : std::vector<Block*>(movement_.spilling())) movement_.keep(*block);
  while (transfers_.requesting() && !health_.dead() && !FIRN_CANARY(35)) {
    pump_locked();
    if (transfers_.requesting()) wait(lock, poll_ns);
  }
  // If that is refused for good, the program's work may go on, and memory stays as it is.
  CUresult result = CUDA_SUCCESS;
  for (int attempt = 0; attempt < 3 && !health_.dead(); ++attempt) {
    result = driver_.ctx_synchronize();
    if (result == CUDA_SUCCESS) break;
    (void)health_.failed("cuCtxSynchronize", result);
  }
  if (result != CUDA_SUCCESS) health_.end("cuCtxSynchronize", result);
  while (!health_.dead() && transfers_.copying()) {
    transfers_.wait_for_copies();
    movement_.reap_copies();
  }
  while (movement_.sums().taking()) wait(lock, poll_ns);
  movement_.sums().drop();
  return !health_.dead();
}

/// Gives everything back to the driver; nothing is in flight.
void EngineImpl::give_all(Lock& lock) {
  for (Block* block : live_) {
    movement_.drop_copies(*block);
    unmap_spans(*block);
  }
  (void)carry_out_unmappings(lock);
  for (const auto& region : placed_.regions())
    while (!region->frames().empty()) {
      const uint64_t address = region->frames().begin()->first;
      std::vector<Frame> frames{region->unmapped(address)};
      mapper_.unmap(address, frames);
      frames_.give(frames);
    }
  for (uint32_t i = 0; i < small_blocks_.segments(); ++i)
    if (Segment& segment = small_blocks_.segment(i); !segment.frames.empty()) {
      mapper_.unmap(segment.address, segment.frames);
      frames_.give(segment.frames);
    }
  transfers_.end();
  host_.unregister();  // while the context is current
}

void EngineImpl::abandon() {
  abandoned_ = true;
  transfers_.abandon();
  frames_.abandon();
  host_.abandon();
  streams_.abandon();
  if (arena_) arena_->abandon();
}

}  // namespace firn
