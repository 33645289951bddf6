// Regions: the memory of planned places (blocks/placed_blocks.h), mapped as places are first used,
// taken apart where nothing lives when others need it; and their statistics.
#include <algorithm>

#include "allocator/engine/engine_impl.h"

namespace firn {

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
  for (const auto& owned : placed_.regions()) {
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
  if (Region* region = placed_.region_of(stream)) return region;
  if (placed_.regions().size() == PlacedBlocks::regions_most) return nullptr;
  const auto granules = static_cast<uint32_t>(frames_.budget_granules());
  const auto address = arena_->take(granules);
  if (!address) return nullptr;
  const uint32_t number = placed_.add_region(*address, granules, stream);
  arena_->set(*address, granules, region_mark | number);
  return placed_.region(number);
}

/// Fills in the stretch of memory that blocks in places share; lists stretches without any.
void EngineImpl::add_regions(std::vector<BlockInfo>& blocks) const {
  for (const auto& region : placed_.regions()) {
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

/// Would there be room if blocks in planned places had frames of their own, and could leave?
bool EngineImpl::places_in_way(uint64_t granules) const {
  if (spilling_stopped_) return false;
  uint64_t wanted = granules - std::min(granules, frames_.available());
  if (wanted == 0) return false;  // there is room, which the device refuses
  uint64_t in_host = 0;  // pages
  for (const Block* block : live_)
    if (block->word.load(std::memory_order_relaxed) & word::zero_copy)
      in_host += block->mapped - block->device;
  wanted += (in_host + granule_pages - 1) / granule_pages;
  return wanted <= placed_.busy_bytes() / granule_bytes;
}

}  // namespace firn
