// A ring of a program's last events. Each carries the prefix hashes of all events up to it, so that
// two stretches compare in constant time. Owns the ring; the caller holds the lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace firn::lifetimes {

/// A block's role in every iteration: the same weight, the same layer's activation. 0: none.
using Identity = uint32_t;

enum class EventKind : uint8_t { allocate, touch_read, touch_write, free };

/// A strong 64-bit mixer (murmur's finaliser).
constexpr uint64_t mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}

struct Event {
  uint64_t exact = 0, coarse = 0;  // prefix hashes, this event included
  uint64_t bytes = 0;
  uint64_t live_bytes = 0;  // after it
  uint32_t live_count = 0;  // after it
  Identity identity : 24 = 0;
  uint32_t kind_bits : 2 = 0;
  uint32_t age : 6 = 0;  // bit width of the events since its block was allocated

  EventKind kind() const { return static_cast<EventKind>(kind_bits); }
  bool allocates() const { return kind() == EventKind::allocate; }
  bool touches() const {
    return kind() == EventKind::touch_read || kind() == EventKind::touch_write;
  }
};
static_assert(sizeof(Event) == 40);

class Events {
 public:
  /// Keeps the last `most` events, rounded up to a power of two.
  explicit Events(size_t most);

  /// Events so far; also the position of the newest. Position 0 is before the first.
  uint64_t now() const { return now_; }
  uint64_t oldest() const { return oldest_; }
  bool holds(uint64_t position) const { return position <= now_ && position >= oldest_; }
  const Event& operator[](uint64_t position) const { return ring_[position & (ring_.size() - 1)]; }
  void rename(uint64_t position, Identity identity) {
    ring_[position & (ring_.size() - 1)].identity = identity & 0xffffff;
  }
  /// Will the next append forget an event?
  bool full() const { return ring_.size() >= wanted_ && now_ + 1 - oldest_ >= ring_.size(); }
  /// From here on `events` are enough (at most `most`). Events already kept stay.
  void want(size_t events);
  size_t most() const { return most_; }
  size_t bytes() const { return ring_.capacity() * sizeof(Event); }

  /// Appends; the symbols become prefix hashes.
  void append(Event event, uint64_t exact_symbol, uint64_t coarse_symbol);

  /// Hash of the `length` events that end with `position`; the ring must hold them and the one
  /// before them.
  uint64_t exact(uint64_t position, uint64_t length, uint64_t power) const {
    return (*this)[position].exact - (*this)[position - length].exact * power;
  }
  uint64_t coarse(uint64_t position, uint64_t length, uint64_t power) const {
    return (*this)[position].coarse - (*this)[position - length].coarse * power;
  }
  static uint64_t power(uint64_t length);

 private:
  static constexpr uint64_t base = 0x9e3779b97f4a7c15ull | 1;
  void grow();

  size_t most_, wanted_;
  uint64_t now_ = 0, oldest_ = 0;
  std::vector<Event> ring_;  // grows by doubling until wanted_
};

}  // namespace firn::lifetimes
