#include "allocator/lifetimes/events.h"

#include <algorithm>
#include <bit>

namespace firn::lifetimes {

Events::Events(size_t most)
    : most_(std::bit_ceil(std::max<size_t>(most, 64))), wanted_(most_),
      ring_(std::min<size_t>(most_, 4096)) {}

void Events::want(size_t events) {
  wanted_ = events >= most_ ? most_ : std::bit_ceil(events);
}

void Events::grow() {
  std::vector<Event> larger(ring_.size() * 2);
  for (uint64_t at = oldest_; at <= now_; ++at) larger[at & (larger.size() - 1)] = (*this)[at];
  ring_ = std::move(larger);
}

void Events::append(Event event, uint64_t exact_symbol, uint64_t coarse_symbol) {
  if (now_ + 1 - oldest_ >= ring_.size() && ring_.size() < wanted_) grow();
  const Event& before = (*this)[now_];
  event.exact = before.exact * base + exact_symbol;
  event.coarse = before.coarse * base + coarse_symbol;
  ++now_;
  ring_[now_ & (ring_.size() - 1)] = event;
  if (now_ - oldest_ >= ring_.size()) ++oldest_;
}

uint64_t Events::power(uint64_t length) {
  uint64_t result = 1, square = base;
  for (; length; length >>= 1, square *= square)
    if (length & 1) result *= square;
  return result;
}

}  // namespace firn::lifetimes
