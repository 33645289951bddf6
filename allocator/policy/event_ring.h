// The program's events of large blocks (allocate, touch, free), from any thread, in one order, for
// a reader that learns from them. push() takes no lock and makes no allocation: one fetch-and-add
// and one store. When the reader falls behind by a whole ring the oldest events are lost: it sees
// them as a change of the program.
//
// One reader, under the engine's lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "allocator/base/zero_array.h"
#include "allocator/lifetimes/events.h"
#include "firn/thread_safety.h"

namespace firn {

class EventRing {
 public:
  struct Event {
    lifetimes::EventKind kind;
    uint32_t block;  // index of its descriptor
  };

  explicit EventRing(size_t entries = 1 << 16) : slots_(entries), mask_(entries - 1) {}

  /// The event's number.
  uint64_t push(lifetimes::EventKind kind, uint32_t block) {
    const uint64_t at = take();
    write(at, kind, block);
    return at;
  }
  /// push() in two steps: take a number, write its event. (Between them a thread may sleep.)
  uint64_t take() { return head_.fetch_add(1, std::memory_order_relaxed); }
  void write(uint64_t at, lifetimes::EventKind kind, uint32_t block) {
    // The reader has read this line since it was last written: prefetched, it costs no wait.
    prefetch_to_write(&slots_[(at + write_ahead) & mask_]);
    slots_[at & mask_].store(number(at) << 27 | static_cast<uint64_t>(kind) << 25 | block,
                             std::memory_order_release);
  }
  /// How many were pushed.
  uint64_t pushed() const { return head_.load(std::memory_order_relaxed); }

  /// The next event below number `end`; false when there is none yet. Skips what was overwritten.
  bool pop(Event& event, uint64_t end = UINT64_MAX) FIRN_HELD {
    while (tail_ < end) {
      uint64_t word = slots_[tail_ & mask_].load(std::memory_order_acquire);
      uint64_t behind = (number(tail_) - (word >> 27)) & number_mask;
      if (behind == 0) {
        event = {static_cast<lifetimes::EventKind>(word >> 25 & 3),
                 static_cast<uint32_t>(word & block_mask)};
        ++tail_;
        return true;
      }
      // From the round before: not written yet, or written too late by a thread that slept. The
      // reader waits for it until the next round overwrites it.
      if (behind <= number_mask / 2) return false;
      tail_ = head_.load(std::memory_order_relaxed) - mask_ / 2;
    }
    return false;
  }

 private:
  static constexpr uint64_t write_ahead = 32;  // four cache lines
  static constexpr uint64_t number_mask = (1ull << 37) - 1;
  static constexpr uint64_t block_mask = (1ull << 25) - 1;  // as many as BlockTable holds
  static void prefetch_to_write(const void* address) {
#ifdef __x86_64__
    // (__builtin_prefetch() emits the write prefetch only if all target processors have it; others
    // ignore this one.)
    asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(address)));
#else
    __builtin_prefetch(address, 1);
#endif
  }
  /// Never that of an empty slot.
  static uint64_t number(uint64_t at) { return (at + 1) & number_mask; }

  // The reader writes to a cache line of its own; what both only read is on another.
  ZeroArray<std::atomic<uint64_t>> slots_;
  const uint64_t mask_;
  alignas(64) std::atomic<uint64_t> head_{0};
  alignas(64) uint64_t tail_ FIRN_GUARDED = 0;
};

}  // namespace firn
