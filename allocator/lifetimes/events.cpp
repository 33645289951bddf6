#include "allocator/lifetimes/events.h"

#include <algorithm>
#include <bit>

namespace firn::lifetimes {

Events::Events(size_t most)
    : most_(std::bit_ceil(std::max<size_t>(most, 64))), ring_(std::min<size_t>(most_, 4096)) {}

void Events::append(Event event, uint64_t exact_symbol, uint64_t coarse_symbol) {
  // Until the ring is full positions do not wrap, so that it may simply grow.
  if (now_ + 1 == ring_.size() && ring_.size() < most_) ring_.resize(ring_.size() * 2);
  const Event& before = (*this)[now_];
  event.exact = before.exact * base + exact_symbol;
  event.coarse = before.coarse * base + coarse_symbol;
  ++now_;
  ring_[now_ & (ring_.size() - 1)] = event;
}

uint64_t Events::power(uint64_t length) {
  uint64_t result = 1, square = base;
  for (; length; length >>= 1, square *= square)
    if (length & 1) result *= square;
  return result;
}

}  // namespace firn::lifetimes
