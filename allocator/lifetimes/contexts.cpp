#include "allocator/lifetimes/contexts.h"

#include <algorithm>
#include <bit>

namespace firn::lifetimes {

namespace {
constexpr uint64_t sample_length = 6;
}

Contexts::Contexts(size_t events_most) : sample_power_(Events::power(sample_length)) {
  tables_.reserve(kinds.size());
  for (size_t i = 0; i < kinds.size(); ++i) {
    powers_[i] = Events::power(kinds[i].length);
    tables_.emplace_back(std::bit_ceil(std::max<size_t>(events_most >> kinds[i].sampled, 64)));
  }
}

uint64_t Contexts::hash(const Events& events, size_t which, uint64_t position) const {
  const Kind& kind = kinds[which];
  uint64_t h = kind.coarse ? events.coarse(position, kind.length, powers_[which])
                           : events.exact(position, kind.length, powers_[which]);
  return mix(kind.live ? h ^ mix(events[position].live_bytes) : h);
}

uint64_t Contexts::sample(const Events& events) const {
  if (events.now() < sample_length) return 1;
  // Coarse symbols, so that streams of either kind are sampled at the same points.
  return mix(events.coarse(events.now(), sample_length, sample_power_));
}

bool Contexts::due(const Events& events, size_t which) const {
  return (sample(events) & ((1u << kinds[which].sampled) - 1)) == 0;
}

void Contexts::insert(const Events& events) {
  uint64_t chosen = sample(events), now = events.now();
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (chosen & ((1u << kinds[i].sampled) - 1)) continue;
    if (now < kinds[i].length || !events.holds(now - kinds[i].length)) continue;
    tables_[i][hash(events, i, now) & (tables_[i].size() - 1)] = static_cast<uint32_t>(now);
  }
}

uint64_t Contexts::find(const Events& events, size_t which) const {
  uint64_t now = events.now(), length = kinds[which].length;
  if (now < length || !events.holds(now - length)) return 0;
  uint32_t low = tables_[which][hash(events, which, now) & (tables_[which].size() - 1)];
  uint64_t position = now - static_cast<uint32_t>(static_cast<uint32_t>(now) - low);
  if (position == 0 || position >= now || position > now || position < length) return 0;
  if (!events.holds(position - length) || !same(events, which, now, position)) return 0;
  return position;
}

bool Contexts::same(const Events& events, size_t which, uint64_t a, uint64_t b) const {
  uint64_t length = kinds[which].length;
  if (std::min(a, b) < length || !events.holds(std::min(a, b) - length)) return false;
  return kinds[which].coarse
             ? events.coarse(a, length, powers_[which]) == events.coarse(b, length, powers_[which])
             : events.exact(a, length, powers_[which]) == events.exact(b, length, powers_[which]);
}

size_t Contexts::bytes() const {
  size_t sum = 0;
  for (const auto& table : tables_) sum += table.bytes();
  return sum;
}

}  // namespace firn::lifetimes
