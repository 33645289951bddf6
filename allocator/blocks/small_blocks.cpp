#include "allocator/blocks/small_blocks.h"

#include "allocator/base/huge_pages.h"
#include "firn/check.h"

namespace firn {

namespace {
/// May a segment leave while this is the word of one of its blocks? (One that was freed is on its
/// way to another life, unless it is kept.)
bool leaves_with_it(const Block& small, uint64_t w) FIRN_HELD {
  return word::state(w) == State::resident && word::holds(w) == 0 && (w & word::proven) &&
         !(w & word::pinned) && (!(w & word::freed) || small.kept);
}
}  // namespace

SmallBlocks::~SmallBlocks() {
  for (uint32_t number = 0; number < count_; ++number)
    delete segments_[number].load(std::memory_order_relaxed);
  for (auto& table : unit_tables_)
    if (std::atomic<uint32_t>* units = table.load(std::memory_order_relaxed))
      give_huge(units, unit_table_bytes);
}

/// A segment's units, all zero; null: the system has no memory.
std::atomic<uint32_t>* SmallBlocks::units_for(uint32_t number) {
  std::atomic<std::atomic<uint32_t>*>& table = unit_tables_[number / segments_per_table];
  if (!table.load(std::memory_order_relaxed))
    table.store(static_cast<std::atomic<uint32_t>*>(take_huge(unit_table_bytes)),
                std::memory_order_release);
  std::atomic<uint32_t>* units = table.load(std::memory_order_relaxed);
  if (!units) return nullptr;
  units += number % segments_per_table * units_per_segment;
  std::uninitialized_value_construct_n(units, units_per_segment);
  return units;
}

std::optional<uint32_t> SmallBlocks::add(unsigned stream, uint64_t address) {
  uint32_t number;
  if (!spare_.empty()) {
    number = spare_.back();
    spare_.pop_back();
  } else {
    std::atomic<uint32_t>* units = units_for(count_);
    if (!units) return std::nullopt;
    auto* fresh = new Segment;
    fresh->units = units;
    number = count_++;
    segments_[number].store(fresh, std::memory_order_release);
  }
  Segment& segment = *segments_[number].load(std::memory_order_relaxed);
  segment.address = address;
  segment.stream = static_cast<uint16_t>(stream);
  return number;
}

void SmallBlocks::open(Segment& segment, const BlockTable& table) {
  segment.aside = false;
  RangeMap& ranges = *ranges_[segment.stream];
  uint64_t end = segment.address;
  each(segment, table, [&](Block& small) {
    small.word.clear(word::aside);
    if (small.address > end) ranges.add(end, small.address - end);
    end = small.address + small.bytes;
    return true;
  });
  if (end < segment.address + granule_bytes)
    ranges.add(end, segment.address + granule_bytes - end);
}

bool SmallBlocks::set_aside(Segment& segment, const BlockTable& table) {
  // (A block that another thread is freeing or taking just now is still ready: the next try, then.)
  const bool all = each(segment, table, [](Block& small) FIRN_HELD {
    uint64_t w = small.word.load();
    do {
      if (!leaves_with_it(small, w)) return false;
    } while (!small.word.try_set_aside(w));
    return true;
  });
  if (segment.aside) return all;
  segment.aside = true;
  RangeMap& ranges = *ranges_[segment.stream];
  std::vector<std::pair<uint64_t, uint64_t>> gaps;
  for (auto at = ranges.free_ranges().lower_bound(segment.address);
       at != ranges.free_ranges().end() && at->first < segment.address + granule_bytes; ++at)
    gaps.emplace_back(*at);
  for (const auto& [begin, bytes] : gaps)
    FIRN_CHECK(ranges.remove(begin, bytes), "segment %llx", (unsigned long long)segment.address);
  return all;
}

SmallBlocks::Inside SmallBlocks::look_inside(const Segment& segment, const BlockTable& table) {
  Inside inside;
  inside.may_leave = each(segment, table, [&](const Block& small) FIRN_HELD {
    const uint64_t w = small.word.load();
    if (word::state(w) != State::ready) return leaves_with_it(small, w);
    return inside.ready = true;
  });
  return inside;
}

bool SmallBlocks::take_out(const Segment& segment) {
  return ranges_[segment.stream]->remove(segment.address, granule_bytes);
}

void SmallBlocks::drop(uint32_t number) {
  Segment& segment = *segments_[number].load(std::memory_order_relaxed);
  segment.whole.store(nullptr, std::memory_order_release);
  segment.aside = false;
  segment.emptied = {};
  spare_.push_back(number);
}

void SmallBlocks::add_stream(unsigned stream) {
  if (ranges_.size() <= stream) ranges_.resize(stream + 1);
  ranges_[stream] = std::make_unique<RangeMap>();
}

void SmallBlocks::enter(Segment& segment, const Block& block) {
  ++segment.live;
  segment.emptied = {};
  ++blocks_;
  unit_of(segment, block).store(block.index + 1, std::memory_order_release);
}

void SmallBlocks::retire(Segment& segment, const Block& block) {
  unit_of(segment, block).store(0, std::memory_order_release);
  --segment.live;
  --blocks_;
  RangeMap& ranges = *ranges_[block.stream];
  ranges.release(block.address, block.bytes, granule_bytes);
  if (segment.aside)
    FIRN_CHECK(ranges.remove(block.address, block.bytes), "block %llx",
               (unsigned long long)block.address);
}

SmallBlocks::Gaps SmallBlocks::gaps() const {
  Gaps gaps;
  for (const auto& ranges : ranges_) {
    if (!ranges) continue;
    for (const auto& [begin, bytes] : ranges->free_ranges()) {
      if (bytes < granule_bytes)
        ++gaps.pieces;
      else
        gaps.whole_bytes += static_cast<int64_t>(bytes);  // nothing of it is split
    }
  }
  return gaps;
}

}  // namespace firn
