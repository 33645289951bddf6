// A stream's ready blocks: freed by the program, their frames still mapped, and taken again without
// a lock.
//
// A freed block goes, if it can, to the freeing thread's front, away from the frees and allocations
// of other threads: putting it there takes no locked instruction, and taking it one. Other threads
// take it from there only when the stacks have none.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

#include "allocator/base/thread_cells.h"
#include "allocator/blocks/block.h"
#include "firn/canary.h"
#include "firn/thread_safety.h"

namespace firn {

/// A lock-free stack of descriptors. Links live in the descriptors, which are never freed; a tag
/// against ABA shares the head's word.
class ReadyStack {
 public:
  void push(Block& block) {
    uint64_t head = head_.load(std::memory_order_relaxed);
    uint64_t mine;
    do {
      block.next.store(static_cast<uint32_t>(head), std::memory_order_relaxed);
      mine = (FIRN_CANARY(16) ? 0 : ((head >> 32) + 1) << 32) | (block.index + 1);
    } while (!head_.compare_exchange_weak(head, mine, std::memory_order_seq_cst,
                                          std::memory_order_relaxed));
  }
  /// How many there are, at most `most`; an estimate while others push and pop.
  uint32_t count(const BlockTable& table, uint64_t most) const {
    uint32_t found = 0;
    for (auto at = static_cast<uint32_t>(head_.load(std::memory_order_acquire));
         at != 0 && found < most; ++found)
      at = table[at - 1].next.load(std::memory_order_relaxed);
    return found;
  }
  Block* pop(const BlockTable& table) {
    uint64_t head = head_.load(std::memory_order_seq_cst);
    for (;;) {
      uint32_t top = static_cast<uint32_t>(head);
      if (top == 0) return nullptr;
      Block& block = table[top - 1];
      uint64_t rest = (FIRN_CANARY(16) ? 0 : ((head >> 32) + 1) << 32) |
                      block.next.load(std::memory_order_relaxed);
      if (head_.compare_exchange_weak(head, rest, std::memory_order_acq_rel,
                                      std::memory_order_acquire))
        return &block;
    }
  }

 private:
  std::atomic<uint64_t> head_{0};
};

/// The blocks one thread freed last: one for each of a few size classes. Only that thread puts
/// a block there; any thread may take it.
class alignas(64) ReadyFront {
 public:
  bool put(const Block& block) {
    std::atomic<uint64_t>& word = blocks_[block.size_class % count];
    if (word.load(std::memory_order_relaxed) != 0) return false;
    word.store(uint64_t{block.size_class} << 32 | (block.index + 1), std::memory_order_release);
    return true;
  }
  Block* take(const BlockTable& table, unsigned size_class) {
    return take_from(table, blocks_[size_class % count], size_class, size_class);
  }
  /// One of any class of [least, end); null: none.
  Block* take_any(const BlockTable& table, unsigned least, unsigned end) {
    for (std::atomic<uint64_t>& word : blocks_)
      if (Block* block = take_from(table, word, least, end - 1)) return block;
    return nullptr;
  }
  bool has(unsigned size_class) const {
    const uint64_t found = blocks_[size_class % count].load(std::memory_order_relaxed);
    return found != 0 && found >> 32 == size_class;
  }

 private:
  static Block* take_from(const BlockTable& table, std::atomic<uint64_t>& word, unsigned least,
                          unsigned most) {
    uint64_t found = word.load(std::memory_order_relaxed);
    if (found == 0 || found >> 32 < least || found >> 32 > most ||
        !word.compare_exchange_strong(found, 0, std::memory_order_acquire,
                                       std::memory_order_relaxed))
      return nullptr;
    return &table[static_cast<uint32_t>(found) - 1];
  }

  static constexpr unsigned count = 8;
  std::array<std::atomic<uint64_t>, count> blocks_{};
};

/// All of a stream's: fronts by thread_cell(), and a stack for each size class.
class ReadyBlocks {
 public:
  ReadyStack placed;                  // of a region: freed, not yet taken back by the engine
  std::atomic<bool> placing{false};   // large allocations use planned places, not these

  void push(unsigned cell, Block& block) {
    if (cell < cells_own && fronts_[cell].put(block)) return;
    stacks_[block.size_class].push(block);
    std::atomic<uint64_t>& word = used_[block.size_class / 64];
    const uint64_t bit = uint64_t{1} << block.size_class % 64;
    if (!(word.load(std::memory_order_seq_cst) & bit)) word.fetch_or(bit);
  }
  Block* pop(unsigned cell, const BlockTable& table, unsigned size_class) {
    if (cell < cells_own)
      if (Block* block = fronts_[cell].take(table, size_class)) return block;
    return stacks_[size_class].pop(table);
  }
  /// Other threads' too.
  Block* pop_any(const BlockTable& table, unsigned size_class) {
    if (Block* block = stacks_[size_class].pop(table)) return block;
    const unsigned used = fronts_used();
    for (unsigned cell = 0; cell < used; ++cell)
      if (Block* block = fronts_[cell].take(table, size_class)) return block;
    return nullptr;
  }
  /// Takes all of the classes of [least, end), except those that others push meanwhile. (`taken` is
  /// the engine's.)
  template <class Taken>
  void take_all(const BlockTable& table, unsigned least, unsigned end, Taken&& taken) FIRN_HELD {
    const unsigned used = fronts_used();
    for (unsigned cell = 0; cell < used; ++cell)
      while (Block* block = fronts_[cell].take_any(table, least, end)) taken(*block);
    for (unsigned c = least; c < end; ++c) {
      const uint64_t used = used_[c / 64].load() >> c % 64;
      if (used == 0) {
        c |= 63;
        continue;
      }
      c += static_cast<unsigned>(std::countr_zero(used));
      if (c >= end) break;
      used_[c / 64].fetch_and(~(uint64_t{1} << c % 64));
      while (Block* block = stacks_[c].pop(table)) taken(*block);
    }
  }
  /// How many there are, at most `most`; an estimate while others push and pop.
  uint32_t count(const BlockTable& table, unsigned size_class, uint64_t most) const {
    uint32_t found = stacks_[size_class].count(table, most);
    const unsigned used = fronts_used();
    for (unsigned cell = 0; cell < used && found < most; ++cell)
      found += fronts_[cell].has(size_class);
    return found;
  }

 private:
  static unsigned fronts_used() { return std::min(thread_cells_used(), cells_own); }

  std::array<ReadyFront, cells_own> fronts_;
  std::array<ReadyStack, size_class::count> stacks_;
  /// A bit per size class whose stack may hold something: take_all() need not visit a thousand
  /// empty stacks. It clears the bit before it empties the stack, and a push checks the bit after
  /// it has pushed; in one order for all (seq_cst), so that one of them sees the other.
  std::array<std::atomic<uint64_t>, (size_class::count + 63) / 64> used_{};
};

}  // namespace firn
