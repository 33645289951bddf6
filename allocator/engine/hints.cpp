// Hints: what the program says it uses soon, or not for long. (Those that are due: fault.cpp.)
#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "allocator/engine/hot.h"

namespace firn {

/// The next address behind `address`, where no live block is, at which one may be.
uint64_t EngineImpl::next_block(uint64_t address) const {
  const uint64_t granule_end = (address / granule_bytes + 1) * granule_bytes;
  const uint32_t number = arena_->at(address);
  if (number == 0) return granule_end;
  if (number & SmallBlocks::segment_mark) {
    const uint64_t unit = size_class::small_bytes(0);
    return (address / unit + 1) * unit;
  }
  if (number & region_mark) {
    const Region& region = *placed_.region(number & ~region_mark);
    const auto next = region.used().upper_bound(address);
    return next != region.used().end() ? next->first : region.base() + region.bytes();
  }
  const uint64_t begin = table_[number - 1].address;
  return begin > address ? begin : granule_end;
}

/// Calls `act` for the block that moves with each live one in the range, in order of addresses.
/// False: there is none.
template <class Act>
bool EngineImpl::each_in(const Addresses& range, Act&& act) {
  const uint64_t arena_end = arena_->base() + arena_->bytes();
  const uint64_t bytes = std::min(std::max<uint64_t>(range.bytes, 1), UINT64_MAX - range.base);
  const uint64_t end = std::min(range.base + bytes, arena_end);
  bool any = false;
  for (uint64_t at = std::max(range.base, arena_->base()); at < end;) {
    Block* block = live_at(reinterpret_cast<void*>(at), false);
    if (!block) {
      at = next_block(at);
      continue;
    }
    any = true;
    block = moved_with(block);
    act(*block, end);
    at = block->address + std::max<uint64_t>(block->mapped_bytes(), block->bytes);
  }
  return any;
}

/// The use behind which a hint is due that is given now; one that is over: at once. None: the
/// stream has no place for it, since it is captured, or the driver refuses an event.
std::optional<Use> EngineImpl::place_in(CUstream stream) {
  const int seen = see_stream(stream);
  if (seen < 0) return Use{};
  if (hints_.full()) return std::nullopt;  // (before an event is recorded for it)
  const auto index = static_cast<unsigned>(seen);
  streams_.used(index);
  if (streams_.may_end_known(index)) {
    // (An event that stood for all of such a stream's work would be a wait for the device.)
    if (streams_.captured(streams_.handle(index))) return std::nullopt;
    return Use{};
  }
  const Use now = streams_.now(index);
  if (streams_.ask(now) || streams_.close(now)) return now;
  return std::nullopt;
}

/// Nothing has to leave for the block, and nobody else waits for that room: it begins to come
/// before its place.
void EngineImpl::begin_early(const Hint& hint) {
  Block& block = *hint.block;
  const State state = block.state();
  if (state != State::hosted && state != State::spilled && state != State::faulting) return;
  if (waiting_ > 0 || !prefetches_.empty() || block.going > 0) return;
  const uint64_t wanted = pages_to_fetch(hint);
  if (wanted != 0 && prefetchable_pages(block, UINT64_MAX, hint.spans) == wanted)
    (void)claim_ahead(block, wanted, hint.spans.begin);
}

Result<void> EngineImpl::hint(Hint::Kind kind, std::span<const Addresses> ranges,
                              std::optional<CUstream> stream) {
  Entered context(*this);
  if (Result<void> usable = can_use(context); !usable) return usable;
  Lock lock(mutex_);
  const std::optional<Use> place = stream ? place_in(*stream) : Use{};
  (void)take_hints();  // given before this one, and due with it
  const Addresses* outside = nullptr;
  for (const Addresses& range : ranges) {
    const bool any = each_in(range, [&](Block& block, uint64_t end) FIRN_HELD {
      if (!place || block.pages == 0) return;
      const Hint hint{kind, &block, block.generation, spans_in(block, range.base, end),
                      block.use.load(std::memory_order_acquire)};
      if (streams_.over(*place)) return take_hint(hint);
      if (hints_.add(*place, hint) && kind == Hint::Kind::prefetch) begin_early(hint);
    });
    if (!any && !outside) outside = &range;
  }
  if (kind == Hint::Kind::prefetch) {
    run_prefetches();
  } else {
    pump_locked();
    (void)carry_out_unmappings(lock);
  }
  busy_.store(true, std::memory_order_relaxed);
  lock.unlock();
  clock_.notify();
  if (!outside) return {};
  return make_error(Code::invalid_argument, 0,
                    fmt::format("cannot {} {:#x}: its {} bytes are outside Firn's live blocks",
                                kind == Hint::Kind::cold ? "mark as cold" : "prefetch",
                                outside->base, outside->bytes));
}

Result<void> EngineImpl::prefetch(std::span<const Addresses> ranges, CUstream stream) {
  return hint(Hint::Kind::prefetch, ranges, stream);
}

Result<void> EngineImpl::cold(std::span<const Addresses> ranges, std::optional<CUstream> stream) {
  return hint(Hint::Kind::cold, ranges, stream);
}

}  // namespace firn
