// Policy::lifetime: blocks of an iteration that never leave have planned places in a region of
// their stream (region.h, lifetimes/places.h). What is planned is only a guess at whose allocation
// comes next: a place is handed out when what overlaps it is freed, on the same stream, as ready
// blocks are; and what finds its place taken, or not to be mapped, has a block of its own.
//
// A region's frames are mapped as its places are first used, out of frames that are free and of
// ready blocks, and stay until memory is short or the program does something else.
#include <algorithm>

#include "allocator/check.h"
#include "allocator/cpu_timer.h"
#include "allocator/engine_impl.h"

namespace firn {

namespace {
// So many of the events that come may be an allocation's; frees and touches of other threads come
// a little sooner or later than before.
constexpr uint64_t looked_ahead = 8;
// A period that differs by less than such a part of it is the same.
constexpr uint64_t same_part = 16;
// A period is planned for when it was the same for so many rounds, and what left the device within
// as many has no place.
constexpr uint64_t steady_rounds = 2;
// Where more than one of so many that have a place did not get it in a round, the program does
// something else.
constexpr uint64_t missed_part = 4;
// For so many rounds a region may still be growing.
constexpr uint64_t filling_rounds = 4;
// After plans that did not work it is waited twice as long each time, up to so many rounds.
constexpr uint64_t rounds_waited_most = 256;
// So many rounds tell whether places save anything.
constexpr uint64_t rounds_watched_least = 4;
// Longer periods are not planned for: it would take seconds of a processor.
constexpr uint64_t period_most = 400'000;

bool alike(uint64_t a, uint64_t b) {
  return std::max(a, b) - std::min(a, b) <= std::min(a, b) / same_part;
}
}  // namespace

Region* EngineImpl::region_of(unsigned stream) const {
  for (const auto& region : region_owner_)
    if (region->stream() == stream) return region.get();
  return nullptr;
}

/// The place that was planned for who plays the identity next, with so many bytes as it is known by.
EngineImpl::Placing::Place* EngineImpl::place_of(Identity identity, uint64_t known_as) {
  if (!placing_.active || identity >= placing_.of.size()) return nullptr;
  Placing::Place* found = nullptr;
  for (uint32_t i = placing_.of[identity]; i != 0; i = placing_.places[i - 1].next) {
    Placing::Place& place = placing_.places[i - 1];
    if (place.known_as != known_as) continue;
    found = &place;
    if (!place.barred && place.region->free(place.address, place.address + place.bytes)) break;
  }
  return found;
}

/// The place of the allocation that is foreseen, free of what is in use; null: there is none.
EngineImpl::Placing::Place* EngineImpl::next_place(unsigned stream, size_t bytes) {
  Region* region = placing_.active ? region_of(stream) : nullptr;
  if (!region) return nullptr;
  (void)take_events();
  if (!history_->known()) return nullptr;
  collect_places(*region);
  const uint64_t asked = (bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
  const uint64_t known_as = grains_of(bytes) * grain_bytes;
  for (uint64_t ahead = 1; ahead <= looked_ahead; ++ahead) {
    const History::Upcoming coming = history_->upcoming(ahead);
    if (coming.kind != EventKind::allocate || coming.bytes != known_as) continue;
    if (coming.identity >= births_.stream_of.size() ||
        births_.stream_of[coming.identity] != stream + 1)
      continue;
    // This is it, with a place or without; not the next one of its size.
    Placing::Place* place = place_of(coming.identity, known_as);
    const bool there = place && place->region == region && !place->barred &&
                       place->bytes >= asked &&
                       region->free(place->address, place->address + place->bytes);
    return there ? place : nullptr;
  }
  return nullptr;
}

/// A block for the allocation, in the place that is foreseen for it; null: it has to have memory of
/// its own.
Block* EngineImpl::placed_block(Lock& lock, unsigned stream, size_t bytes) {
  for (int attempt = 0; attempt < 4; ++attempt) {
    Placing::Place* place = next_place(stream, bytes);
    if (!place) return nullptr;
    Region& region = *place->region;
    const uint64_t begin = place->address, end = begin + place->bytes;
    if (const uint32_t lacking = region.lacking(begin, end); lacking > 0) {
      // As much as for a block of its own, or less.
      Result<Reservation> room = make_room(lock, lacking, nullptr);
      if (!room) return nullptr;
      // (While waiting all may have changed.)
      if (next_place(stream, bytes) != place || place->address != begin ||
          region.lacking(begin, end) > room->granules())
        continue;
      *room = Reservation();
      if (!fill_region(region, begin, end)) return nullptr;
    }
    Block* block = settle_in(*place, stream, bytes);
    counted_.placed += block != nullptr;
    return block;
  }
  return nullptr;
}

/// The place's block, handed out: nothing in use overlaps it, and it is mapped.
Block* EngineImpl::settle_in(Placing::Place& place, unsigned stream, size_t bytes) {
  Block* block = place.block;
  if (!block) {
    block = table_.make();
    if (!block) return nullptr;
    block->address = place.address;
    block->place_bytes = place.bytes;
    block->place = static_cast<uint32_t>(&place - placing_.places.data());
    block->stream = static_cast<uint16_t>(stream);
    block->grains = grains_of(bytes);
    block->size_class = static_cast<uint16_t>(size_class::count);
    block->mapped = block->device = 0;
    block->use.store(0, std::memory_order_relaxed);
    block->word.fetch_or(word::placed, std::memory_order_relaxed);
    transit(*block, Event::allocate, life_flags | word::small | word::many_uses | word::zero_copy);
    place.block = block;
  } else {
    transit(*block, Event::reuse);
  }
  place.region->use(*block);
  return block;
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
    if (Result<void> mapped = map_at(gap.begin, *frames); !mapped) {
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

/// Takes back what was freed: others may have the place.
void EngineImpl::collect_places(Region& region) {
  ReadyStacks& stacks = ready(region.stream());
  while (Block* block = stacks.placed.pop(table_)) {
    (void)uses_over(*block);  // forgets those that are
    for (const Use use : block->more_uses) region.others.push_back(use);
    block->more_uses.clear();
    block->word.fetch_and(~word::many_uses, std::memory_order_acq_rel);
    region.leave(*block, Use{block->use.load(std::memory_order_relaxed)});
    if (!placing_.active || !planned_place(*block)) drop_placed(*block);
  }
}

/// The place that was planned for the block; null: that plan is gone.
EngineImpl::Placing::Place* EngineImpl::planned_place(const Block& block) {
  if (block.place_bytes == 0 || block.place >= placing_.places.size()) return nullptr;
  Placing::Place& place = placing_.places[block.place];
  return place.block == &block ? &place : nullptr;
}

/// A ready block whose place nobody needs: its descriptor can serve another.
void EngineImpl::drop_placed(Block& block) {
  if (Placing::Place* place = planned_place(block)) place->block = nullptr;
  (void)take_events();  // the descriptor's number will be another block's
  transit(block, Event::reclaim, word::placed);
  ++block.generation;
  block.place_bytes = 0;
  block.recorded_streams.clear();
  block.arrival = {};
  block.use.store(0, std::memory_order_relaxed);
  table_.recycle(&block);
}

/// Unmaps frames of regions that nothing in use lies in and whose uses are over, until so many
/// granules are available; has events recorded behind the others. Grains of those: they will come.
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
        waiting += mapped.frame.granules * granule_grains;
        continue;
      }
      std::vector<Frame> frames{region.unmapped(addresses[at])};
      unmap_at(addresses[at], frames);
      count_region_bytes(false, addresses[at], frames.front().bytes(), region.stream());
      frames_.give(frames);
    }
    count_region_runs(runs, region);
  }
  return waiting;
}

/// The program does something else: what is in its place stays there until it is freed.
void EngineImpl::stop_placing() {
  placing_.active = false;
  for (const auto& region : region_owner_)
    ready(region->stream()).placing.store(false, std::memory_order_relaxed);
}

/// An allocation's place is not to be had while its address may be used by others than its stream.
void EngineImpl::bar_place(const Block& block) {
  if (Placing::Place* place = planned_place(block)) place->barred = true;
}

/// What leaves the device has no place in the periods to come.
void EngineImpl::note_leaving(const Block& block) {
  const Life life = block.index < life_of_.size() ? life_of_[block.index] : 0;
  if (!life) return;
  const Identity identity = history_->identity(life);
  if (identity >= placing_.left_at.size()) placing_.left_at.resize(identity + 1024);
  placing_.left_at[identity] = history_->now();
}

/// What plays a planned part has a place or, where it was not to be had, a block of its own.
void EngineImpl::note_allocation(Identity identity, const Block& block) {
  if (!placing_.active || block.place_bytes != 0 || identity >= placing_.of.size()) return;
  for (uint32_t i = placing_.of[identity]; i != 0; i = placing_.places[i - 1].next)
    if (!placing_.places[i - 1].barred) {
      ++counted_.places_missed;
      return;
    }
}

/// The plan did not work: it is waited twice as long each time until the next.
void EngineImpl::give_up_places() {
  stop_placing();
  placing_.since = history_->now();
  placing_.rounds_waited = std::min(placing_.rounds_waited * 2, rounds_waited_most);
  placing_.next = history_->now() + placing_.rounds_waited * history_->period();
}

/// Does the program still do what the places were planned for? (An iteration that differs a little
/// now and then is followed by others as before.)
void EngineImpl::follow_places() {
  const uint64_t now = history_->now();
  // Until the region is mapped, what cannot be is not the program's doing.
  const bool filling = now < placing_.adopted + filling_rounds * placing_.period;
  const uint64_t planned = placing_.places.size();
  const uint64_t missed = counted_.places_missed - placing_.missed_before;
  if (!filling && missed * missed_part > planned) return give_up_places();
  if (now < placing_.round + placing_.period) return;
  const uint64_t placed = counted_.placed - placing_.placed_before;
  if ((placed + missed) * missed_part < planned) return give_up_places();
  counted_.maps_with_places = counted_.maps - placing_.maps_before;
  if (!filling) {
    // Memory so short that regions are taken apart again and again is none for regions.
    placing_.maps_watched += counted_.maps_with_places;
    if (++placing_.rounds_watched == rounds_watched_least) {
      if (placing_.maps_watched * 10 > counted_.maps_without_places * rounds_watched_least * 9)
        return give_up_places();
      placing_.rounds_watched = placing_.maps_watched = 0;
      placing_.rounds_waited = 1;
    }
  }
  begin_round();
}

/// Is it time to plan places, or to give them up?
void EngineImpl::consider_places() {
  if (!options_.places || options_.adversarial || options_.policy == Policy::greedy) return;
  const uint64_t now = history_->now(), period = history_->period();
  if (placing_.active) return follow_places();
  if (!history_->known() || !alike(period, placing_.seen)) {
    placing_.seen = history_->known() ? period : 0;
    placing_.since = now;
    return begin_round();
  }
  if (period == 0 || now < placing_.round + period) return;
  const uint64_t maps = counted_.maps - placing_.maps_before;
  if (!placing_.due && now >= placing_.since + steady_rounds * period &&
             now >= placing_.next && maps > 0 && period <= period_most) {
    counted_.maps_without_places = maps;
    take_places_stock();
    placing_.due = placing_.ready = true;
    ponder_due_.store(true, std::memory_order_release);
  }
  begin_round();
}

void EngineImpl::begin_round() {
  placing_.round = history_->now();
  placing_.maps_before = counted_.maps;
  placing_.placed_before = counted_.placed;
  placing_.missed_before = counted_.places_missed;
}

/// What may have places, and how much memory everything takes, in the period to come.
void EngineImpl::take_places_stock() {
  lifetimes::PlacesInput& stock = placing_.stock;
  const uint64_t period = history_->period();
  stock = {};
  stock.period = period;
  stock.grain_bytes = grain_bytes;
  stock.granule_bytes = granule_bytes;
  const uint64_t budget = frames_.budget_granules() * granule_grains;
  // (Gaps of shared frames are not counted: most are those of blocks that may have places.)
  const uint64_t small = static_cast<uint64_t>(reserved_tally_[0].current()) / grain_bytes;
  stock.capacity = budget - std::min(budget, small);
  uint64_t grains = 0;
  for (const Block* block : live_) {
    const State state = block->state();
    if (state != State::ready && state != State::draining) grains += block->grains;
  }
  for (const auto& region : region_owner_)
    for (const auto& [address, block] : region->used()) grains += block->grains;
  stock.loads.push_back({0, grains});
  for (uint64_t ahead = 1; ahead <= period; ++ahead) {
    const History::Upcoming coming = history_->upcoming(ahead);
    const bool frees = coming.kind == EventKind::free;
    if (!frees && coming.kind != EventKind::allocate) continue;
    const uint64_t size = coming.bytes / grain_bytes;
    grains = frees ? grains - std::min(grains, size) : grains + size;
    stock.loads.push_back({ahead, grains});
  }
  find_stays(stock.stays);
}

/// What is allocated in the period to come, and when it is freed, in that period or the next.
void EngineImpl::find_stays(std::vector<lifetimes::Stay>& stays) {
  const uint64_t period = history_->period(), now = history_->now();
  std::vector<lifetimes::Stay> all;
  std::vector<uint32_t> player;  // by identity: stay + 1
  const auto of = [&](Identity identity) -> uint32_t& {
    if (identity >= player.size()) player.resize(identity + 1024);
    return player[identity];
  };
  for (uint64_t ahead = 1; ahead <= 2 * period; ++ahead) {
    const History::Upcoming coming = history_->upcoming(ahead);
    if (coming.kind == EventKind::free) {
      if (const uint32_t stay = std::exchange(of(coming.identity), 0))
        all[stay - 1].death = (ahead - 1) % period + 1;
    } else if (coming.kind == EventKind::allocate) {
      // Who plays it still goes on as another, and is freed as that.
      uint32_t older = std::exchange(of(coming.identity), 0);
      for (Identity at = coming.identity; older && (at = history_->marker(at));)
        std::swap(older, of(at));
      if (ahead > period) continue;
      const auto bytes = placing_.bytes_of.find({coming.identity, coming.bytes});
      if (bytes == placing_.bytes_of.end() || coming.identity >= births_.stream_of.size() ||
          births_.stream_of[coming.identity] == 0)
        continue;
      const bool left = coming.identity < placing_.left_at.size() &&
                        placing_.left_at[coming.identity] != 0 &&
                        placing_.left_at[coming.identity] + steady_rounds * period > now;
      all.push_back({coming.identity, births_.stream_of[coming.identity] - 1u, ahead, 0,
                     bytes->second, coming.bytes / grain_bytes, left});
      of(coming.identity) = static_cast<uint32_t>(all.size());
    }
  }
  for (const lifetimes::Stay& stay : all)
    if (stay.death != 0 && stay.death != stay.birth && stay.bytes >= Region::part_bytes)
      stays.push_back(stay);
}

bool EngineImpl::ponder_places() {
  lifetimes::PlacesInput stock;
  {
    Lock lock(mutex_);
    if (!std::exchange(placing_.ready, false)) return false;
    std::swap(stock, placing_.stock);
  }
  uint64_t cpu_ns = 0;
  lifetimes::Places planned;
  {
    CpuTimer timer(cpu_ns);
    planned = lifetimes::plan_places(stock);
  }
  Driver::ContextGuard context(driver_, options_.context);
  Lock lock(mutex_);
  counted_.plan_ns += cpu_ns;
  placing_.due = false;
  adopt_places(planned, stock.period);
  return true;
}

void EngineImpl::adopt_places(const lifetimes::Places& planned, uint64_t period) {
  if (abandoned_ || !history_->known() || !alike(history_->period(), period)) return;
  placing_.active = false;
  for (const auto& region : region_owner_) collect_places(*region);
  for (Placing::Place& place : placing_.places)
    if (place.block && !place.region->used().contains(place.address)) drop_placed(*place.block);
  placing_.places.clear();
  placing_.of.clear();
  if (planned.places.empty()) {
    give_up_places();
    return;
  }
  placing_.grains = 0;
  for (const lifetimes::Places::Height& height : planned.heights) {
    Region* region = make_region(height.stream);
    if (!region || height.bytes > region->bytes()) continue;
    placing_.grains += height.bytes / grain_bytes;
    for (const lifetimes::Places::Place& place : planned.places) {
      if (place.stream != height.stream) continue;
      if (place.identity >= placing_.of.size()) placing_.of.resize(place.identity + 1024);
      uint32_t& first = placing_.of[place.identity];
      placing_.places.push_back({place.identity, place.grains * grain_bytes,
                                 region->base() + place.offset, place.bytes, region, nullptr,
                                 false, first});
      first = static_cast<uint32_t>(placing_.places.size());
    }
    ready(height.stream).placing.store(true, std::memory_order_relaxed);
  }
  placing_.active = !placing_.places.empty();
  placing_.period = period;
  placing_.adopted = history_->now();
  placing_.rounds_watched = placing_.maps_watched = 0;
  counted_.places = placing_.places.size();
  counted_.region_planned_bytes = placing_.grains * grain_bytes;
  counted_.waste_without_places = planned.rounded_bytes - planned.asked_bytes;
  counted_.waste_with_places = planned.occupied_bytes - planned.asked_bytes;
  begin_round();
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

/// Tells blocks in places what stretch of memory they share; lists stretches without any.
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

/// What is free between blocks in places that are in use: how many pieces, and their bytes.
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

/// Would there be room, had what is in planned places frames of its own, and could leave?
bool EngineImpl::places_in_way(uint64_t granules) const {
  if (spilling_stopped_) return false;
  uint64_t held = 0, wanted = (granules - std::min(granules, frames_.available()));
  for (const auto& region : region_owner_)
    for (const auto& [address, mapped] : region->frames())
      if (!region->idle(address)) held += mapped.frame.granules;
  uint64_t in_host = 0;  // grains
  for (const Block* block : live_)
    if (block->word.load(std::memory_order_relaxed) & word::zero_copy)
      in_host += block->mapped - block->device;
  wanted += (in_host + granule_grains - 1) / granule_grains;
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
