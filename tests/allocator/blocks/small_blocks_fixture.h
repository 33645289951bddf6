// Small blocks by themselves: segments without memory, and blocks that live in them.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <new>
#include <optional>
#include <vector>

#include "allocator/blocks/small_blocks.h"

namespace firn::test {

inline constexpr uint64_t base = uint64_t{1} << 40, KiB = 1024;

/// Streams 0 and 1, whose segments lie side by side from `base` on.
class SmallBlocksTest : public testing::Test {
 protected:
  SmallBlocksTest() {
    for (unsigned stream = 0; stream < 2; ++stream) small_.add_stream(stream);
  }
  /// A new segment, at the next granule; its number.
  uint32_t add(unsigned stream = 0) {
    const uint64_t address = base + granules_++ * granule_bytes;
    const std::optional<uint32_t> number = small_.add(stream, address);
    if (!number) throw std::bad_alloc();
    numbers_[address] = *number;
    small_.open(small_.segment(*number), table_);
    return *number;
  }
  uint32_t number_of(uint64_t address) const {
    return numbers_.at(address / granule_bytes * granule_bytes);
  }
  Segment& segment_of(const Block& block) { return small_.segment(number_of(block.address)); }
  Block* make_at(unsigned stream, uint64_t address, size_t bytes) {
    Block* block = table_.make();
    block->address = address;
    block->bytes = bytes;
    block->stream = static_cast<uint16_t>(stream);
    block->size_class = static_cast<uint16_t>(size_class::of_small(bytes));
    block->word.become_small();
    transit(*block, Event::allocate);
    small_.enter(segment_of(*block), *block);
    return block;
  }
  /// Null: no segment has room.
  Block* make(size_t bytes, unsigned stream = 0) {
    const std::optional<uint64_t> address = small_.take(stream, bytes);
    return address ? make_at(stream, *address, bytes) : nullptr;
  }
  void retire(Block& block) {  // a ready one
    small_.retire(segment_of(block), block);
    transit(block, Event::reclaim, life_flags);
    table_.recycle(&block);
  }
  void free(Block* block) {
    transit(*block, Event::release);
    retire(*block);
  }
  Block* at(uint64_t address) const {
    return small_.at(SmallBlocks::segment_mark | number_of(address), address, table_);
  }
  void drop(uint32_t number) {
    ASSERT_TRUE(small_.take_out(small_.segment(number)));
    small_.drop(number);
    std::erase_if(numbers_, [&](const auto& entry) { return entry.second == number; });
  }
  /// All that each() tells of.
  std::vector<Block*> all_of(const Segment& segment) const {
    std::vector<Block*> all;
    EXPECT_TRUE(SmallBlocks::each(segment, table_, [&](Block& block) {
      all.push_back(&block);
      return true;
    }));
    return all;
  }

  BlockTable table_;
  SmallBlocks small_;
  std::map<uint64_t, uint32_t> numbers_;  // by address
  uint64_t granules_ = 0;
};

}  // namespace firn::test
