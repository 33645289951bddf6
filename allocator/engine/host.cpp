// Host memory as a place to keep, when every next use is known: which copies go on to the store,
// which come back from there ahead of their use, and which give way. The same decision as for the
// device (lifetimes/decide.h), one level up: device and host memory together are the memory, the
// store is elsewhere.
#include <algorithm>

#include "allocator/engine/engine_impl.h"
#include "firn/canary.h"

namespace firn {

/// Host memory that is not planned for keeping: for transfers, for copies made ahead of leaving,
/// and for gaps between pieces of different sizes.
uint64_t EngineImpl::host_reserve_bytes() const {
  const auto spare = static_cast<uint64_t>(
      spare_fraction_ * static_cast<double>(frames_.budget_granules() * granule_bytes));
  return 4 * in_flight_most() + spare + host_.budget() / host_gaps_part;
}

/// Do transfers only pass through host memory, with no room to keep anything?
bool EngineImpl::host_is_passage() const { return host_.budget() <= host_reserve_bytes(); }

/// How much of the block is on the device or in host memory, and how much of that is in the store
/// too, or about to be written there.
void EngineImpl::lay_out_in_memory(const Block& block, lifetimes::Item& item) const {
  item.on_device = std::min<uint64_t>(block.pages, item.size);  // less, in a planned place
  item.clean = 0;
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

/// Decides what is to be written to the store and read from it, for all memory together.
void EngineImpl::replan_host(uint64_t capacity, uint64_t spare) {
  const auto& blocks = scratch_.blocks;
  for (size_t i = 0; i < blocks.size(); ++i) lay_out_in_memory(*blocks[i], scratch_.items[i]);
  const uint64_t keeps =
      (host_.budget() - std::min(host_.budget(), host_reserve_bytes())) / page_bytes;
  // (SSDs can read at all times; what is used last would come from them all at once.)
  const lifetimes::Decision decision =
      lifetimes::decide({capacity + keeps, spare, history_->period(), scratch_.items,
                         scratch_.steps, false, lifetimes::Prefer::written_last});
  plan_.memory_window = history_->now() + decision.window;
  for (uint32_t i : decision.fetch) plan_.reads.push_back(plan_entry(decision, i, 0));
  for (auto [i, pages, is_spare] : decision.leaving) {
    plan_.writes.push_back(plan_entry(decision, i, pages));
    plan_.writes.back().spare = is_spare;
  }
}

/// The next piece in host memory that is to be in the store, from each block's tail.
bool EngineImpl::next_planned_write(PieceRef& ref) {
  if (plan_.write_looked) return false;
  for (size_t w = plan_.written; w < plan_.writes.size(); ++w) {
    const Plan::Entry& entry = plan_.writes[w];
    Block& block = *entry.block;
    bool over = !meant(entry);
    uint64_t covered = 0;
    for (size_t i = block.pieces.size(); i-- > 0 && !over;) {
      const Piece& piece = block.pieces[i];
      if (piece.slot) covered += (piece.bytes + page_bytes - 1) / page_bytes;
      over = covered >= entry.pages;
    }
    if (over) {
      if (w == plan_.written) ++plan_.written;
      continue;
    }
    // A spare write waits until nothing else is written.
    if (entry.spare && transfers_.writing_bytes() > 0) return false;
    for (size_t i = block.pieces.size(); i-- > 0;) {
      ref = piece_ref(block, static_cast<uint32_t>(i));
      if (HostCopies::is_unwritten(ref)) return true;
    }
  }
  plan_.write_looked = true;
  return false;
}

/// Reads pieces that are only in the store into host memory, in the order of next use, where they
/// are worth more there than what it holds.
bool EngineImpl::read_ahead() {
  bool any = false;
  uint64_t reading = transfers_.reading_bytes();
  for (; plan_.read < plan_.reads.size(); ++plan_.read) {
    const Plan::Entry& entry = plan_.reads[plan_.read];
    Block& block = *entry.block;
    if (!meant(entry)) continue;
    for (uint32_t i = 0; i < block.pieces.size(); ++i) {
      const Piece& piece = block.pieces[i];
      if (piece.on_device || piece.host || !piece.slot_valid || piece.reading) continue;
      if (clock_.now_ns() < piece.read_again_ns) continue;  // it failed a moment ago
      if (reading >= in_flight_most()) return any;
      // Clear of what room_to_clean() keeps free, or it would be filled and emptied for ever.
      while (host_.used() + 4 * in_flight_most() > host_.budget())
        if (!host_copies_.drop_planned(entry.next_use, plan_.window)) return any;
      if (!start_read(block, i)) return any;
      reading += piece.bytes;
      any = true;
    }
  }
  return any;
}

/// As much as keeps a channel busy, and little enough to leave host memory for others.
uint64_t EngineImpl::in_flight_most() const {
  return std::min(4 * options_.span_bytes, host_.budget() / 8);
}

/// Is there staging to spare, so that copies made ahead take none from those that wait for it?
bool EngineImpl::room_to_clean() {
  while (host_.used() + 2 * in_flight_most() > host_.budget())
    if (!host_copies_.drop_planned(plan_.memory_window, plan_.window)) return false;
  return true;
}

bool EngineImpl::give_host_back(bool pressed) {
  if (abandoned_) return false;
  Entered context(*this);
  if (!can_use(context)) return false;
  std::optional<HostTier::Region> region;
  {
    Lock lock(mutex_);
    if (!pressed) {
      if (host_.closing()) stuck_ = false;
      host_.reopen();
      return false;
    }
    (void)host_.close_one();
    if (!host_.closing()) return false;
    host_copies_.drop_closed(live_);  // (The rest is written.)
    region = host_.take_closed();
  }
  if (!region) return false;
  host_.give(std::move(*region));
  clock_.notify();
  Lock lock(mutex_);
  trouble("host memory is given back: the machine, or the container, is short of it "
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
    if (there) stuck_ = false;
    host_due_.store(host_.ahead_due(), std::memory_order_release);
  }
  clock_.notify();
  return there;
}

}  // namespace firn
