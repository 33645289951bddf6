// A block's word (its bits: block_state.h): one atomic, which only the operations here write. Those
// that change the state follow the table of transitions; a flag is set or cleared by itself; a hold
// is taken by one compare-and-swap, which fails where another thread was quicker.
//
// Reading needs no lock. Holds, try_free(), try_mark_freed(), try_prove() and set(word::outside)
// race without a lock; everything else is done under the engine's lock, or on a block that no other
// thread can name. An operation that begins with try_ takes the word as it was read, and where it
// fails, returns false and leaves there what the word is now.
#pragma once

#include <atomic>
#include <cstdint>

#include "allocator/blocks/block_state.h"

namespace firn {

class BlockWordInspector;  // tests/allocator/blocks/block_word_inspector.h

class BlockWord {
  friend class BlockWordInspector;

 public:
  uint64_t load(std::memory_order order = std::memory_order_acquire) const {
    return bits_.load(order);
  }
  State state() const { return word::state(load()); }

  // Holds.
  /// A hold more; `proves`: an operator is known to use the block.
  bool try_hold(uint64_t& seen, bool proves = false) {
    return exchange(seen, (seen | (proves ? word::proven : 0)) + word::hold_one);
  }
  /// Returns the word before.
  uint64_t drop_hold() { return bits_.fetch_sub(word::hold_one, std::memory_order_acq_rel); }

  // The ways between states.
  /// Aborts, naming `address`, where the table has no way. `clear`: flags that end with it.
  void move(Event event, word::Flags clear, uint64_t address);
  /// The same of a block that nobody else can name, by no locked instruction. `set`: flags.
  void move_own(Event event, word::Flags set, uint64_t address);
  /// Resident, unheld and without any flag that makes its end long: ready (Event::release).
  bool try_free(uint64_t& seen) {
    return exchange(seen, word::with_state(seen & ~(word::proven | word::outside | word::told),
                                           State::ready));
  }
  /// Event::spill. Aborts where the table forbids it from `seen`.
  bool try_spill(uint64_t& seen, uint64_t address);
  /// Of a descriptor in State::free: it describes a small block from here on.
  void become_small() {
    bits_.store(static_cast<uint64_t>(State::free) | word::small, std::memory_order_relaxed);
  }

  // Flags.
  bool try_prove(uint64_t& seen) { return exchange(seen, seen | word::proven); }
  bool try_mark_freed(uint64_t& seen) { return exchange(seen, seen | word::freed); }
  bool try_set_aside(uint64_t& seen) { return exchange(seen, seen | word::aside); }
  /// Flags only: the type excludes states and holds. Returns the word before.
  uint64_t set(word::Flags flags) {
    return bits_.fetch_or(flags.bits, std::memory_order_acq_rel);
  }
  uint64_t clear(word::Flags flags) {
    return bits_.fetch_and(~flags.bits, std::memory_order_acq_rel);
  }

 private:
  bool exchange(uint64_t& seen, uint64_t next) {
    return bits_.compare_exchange_weak(seen, next, std::memory_order_acq_rel);
  }
  std::atomic<uint64_t> bits_{0};
};

}  // namespace firn
