#include "allocator/lifetimes/stamps.h"

#include <algorithm>

namespace firn::lifetimes {

void Stamps::add(uint64_t position, uint64_t device_ns) {
  if (!stamps_.empty()) {
    const Stamp& last = stamps_.back();
    if (position <= last.position || device_ns < last.ns) return;
  }
  stamps_.push_back({position, device_ns});
  if (stamps_.size() > most_) stamps_.pop_front();
}

double Stamps::at(uint64_t position) const {
  auto after = std::upper_bound(stamps_.begin(), stamps_.end(), position,
                                [](uint64_t p, const Stamp& s) { return p < s.position; });
  const Stamp *a, *b;
  if (after == stamps_.end()) {
    // The device lags behind the program: the last stretch alone is noise, so all of it counts.
    a = &stamps_.front();
    b = &stamps_.back();
    double pace =
        static_cast<double>(b->ns - a->ns) / static_cast<double>(b->position - a->position);
    return static_cast<double>(b->ns) + pace * static_cast<double>(position - b->position);
  }
  if (after == stamps_.begin()) ++after;
  b = &*after;
  a = &*(after - 1);
  double pace = static_cast<double>(b->ns - a->ns) / static_cast<double>(b->position - a->position);
  return static_cast<double>(a->ns) +
         pace * (static_cast<double>(position) - static_cast<double>(a->position));
}

bool Stamps::between(uint64_t from, uint64_t to, uint64_t& ns) const {
  if (stamps_.size() < 2 || to < from) return false;
  ns = static_cast<uint64_t>(std::max(0.0, at(to) - at(from)));
  return true;
}

bool Stamps::last(uint64_t positions, uint64_t& ns) const {
  constexpr uint64_t part = 8;  // of the positions, before the last stamp
  uint64_t least = UINT64_MAX;
  for (auto b = stamps_.rbegin(); b != stamps_.rend() && least > 0; ++b) {
    if (b->position < stamps_.front().position + positions) break;
    if (b->position + positions / part < stamps_.back().position) break;
    const uint64_t from = b->position - positions;
    const auto after = std::lower_bound(stamps_.begin(), stamps_.end(), from,
                                        [](const Stamp& s, uint64_t p) { return s.position < p; });
    const uint64_t within = after->position == from ? 0 : after->ns - (after - 1)->ns;
    if (within >= least) continue;
    least = within;
    ns = b->ns - static_cast<uint64_t>(at(from));
  }
  return least != UINT64_MAX;
}

}  // namespace firn::lifetimes
