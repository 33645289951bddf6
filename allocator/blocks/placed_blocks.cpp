#include "allocator/blocks/placed_blocks.h"

#include "allocator/memory/units.h"
#include "firn/check.h"

namespace firn {

Region* PlacedBlocks::region_of(unsigned stream) const {
  for (const auto& region : owner_)
    if (region->stream() == stream) return region.get();
  return nullptr;
}

uint32_t PlacedBlocks::add_region(uint64_t address, uint32_t granules, unsigned stream) {
  owner_.push_back(std::make_unique<Region>(address, granules, static_cast<uint16_t>(stream)));
  const auto number = static_cast<uint32_t>(owner_.size() - 1);
  regions_[number].store(owner_.back().get(), std::memory_order_release);
  return number;
}

void PlacedBlocks::add_place(Region& region, uint32_t identity, uint64_t known_as,
                             uint64_t offset, uint64_t bytes) {
  if (identity >= of_.size()) of_.resize(identity + 1024);
  uint32_t& first = of_[identity];
  places_.push_back(
      {identity, known_as, region.base() + offset, bytes, &region, nullptr, false, first});
  first = static_cast<uint32_t>(places_.size());
}

void PlacedBlocks::begin(uint64_t planned_bytes) {
  active_ = !places_.empty();
  planned_bytes_ = planned_bytes;
}

std::vector<Block*> PlacedBlocks::forget() {
  std::vector<Block*> unused;
  for (const Place& place : places_)
    if (place.block && !place.region->used().contains(place.address))
      unused.push_back(place.block);
  places_.clear();
  of_.clear();
  return unused;
}

PlacedBlocks::Place* PlacedBlocks::place_of(uint32_t identity, uint64_t known_as) {
  if (!active_ || identity >= of_.size()) return nullptr;
  Place* found = nullptr;
  for (uint32_t i = of_[identity]; i != 0; i = places_[i - 1].next) {
    Place& place = places_[i - 1];
    if (place.known_as != known_as) continue;
    found = &place;
    if (!place.barred && place.region->free(place.address, place.address + place.bytes)) break;
  }
  return found;
}

PlacedBlocks::Place* PlacedBlocks::free_place(const Region& region, uint32_t identity,
                                              uint64_t known_as, uint64_t asked) {
  Place* place = place_of(identity, known_as);
  const bool there = place && place->region == &region && !place->barred && place->bytes >= asked &&
                     region.free(place->address, place->address + place->bytes);
  return there ? place : nullptr;
}

bool PlacedBlocks::missed(uint32_t identity, const Block& block) const {
  if (!active_ || block.place_bytes != 0 || identity >= of_.size()) return false;
  for (uint32_t i = of_[identity]; i != 0; i = places_[i - 1].next)
    if (!places_[i - 1].barred) return true;
  return false;
}

Block* PlacedBlocks::settle_in(Place& place, uint32_t pages) {
  Block* block = place.block;
  if (!block) {
    block = table_.make();
    if (!block) return nullptr;
    block->address = place.address;
    block->place_bytes = place.bytes;
    block->place = static_cast<uint32_t>(&place - places_.data());
    block->stream = place.region->stream();
    block->pages = pages;
    block->size_class = static_cast<uint16_t>(size_class::count);
    block->mapped = block->device = 0;
    block->use.store(0, std::memory_order_relaxed);
    block->word.set(word::placed);
    transit(*block, Event::allocate, life_flags | word::small | word::many_uses | word::zero_copy);
    place.block = block;
  } else {
    transit_own(*block, Event::reuse);
  }
  place.region->use(*block);
  ++placed_;
  return block;
}

/// The place that was planned for the block; null: that plan is gone.
PlacedBlocks::Place* PlacedBlocks::planned(const Block& block) {
  if (block.place_bytes == 0 || block.place >= places_.size()) return nullptr;
  Place& place = places_[block.place];
  return place.block == &block ? &place : nullptr;
}

void PlacedBlocks::bar(const Block& block) {
  if (Place* place = planned(block)) place->barred = true;
}

Block* PlacedBlocks::collect(Region& region, ReadyBlocks& ready) {
  while (Block* block = ready.placed.pop(table_)) {
    (void)uses_.over(*block);  // forgets those that are
    for (const Use use : block->more_uses) region.others.push_back(use);
    block->more_uses.clear();
    block->word.clear(word::many_uses);
    const Use last{block->use.load(std::memory_order_relaxed)};
    region.leave(*block, streams_.over(last) ? Use{} : last);
    if (!active_ || !planned(*block)) return block;
  }
  return nullptr;
}

void PlacedBlocks::drop(Block& block) {
  if (Place* place = planned(block)) place->block = nullptr;
  transit(block, Event::reclaim, word::placed);
  ++block.generation;
  block.place_bytes = 0;
  block.recorded_streams.clear();
  block.arrival = {};
  block.use.store(0, std::memory_order_relaxed);
  table_.recycle(&block);
}

uint64_t PlacedBlocks::busy_bytes() const {
  uint64_t bytes = 0;
  for (const auto& region : owner_)
    for (const auto& [address, mapped] : region->frames())
      if (!region->idle(address)) bytes += mapped.frame.bytes();
  return bytes;
}

std::pair<int64_t, int64_t> PlacedBlocks::gaps(
    const std::function<bool(const Block&)>& waits) const {
  int64_t pieces = 0, bytes = 0;
  for (const auto& region : owner_)
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
        if (it->second->state() == State::ready && !waits(*it->second)) continue;
        any = true;
        gap_until(it->first);
        at = it->first + it->second->place_bytes;
      }
      if (any) gap_until(end);
    }
  return {pieces, bytes};
}

uint64_t PlacedBlocks::check() const {
  uint64_t granules = 0;
  for (const auto& region : owner_) {
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
