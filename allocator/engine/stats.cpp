// Statistics, and the walk that checks every invariant.
#include <algorithm>

#include <fmt/format.h>

#include "allocator/base/sizes.h"
#include "allocator/engine/baseline.h"
#include "allocator/engine/hot.h"
#include "firn/check.h"

namespace firn {

uint64_t EngineImpl::budget_bytes() const {
  Lock lock(mutex_);
  return frames_.budget_granules() * granule_bytes;
}

namespace {
void add(EngineStats& s, const Moved& moved, const Failed& failed) {
  s.spilled_bytes = moved.spilled_bytes;
  s.clean_dropped_bytes = moved.clean_dropped_bytes;
  s.dropped_bytes = moved.dropped_bytes;
  s.faults = moved.faults;
  s.faulted_bytes = moved.faulted_bytes;
  s.prefetched_bytes = moved.prefetched_bytes;
  s.forwarded_bytes = moved.forwarded_bytes;
  s.store_written_bytes = moved.store_written_bytes;
  s.store_read_bytes = moved.store_read_bytes;
  s.summed_bytes = moved.summed_bytes;
  s.verified_bytes = moved.verified_bytes;
  s.lost_blocks = failed.lost_blocks;
  s.host_corrupt = failed.host_corrupt;
  s.device_corrupt = failed.device_corrupt;
  s.unseen_writes = failed.unseen_writes;
}
}  // namespace

EngineStats EngineImpl::stats() const {
  Lock lock(mutex_);
  EngineStats s = counted_;
  const uint64_t now = open_waits_.empty() ? 0 : clock_.now_ns();
  for (uint64_t begun : open_waits_) s.stall_ns += now - begun;
  s.device = options_.device;
  add(s, movement_.moved(), movement_.failed());
  s.budget_bytes = frames_.budget_granules() * granule_bytes;
  s.device_bytes = frames_.held_granules() * granule_bytes;
  s.peak_device_bytes = frames_.peak_granules() * granule_bytes;
  const Tally allocated = hot_.allocated_bytes().all();
  s.allocated_bytes = static_cast<uint64_t>(allocated.current);
  s.peak_allocated_bytes = static_cast<uint64_t>(allocated.peak);
  for (const Block* block : live_) {
    s.resident_bytes += block->mapped * page_bytes;
    if (block->mapped == block->pages)
      s.rounding_bytes += block->mapped_bytes() - block->requested;
    for (const Piece& piece : block->pieces) {
      if (piece.host_valid) s.hosted_bytes += piece.bytes;
      if (piece.slot_valid) s.nvme_bytes += piece.bytes;
    }
  }
  for (const auto& region : placed_.regions()) {
    s.region_bytes += region->mapped_granules() * granule_bytes;
    s.region_used_bytes += region->used_bytes();
    for (const auto& [address, block] : region->used())
      s.rounding_bytes += block->place_bytes - std::min<uint64_t>(block->requested,
                                                                  block->place_bytes);
  }
  s.resident_bytes += s.region_used_bytes;
  if (placed_.active()) {
    s.places = placed_.places();
    s.region_planned_bytes = placed_.planned_bytes();
  }
  s.placed = placed_.placed();
  s.places_missed = planner_.missed();
  s.maps_without_places = planner_.maps_without_places();
  s.maps_with_places = planner_.maps_with_places();
  s.waste_without_places = planner_.waste_without_places();
  s.waste_with_places = planner_.waste_with_places();
  s.recipes = recipes_.size();
  s.gap_bytes = frames_.shared().free_pages() * page_bytes;
  s.host_used_bytes = host_.used();
  s.in_flight_bytes = transfers_.in_flight_bytes();
  s.touches = tick();
  s.spare_fraction = choice_.fraction();
  s.period_found = plan_.valid || (options_.baseline && options_.baseline->has_plan());
  using lifetimes::Channel;
  const lifetimes::Bandwidths& measured = transfers_.bandwidths();
  s.measured_host_out_bytes_s = measured.bytes_s(Channel::host_out);
  s.measured_host_in_bytes_s = measured.bytes_s(Channel::host_in);
  s.measured_store_write_bytes_s = measured.bytes_s(Channel::store_write);
  s.measured_store_read_bytes_s = measured.bytes_s(Channel::store_read);
  s.watching = watching_.load(std::memory_order_relaxed);
  s.maps = mapper_.maps();
  s.unmaps = mapper_.unmaps();
  s.frames_created = frames_.created();
  s.frames_released = frames_.released();
  for (auto [to, from] : {std::pair(&s.program_driver, &driver_times_.program),
                          std::pair(&s.service_driver, &driver_times_.service)}) {
    to->ns = from->all_ns.load(std::memory_order_relaxed);
    to->locked_ns = from->locked_ns.load(std::memory_order_relaxed);
    to->lock_waited_ns = from->waited_ns.load(std::memory_order_relaxed);
  }
  s.pinned = pinned_bytes();
  if (health_.dead()) s.trouble.push_back(health_.error().text);
  if (!host_.trouble().empty()) s.trouble.push_back(host_.trouble());
  return s;
}

PoolTallies EngineImpl::tallies() const {
  Lock lock(mutex_);
  PoolTallies t;
  hot_.allocation().get(t.allocation);
  hot_.allocated_bytes().get(t.allocated_bytes);
  hot_.requested_bytes().get(t.requested_bytes);
  hot_.waiting.get(hot_.allocation(), t.active);
  hot_.waiting_bytes.get(hot_.allocated_bytes(), t.active_bytes);
  auto sum = [](Tally all[3]) {
    all[0] = {all[1].current + all[2].current, 0, all[1].allocated + all[2].allocated,
              all[1].freed + all[2].freed};
  };
  for (int pool = 0; pool < 2; ++pool) {
    t.segment[pool + 1] = segment_tally_[pool].get();
    t.reserved_bytes[pool + 1] = reserved_tally_[pool].get();
  }
  sum(t.segment);
  sum(t.reserved_bytes);
  t.segment[0].peak = segment_peak_.get();
  // The bytes reserved from the device are frames, whichever pool they serve.
  t.reserved_bytes[0].current = static_cast<int64_t>(frames_.held_granules() * granule_bytes);
  t.reserved_bytes[0].peak = static_cast<int64_t>(frames_.peak_granules() * granule_bytes);
  parts_.add_to(t);
  add_inactive(t);
  return t;
}

void EngineImpl::reset_peaks() {
  Lock lock(mutex_);
  hot_.reset_peaks();
  for (int pool = 0; pool < 2; ++pool) {
    segment_tally_[pool].reset_peak();
    reserved_tally_[pool].reset_peak();
  }
  segment_peak_.reset(segment_tally_[0].current() + segment_tally_[1].current());
  parts_.reset_peaks();
  frames_.reset_peak();
}

Failures EngineImpl::failures() const {
  const Failed& failed = movement_.failed();
  return {failed.lost_blocks, failed.host_corrupt + failed.device_corrupt, failed.unseen_writes};
}

uint64_t EngineImpl::zero_copy_bytes() const {
  Lock lock(mutex_);
  return counted_.zero_copy_bytes;
}

void EngineImpl::reset_totals() {
  Lock lock(mutex_);
  hot_.reset_totals();
  for (int pool = 0; pool < 2; ++pool) {
    segment_tally_[pool].reset_totals();
    reserved_tally_[pool].reset_totals();
  }
  parts_.reset_totals();
  counted_.oom_count = counted_.retry_count = 0;
}

void EngineImpl::count_segment(bool made, bool large, uint64_t address, uint64_t bytes,
                               unsigned stream) {
  if (made) {
    segment_tally_[large].add(1);
    reserved_tally_[large].add(static_cast<int64_t>(bytes));
    segment_peak_.raise(segment_tally_[0].current() + segment_tally_[1].current());
  } else {
    segment_tally_[large].remove(1);
    reserved_tally_[large].remove(static_cast<int64_t>(bytes));
  }
  tell({made ? MemoryEvent::Kind::segment_made : MemoryEvent::Kind::segment_given,
        reinterpret_cast<void*>(address), bytes, streams_.handle(stream)});
}

std::vector<BlockInfo> EngineImpl::blocks() const {
  Lock lock(mutex_);
  const auto waits = [this](const Block& block) FIRN_HELD {
    return std::find(deferred_.begin(), deferred_.end(), &block) != deferred_.end();
  };
  std::vector<BlockInfo> out;
  for (uint32_t i = 0; i < table_.size(); ++i) {
    const Block& block = table_[i];
    uint64_t w = block.word.load();
    if (word::state(w) == State::free || block.segment != 0) continue;
    const bool idle = word::state(w) == State::ready;
    if (block.place_bytes != 0 && idle && !waits(block)) continue;
    BlockInfo info = describe_block(block, w);
    info.waiting = waits(block);
    info.stays = block.place_bytes != 0 ? in_places_words : why_it_stays(block);
    out.push_back(info);
  }
  add_regions(out);
  return out;
}

void EngineImpl::check() const {
  Lock lock(mutex_);
  FrameCount count = mapper_.in_hand();
  for (size_t i = 0; i < live_.size(); ++i) {
    const Block& block = *live_[i];
    auto address = (unsigned long long)block.address;
    FIRN_CHECK(block.live_at == i, "block %llx", address);
    FIRN_CHECK(arena_->at(block.address) ==
                   (block.segment != 0 ? SmallBlocks::segment_mark | (block.segment - 1)
                                       : block.index + 1),
               "block %llx", address);
    uint64_t w = block.word.load();
    State state = word::state(w);
    FIRN_CHECK(state != State::free || block.dropped, "block %llx", address);
    uint64_t mapped = 0, device = 0;
    for (const Span& span : block.spans) {
      uint64_t held = 0;
      for (const Frame& frame : span.frames) {
        held += frame.pages();
        device += frame.host ? 0 : frame.pages();
      }
      count.add(span.frames);
      FIRN_CHECK(!span.mapped() || held == span.pages || span.frames.front().host,
                 "block %llx span %u: %llu of %u", address, span.begin, (unsigned long long)held,
                 span.pages);
      if (span.mapped()) mapped += span.pages;
      FIRN_CHECK(!span.leaving || (span.mapped() && state == State::spilling), "block %llx",
                 address);
    }
    FIRN_CHECK(mapped == block.mapped && device == block.device, "block %llx", address);
    FIRN_CHECK(bool(w & word::zero_copy) == (mapped != device),
               "block %llx (%s): %llu pages, %llu of them on the device", address,
               state_names[static_cast<int>(state)], (unsigned long long)mapped,
               (unsigned long long)device);
    if (Recipes::away(block))
      FIRN_CHECK(recipes_.of(block) && !(w & word::copies), "block %llx: no way back", address);
    FIRN_CHECK(!block.by_recipe || recipes_.of(block), "block %llx: chosen without a recipe",
               address);
    FIRN_CHECK(!block.kept || (w & word::freed), "block %llx is kept, and not freed", address);
    bool whole = state == State::ready || state == State::resident;
    FIRN_CHECK(!whole || mapped == block.pages, "block %llx (%s): %llu pages of %u", address,
               state_names[static_cast<int>(state)], (unsigned long long)mapped, block.pages);
    for (const Piece& piece : block.pieces) {
      FIRN_CHECK(!piece.host_valid || piece.host, "block %llx", address);
      FIRN_CHECK(!piece.slot_valid || piece.slot, "block %llx", address);
      if (state == State::hosted || state == State::spilled || state == State::faulting ||
          state == State::spilling)
        FIRN_CHECK(piece.elsewhere() || piece.on_device,
                   "block %llx has no copy at %llu", address, (unsigned long long)piece.offset);
      FIRN_CHECK(!piece.on_device || block.span_of(piece).mapped(),
                 "block %llx at %llu", address, (unsigned long long)piece.offset);
      if (state == State::spilled) FIRN_CHECK(piece.slot_valid, "block %llx", address);
      if (piece.elsewhere() || piece.copying_out)
        FIRN_CHECK(w & word::copies, "block %llx: copies without the flag", address);
    }
  }
  recipes_.check();
  for (uint32_t i = 0; i < small_blocks_.segments(); ++i)
    count.add(small_blocks_.segment(i).frames);
  const uint64_t shared_pages = count.shared_pages;
  const SharedFrames& shared = frames_.shared();
  FIRN_CHECK(shared_pages + shared.free_pages() == shared.count() * granule_pages,
             "%llu pages in %llu shared frames, %llu free", (unsigned long long)shared_pages,
             (unsigned long long)shared.count(), (unsigned long long)shared.free_pages());
  const uint64_t granules =
      count.granules + placed_.check() + shared.count() + frames_.in_change();
  FIRN_CHECK(granules + frames_.free_granules() == frames_.held_granules(),
             "%llu granules in blocks, %llu free, %llu held", (unsigned long long)granules,
             (unsigned long long)frames_.free_granules(),
             (unsigned long long)frames_.held_granules());
  FIRN_CHECK(health_.dead() || frames_.held_granules() <= frames_.budget_granules(),
             "%llu held, budget %llu",
             (unsigned long long)frames_.held_granules(),
             (unsigned long long)frames_.budget_granules());
}

}  // namespace firn
