#include "allocator/lifetimes/identities.h"

#include <algorithm>

#include "firn/check.h"

namespace firn::lifetimes {

namespace {
constexpr uint32_t identities_most = 1u << 24;  // Event keeps 24 bits
constexpr int markers_deep = 2;       // older holders of an identity that are still kept apart
constexpr size_t rebind_events = 64;  // a life with more events keeps its identity
}  // namespace

Identity Identities::fresh() {
  Identity identity;
  if (!free_identities_.empty()) {
    identity = free_identities_.back();
    free_identities_.pop_back();
  } else {
    identity = static_cast<Identity>(identities_.size());
    FIRN_CHECK(identity < identities_most, "%u identities at once", identity);
    identities_.emplace_back();
  }
  identities_[identity].used = true;
  return identity;
}

Life Identities::begin(uint64_t bytes, uint64_t position, Identity wanted) {
  Life life;
  if (!free_lives_.empty()) {
    life = free_lives_.back();
    free_lives_.pop_back();
  } else {
    life = static_cast<Life>(lives_.size());
    lives_.emplace_back();
  }
  if (!wanted)
    wanted = fresh();
  else if (identities_[wanted].holder)
    step_aside(wanted, 0);
  identities_[wanted].holder = life;
  lives_[life] = {bytes, position, wanted, true, false};
  live_bytes_ += bytes;
  ++live_count_;
  return life;
}

void Identities::step_aside(Identity identity, int depth) {
  Life older = identities_[identity].holder;
  Identity to;
  if (depth == markers_deep) {
    to = fresh();
  } else {
    to = identities_[identity].marker;
    if (!to) {
      to = fresh();
      identities_[identity].marker = to;
      identities_[to].marked = identity;
    }
    if (identities_[to].holder) step_aside(to, depth + 1);
  }
  identities_[to].holder = older;
  identities_[identity].holder = 0;
  lives_[older].identity = to;
}

void Identities::end(Life life) {
  LifeRecord& record = lives_[life];
  live_bytes_ -= record.bytes;
  --live_count_;
  identities_[record.identity].holder = 0;
  Identity identity = record.identity;
  record = {};
  free_lives_.push_back(life);
  recycle_if_unused(identity);
}

void Identities::record(Identity identity, uint64_t position) {
  identities_[identity].at.push_back(static_cast<uint32_t>(position));
}

void Identities::forget(Identity identity, uint64_t position) {
  IdentityRecord& record = identities_[identity];
  FIRN_CHECK(
      record.head < record.at.size() && record.at[record.head] == static_cast<uint32_t>(position),
      "identity %u does not begin at position %llu", identity, (unsigned long long)position);
  ++record.head;
  if (record.head * size_t{2} > record.at.size() + 8) {
    record.at.erase(record.at.begin(), record.at.begin() + record.head);
    record.head = 0;
  }
  recycle_if_unused(identity);
}

void Identities::recycle_if_unused(Identity identity) {
  IdentityRecord& record = identities_[identity];
  if (record.head < record.at.size() || record.holder || !record.used) return;
  if (record.marker) identities_[record.marker].marked = 0;
  if (record.marked) identities_[record.marked].marker = 0;
  Identity marker = record.marker;
  record = {};
  free_identities_.push_back(identity);
  if (marker) recycle_if_unused(marker);
}

uint64_t Identities::first_after(Identity identity, uint64_t position, uint64_t oldest) const {
  const IdentityRecord& record = identities_[identity];
  // Positions are less than 2^32 apart, so they are compared as distances from the oldest.
  uint32_t origin = static_cast<uint32_t>(oldest);
  auto begin = record.at.begin() + record.head;
  auto it = std::upper_bound(begin, record.at.end(), static_cast<uint32_t>(position),
                             [&](uint32_t a, uint32_t b) { return a - origin < b - origin; });
  if (it == record.at.end()) return 0;
  return oldest + static_cast<uint32_t>(*it - origin);
}

uint64_t Identities::oldest(Identity identity, uint64_t oldest) const {
  const IdentityRecord& record = identities_[identity];
  if (record.head == record.at.size()) return 0;
  return oldest + static_cast<uint32_t>(record.at[record.head] - static_cast<uint32_t>(oldest));
}

uint64_t Identities::recent(Identity identity, size_t back, uint64_t now) const {
  const IdentityRecord& record = identities_[identity];
  if (record.at.size() - record.head <= back) return 0;
  uint32_t low = record.at[record.at.size() - 1 - back];
  return now - static_cast<uint32_t>(static_cast<uint32_t>(now) - low);
}

bool Identities::rebind(Life life, Identity to, Events& events) {
  LifeRecord& record = lives_[life];
  Identity from = record.identity;
  if (from == to || identities_[to].holder) return false;
  IdentityRecord &source = identities_[from], &target = identities_[to];
  if (source.at.size() - source.head > rebind_events || source.marker || source.marked)
    return false;
  uint64_t oldest = events.oldest();
  uint32_t origin = static_cast<uint32_t>(oldest);
  if (source.head < source.at.size()) {
    // Only if every event of the identity is this life's.
    uint32_t first = source.at[source.head] - origin;
    if (oldest + first < record.born) return false;
    if (target.head < target.at.size() && target.at.back() - origin > first) return false;
  }
  for (size_t i = source.head; i < source.at.size(); ++i) {
    events.rename(oldest + static_cast<uint32_t>(source.at[i] - origin), to);
    target.at.push_back(source.at[i]);
  }
  source.at.clear();
  source.head = 0;
  source.holder = 0;
  target.holder = life;
  record.identity = to;
  recycle_if_unused(from);
  return true;
}

size_t Identities::bytes() const {
  size_t sum = lives_.capacity() * sizeof(LifeRecord) + free_lives_.capacity() * sizeof(Life) +
               identities_.capacity() * sizeof(IdentityRecord) +
               free_identities_.capacity() * sizeof(Identity);
  for (const IdentityRecord& record : identities_) sum += record.at.capacity() * sizeof(uint32_t);
  return sum;
}

}  // namespace firn::lifetimes
