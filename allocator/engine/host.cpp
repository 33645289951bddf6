// Host memory as a tier to keep, when every next use is known: which copies go on to the store,
// which come back from there ahead of their use, and which give way. The same decision as for the
// device (lifetimes/decide.h), one level up: device and host memory together are the memory, the
// store is elsewhere.
#include <algorithm>

#include "allocator/engine/tiers.h"
#include "firn/canary.h"

namespace firn {

/// Bytes that copies made ahead of leaving may take of host memory.
uint64_t EngineImpl::spare_bytes() const {
  return static_cast<uint64_t>(choice_.fraction() *
                               static_cast<double>(frames_.budget_granules() * granule_bytes));
}

/// Do transfers only pass through host memory, with no room to keep anything?
bool EngineImpl::host_is_passage() const {
  return host_.budget() <=
         lifetimes::host_reserve(options_.span_bytes, host_.budget(), spare_bytes());
}

/// The items of the period as they are in the device's and host memory together: how much of each
/// is in either, and of that in the store too, or about to be written there.
void EngineImpl::lay_out_in_memory(const Outlook& outlook,
                                   std::vector<lifetimes::Item>& items) const {
  items = outlook.items();
  for (size_t i = 0; i < outlook.blocks().size(); ++i) {
    const Block& block = *outlook.blocks()[i].block;
    lifetimes::Item& item = items[i];
    item.on_device = std::min<uint64_t>(block.pages, item.size);  // less, in a planned place
    uint64_t away = 0, stored = 0;
    for (const Piece& piece : block.pieces) {
      const bool here = piece.host || block.span_of(piece).mapped();
      if (!here)
        away += piece.bytes;
      else if (piece.slot)
        stored += piece.bytes;
    }
    item.on_device -= away / page_bytes;
    item.clean = std::min(item.on_device, stored / page_bytes);
  }
}

uint64_t EngineImpl::in_flight_most() const {
  return lifetimes::in_flight_most(options_.span_bytes, host_.budget());
}

bool EngineImpl::give_host_back(bool pressed) {
  if (abandoned_) return false;
  Entered context(*this);
  if (!can_use(context)) return false;
  std::optional<HostTier::Extent> extent;
  {
    Lock lock(mutex_);
    if (!pressed) {
      if (host_.closing()) movement_.room_came();
      host_.reopen();
      return false;
    }
    (void)host_.close_one();
    if (!host_.closing()) return false;
    movement_.host_copies().drop_closed(live_);  // (The rest is written.)
    extent = host_.take_closed();
  }
  if (!extent) return false;
  host_.give(std::move(*extent));
  clock_.notify();
  Lock lock(mutex_);
  trouble("Firn gives host memory back because the machine or the container is short of it "
          "(firn_host, memory.max)");
  return true;
}

bool EngineImpl::prepare_host() {
  if (abandoned_) return false;
  Entered context(*this);
  if (!can_use(context)) return false;
  HostTier::Ahead ahead;
  {
    Lock lock(mutex_);
    ahead = host_.begin_ahead();
    host_due_.store(false, std::memory_order_release);
  }
  if (ahead.bytes == 0) return false;
  host_.prepare(ahead);
  const bool there = ahead.memory.has_value();
  {
    Lock lock(mutex_);
    host_.end_ahead(std::move(ahead));
    if (there) movement_.room_came();
    host_due_.store(host_.ahead_due(), std::memory_order_release);
  }
  clock_.notify();
  return there;
}

}  // namespace firn
