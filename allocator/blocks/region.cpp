#include "allocator/blocks/region.h"

#include <algorithm>
#include <utility>

#include "firn/check.h"

namespace firn {

Region::Region(uint64_t base, uint32_t granules, uint16_t stream)
    : base_(base), granules_(granules), stream_(stream),
      parts_(new Part[size_t{granules} * parts_in_granule]()), has_frame_(granules) {}

Block* Region::at(uint64_t address, const BlockTable& table) const {
  const Part& part = parts_[(address - base_) / part_bytes];
  for (const std::atomic<uint32_t>* number : {&part.begins, &part.covers}) {
    const uint32_t index = number->load(std::memory_order_acquire);
    if (index == 0) continue;
    Block& block = table[index - 1];
    if (address - block.address < block.place_bytes) return &block;
  }
  return nullptr;
}

void Region::mark(const Block& block, uint32_t number) {
  const uint64_t first = (block.address - base_) / part_bytes;
  const uint64_t end = (block.address + block.place_bytes - base_ + part_bytes - 1) / part_bytes;
  parts_[first].begins.store(number, std::memory_order_release);
  for (uint64_t i = first + 1; i < end; ++i)
    parts_[i].covers.store(number, std::memory_order_release);
}

bool Region::free(uint64_t begin, uint64_t end) const {
  auto next = used_.lower_bound(begin);
  if (next != used_.end() && next->first < end) return false;
  if (next == used_.begin()) return true;
  const Block& before = *std::prev(next)->second;
  return before.address + before.place_bytes <= begin;
}

void Region::use(Block& block) {
  const uint64_t end = block.address + block.place_bytes;
  FIRN_CHECK(block.place_bytes >= part_bytes && block.address >= base_ && end <= base_ + bytes(),
             "a place at %llx of %llu bytes", (unsigned long long)block.address,
             (unsigned long long)block.place_bytes);
  FIRN_CHECK(free(block.address, end) && lacking(block.address, end) == 0,
             "the place at %llx is taken", (unsigned long long)block.address);
  used_.emplace(block.address, &block);
  used_bytes_ += block.place_bytes;
  mark(block, block.index + 1);
}

void Region::leave(Block& block, Use last) {
  const auto it = used_.find(block.address);
  FIRN_CHECK(it != used_.end() && it->second == &block, "no block in use at %llx",
             (unsigned long long)block.address);
  used_.erase(it);
  used_bytes_ -= block.place_bytes;
  mark(block, 0);
  auto frame = frames_.upper_bound(block.address);
  FIRN_CHECK(frame != frames_.begin(), "no frame at %llx", (unsigned long long)block.address);
  if (last && last.stream() != stream_) others.push_back(std::exchange(last, {}));
  // (Blocks do not leave in the order in which they were freed.)
  for (--frame; frame != frames_.end() && frame->first < block.address + block.place_bytes; ++frame)
    if (frame->second.last.epoch() < last.epoch()) frame->second.last = last;
}

uint32_t Region::lacking(uint64_t begin, uint64_t end) const {
  uint32_t lacking = 0;
  for (uint64_t g = granule_of(begin); g <= granule_of(end - 1); ++g) lacking += !has_frame_[g];
  return lacking;
}

std::vector<Region::Run> Region::gaps(uint64_t begin, uint64_t end) const {
  std::vector<Run> gaps;
  bool within = false;
  for (uint64_t g = granule_of(begin); g <= granule_of(end - 1); ++g) {
    if (!has_frame_[g] && !within) gaps.push_back({base_ + g * granule_bytes, 0});
    within = !has_frame_[g];
    if (within) ++gaps.back().granules;
  }
  return gaps;
}

void Region::mapped(uint64_t address, const Frame& frame) {
  for (uint64_t g = granule_of(address), i = 0; i < frame.granules; ++i) {
    FIRN_CHECK(!has_frame_[g + i], "two frames at %llx", (unsigned long long)address);
    has_frame_[g + i] = true;
  }
  frames_.emplace(address, Mapped{frame, {}});
  mapped_granules_ += frame.granules;
}

bool Region::idle(uint64_t address) const {
  return free(address, address + frames_.at(address).frame.bytes());
}

Frame Region::unmapped(uint64_t address) {
  const auto it = frames_.find(address);
  const Frame frame = it->second.frame;
  for (uint64_t g = granule_of(address), i = 0; i < frame.granules; ++i) has_frame_[g + i] = false;
  frames_.erase(it);
  mapped_granules_ -= frame.granules;
  return frame;
}

std::vector<Region::Run> Region::runs() const {
  std::vector<Run> runs;
  for (const auto& [address, mapped] : frames_) {
    if (runs.empty() || runs.back().begin + runs.back().granules * granule_bytes != address)
      runs.push_back({address, 0});
    runs.back().granules += mapped.frame.granules;
  }
  return runs;
}

}  // namespace firn
