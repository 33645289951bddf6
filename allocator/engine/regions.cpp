// Regions: the memory of planned places (places.cpp), mapped as places are first used, taken apart
// where nothing lives when others need it; and their statistics and checks.
#include <algorithm>

#include "allocator/base/check.h"
#include "allocator/engine/engine_impl.h"

namespace firn {

Region* EngineImpl::region_of(unsigned stream) const {
  for (const auto& region : region_owner_)
    if (region->stream() == stream) return region.get();
  return nullptr;
}

/// Maps frames where the region has none, as far as they are available.
bool EngineImpl::fill_region(Region& region, uint64_t begin, uint64_t end) {
  const size_t runs = region.runs().size();
  bool filled = true;
  for (const Region::Run& gap : region.gaps(begin, end)) {
    Reservation room = frames_.reserve(gap.granules);
    filled = room.granules() == gap.granules;
    if (!filled) break;
    Result<std::vector<Frame>> frames = frames_.take(std::move(room), large_frame_granules);
    filled = static_cast<bool>(frames);
    if (!filled) break;
    if (Result<void> mapped = mapper_.map(gap.begin, *frames); !mapped) {
      frames_.give(*frames);
      filled = false;
      break;
    }
    uint64_t at = gap.begin;
    for (const Frame& frame : *frames) {
      region.mapped(at, frame);
      count_region_bytes(true, at, frame.bytes(), region.stream());
      at += frame.bytes();
    }
  }
  count_region_runs(runs, region);
  return filled;
}

void EngineImpl::count_region_bytes(bool made, uint64_t address, uint64_t bytes, unsigned stream) {
  if (made)
    reserved_tally_[1].add(static_cast<int64_t>(bytes));
  else
    reserved_tally_[1].remove(static_cast<int64_t>(bytes));
  tell({made ? MemoryEvent::Kind::segment_made : MemoryEvent::Kind::segment_given,
        reinterpret_cast<void*>(address), bytes, streams_.handle(stream)});
}

/// A segment, to statistics, is a stretch of frames side by side.
void EngineImpl::count_region_runs(size_t before, const Region& region) {
  const auto more = static_cast<int64_t>(region.runs().size()) - static_cast<int64_t>(before);
  if (more > 0) segment_tally_[1].add(more);
  if (more < 0) segment_tally_[1].remove(-more);
  segment_peak_.raise(segment_tally_[0].current() + segment_tally_[1].current());
}

/// Unmaps unused frames of regions whose uses are over, until so many granules are available;
/// records events behind the others. Returns the pages of those: they will come.
uint64_t EngineImpl::reclaim_regions(uint64_t granules) {
  uint64_t waiting = 0;
  for (const auto& owned : region_owner_) {
    Region& region = *owned;
    collect_places(region);
    if (region.mapped_granules() == 0) continue;
    std::erase_if(region.others, [&](Use use) { return streams_.over(use); });
    for (const Use use : region.others) (void)streams_.close(use);
    const size_t runs = region.runs().size();
    std::vector<uint64_t> addresses;
    for (const auto& [address, mapped] : region.frames()) addresses.push_back(address);
    for (size_t at = addresses.size(); at-- > 0 && frames_.available() < granules;) {
      const Region::Mapped& mapped = region.frames().at(addresses[at]);
      if (!region.idle(addresses[at])) continue;
      if (!region.others.empty() || !streams_.over(mapped.last)) {
        if (!streams_.over(mapped.last)) (void)streams_.close(mapped.last);
        waiting += mapped.frame.granules * granule_pages;
        continue;
      }
      std::vector<Frame> frames{region.unmapped(addresses[at])};
      mapper_.unmap(addresses[at], frames);
      count_region_bytes(false, addresses[at], frames.front().bytes(), region.stream());
      frames_.give(frames);
    }
    count_region_runs(runs, region);
  }
  return waiting;
}

/// The stream's region: addresses for as much as the budget, which cost nothing.
Region* EngineImpl::make_region(unsigned stream) {
  if (Region* region = region_of(stream)) return region;
  if (region_owner_.size() == regions_most) return nullptr;
  const auto granules = static_cast<uint32_t>(frames_.budget_granules());
  const auto address = arena_->take(granules);
  if (!address) return nullptr;
  region_owner_.push_back(
      std::make_unique<Region>(*address, granules, static_cast<uint16_t>(stream)));
  const auto index = static_cast<uint32_t>(region_owner_.size() - 1);
  regions_[index].store(region_owner_.back().get(), std::memory_order_release);
  arena_->set(*address, granules, region_mark | index);
  return region_owner_.back().get();
}

/// Fills in the stretch of memory that blocks in places share; lists stretches without any.
void EngineImpl::add_regions(std::vector<BlockInfo>& blocks) const {
  for (const auto& region : region_owner_) {
    for (const Region::Run& run : region->runs()) {
      const uint64_t bytes = run.granules * granule_bytes;
      bool used = false;
      for (BlockInfo& block : blocks) {
        if (reinterpret_cast<uint64_t>(block.base) - run.begin >= bytes) continue;
        block.segment = reinterpret_cast<void*>(run.begin);
        block.segment_bytes = bytes;
        used = true;
      }
      if (used) continue;
      BlockInfo idle;
      idle.base = idle.segment = reinterpret_cast<void*>(run.begin);
      idle.bytes = idle.capacity = idle.segment_bytes = bytes;
      idle.stream = streams_.handle(region->stream());
      idle.state = state_names[static_cast<int>(State::ready)];
      blocks.push_back(idle);
    }
  }
}

/// Free pieces between blocks in places, in stretches with any in use: their number and bytes.
std::pair<int64_t, int64_t> EngineImpl::region_gaps() const {
  int64_t pieces = 0, bytes = 0;
  const auto active = [this](const Block& block) {
    return block.state() != State::ready ||
           std::find(deferred_.begin(), deferred_.end(), &block) != deferred_.end();
  };
  for (const auto& region : region_owner_)
    for (const Region::Run& run : region->runs()) {
      const uint64_t end = run.begin + run.granules * granule_bytes;
      uint64_t at = run.begin;
      bool any = false;
      const auto gap_until = [&](uint64_t next) {
        pieces += next > at;
        bytes += static_cast<int64_t>(next - at);
      };
      for (auto it = region->used().lower_bound(run.begin);
           it != region->used().end() && it->first < end; ++it) {
        if (!active(*it->second)) continue;
        any = true;
        gap_until(it->first);
        at = it->first + it->second->place_bytes;
      }
      if (any) gap_until(end);
    }
  return {pieces, bytes};
}

/// Would there be room if blocks in planned places had frames of their own, and could leave?
bool EngineImpl::places_in_way(uint64_t granules) const {
  if (spilling_stopped_) return false;
  uint64_t held = 0, wanted = granules - std::min(granules, frames_.available());
  if (wanted == 0) return false;  // there is room, which the device refuses
  for (const auto& region : region_owner_)
    for (const auto& [address, mapped] : region->frames())
      if (!region->idle(address)) held += mapped.frame.granules;
  uint64_t in_host = 0;  // pages
  for (const Block* block : live_)
    if (block->word.load(std::memory_order_relaxed) & word::zero_copy)
      in_host += block->mapped - block->device;
  wanted += (in_host + granule_pages - 1) / granule_pages;
  return wanted <= held;
}

/// The granules that regions hold.
uint64_t EngineImpl::check_regions() const {
  uint64_t granules = 0;
  for (const auto& region : region_owner_) {
    uint64_t held = 0, end = 0;
    for (const auto& [address, mapped] : region->frames()) {
      FIRN_CHECK(address >= end, "frames overlap at %llx", (unsigned long long)address);
      end = address + mapped.frame.bytes();
      held += mapped.frame.granules;
    }
    FIRN_CHECK(held == region->mapped_granules(), "%llu granules, %llu counted",
               (unsigned long long)held, (unsigned long long)region->mapped_granules());
    granules += held;
    end = 0;
    for (const auto& [address, block] : region->used()) {
      FIRN_CHECK(address == block->address && address >= end, "places overlap at %llx",
                 (unsigned long long)address);
      end = address + block->place_bytes;
      const State state = block->state();
      FIRN_CHECK(state == State::resident || state == State::ready, "the place at %llx is %s",
                 (unsigned long long)address, state_names[static_cast<int>(state)]);
      FIRN_CHECK(region->lacking(address, end) == 0, "the place at %llx is not mapped",
                 (unsigned long long)address);
      FIRN_CHECK(region->at(address, table_) == block && region->at(end - 1, table_) == block,
                 "the block at %llx is not found", (unsigned long long)address);
    }
  }
  return granules;
}

}  // namespace firn
