#include "allocator/lifetimes/history.h"

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "firn/check.h"

namespace firn::lifetimes {

namespace {
constexpr size_t stamps_most = 1 << 16;
constexpr int markers_followed = 3;
// Kept while the period is known: so many periods, and at least so many events. A small loop that
// runs for days needs no more.
constexpr uint64_t periods_kept = 64;
constexpr size_t events_kept_least = 1 << 16;
}  // namespace

History::History(size_t events_most)
    : events_(events_most), contexts_(events_.most()), stamps_(stamps_most) {}

Life History::allocate(uint64_t bytes) {
  Identity wanted = 0;
  if (known() && events_.holds(twin_.position() + 1)) {
    const Event& expected = events_[twin_.position() + 1];
    if (expected.allocates() && (expected.bytes == bytes || twin_.steady()))
      wanted = expected.identity;
    // Two lives that began in this very iteration hold it already: two roles were taken for one,
    // when a layer still looked like the layer before. From here on they are distinct.
    const auto here = [&](Identity identity) {
      const Life holder = identity ? identities_.holder(identity) : 0;
      return holder && identities_[holder].born > twin_.position() + 1;
    };
    if (here(wanted) && here(identities_.marker(wanted))) wanted = 0;
  }
  Life life = identities_.begin(bytes, now() + 1, wanted);
  feed(EventKind::allocate, life);
  return life;
}

void History::touch(Life life, bool write) {
  FIRN_CHECK(identities_.alive(life), "touch of life %u", life);
  feed(write ? EventKind::touch_write : EventKind::touch_read, life);
}

void History::free(Life life) {
  FIRN_CHECK(identities_.alive(life), "free of life %u", life);
  feed(EventKind::free, life);
  identities_.end(life);
}

void History::append(EventKind kind, Identity identity, bool persistent, uint64_t bytes,
                     uint64_t born, uint64_t live_bytes, uint32_t live_count) {
  if (events_.full()) {
    uint64_t oldest = events_.oldest();
    if (Identity gone = events_[oldest].identity) identities_.forget(gone, oldest);
  }
  Event event;
  event.bytes = bytes;
  event.live_bytes = live_bytes;
  event.live_count = live_count;
  event.identity = identity & 0xffffff;
  event.kind_bits = static_cast<uint32_t>(kind) & 3;
  event.age = static_cast<uint32_t>(std::bit_width(now() + 1 - born)) & 63;
  // A block that outlives iterations recurs as itself; others recur as blocks of their kind.
  uint64_t salt = static_cast<uint64_t>(kind) + 1;
  uint64_t self = mix(uint64_t{identity} << 8 | 0x80 | salt);
  events_.append(event, persistent ? self : mix(mix(bytes + 1) + salt),
                 persistent ? self : mix(salt));
  identities_.record(identity, now());
}

void History::feed(EventKind kind, Life life) {
  bool frees = kind == EventKind::free;
  Identities::LifeRecord& record = identities_[life];
  events_.want(known() ? std::max<size_t>(periods_kept * period(), events_kept_least)
                       : events_.most());
  append(kind, record.identity, record.persistent, record.bytes, record.born,
         identities_.live_bytes() - (frees ? record.bytes : 0),
         identities_.live_count() - (frees ? 1 : 0));
  twin_.advance(events_, contexts_, identities_, life);
  contexts_.insert(events_);
  if (!twin_.known() || !twin_.paired()) return;
  const Event& twin = events_[twin_.position()];
  if (twin.identity == record.identity) {
    if (record.born <= twin_.position()) record.persistent = true;
  } else if (twin.kind() == kind && twin_.steady() && record.born > twin_.position()) {
    identities_.rebind(life, twin.identity, events_);
  }
}

History::Upcoming History::upcoming(uint64_t ahead) const {
  if (!known() || ahead == 0) return {};
  const Event& event = events_[twin_.position() + 1 + (ahead - 1) % period()];
  return {event.kind(), event.identity, event.bytes, identities_.holder(event.identity)};
}

uint64_t History::next(Life life, bool touches_only, EventKind* kind) const {
  FIRN_CHECK(identities_.alive(life), "next use of life %u", life);
  if (!known()) return never;
  uint64_t position = twin_.position();
  Identity identity = identities_[life].identity;
  for (int i = 0; i < markers_followed && identity; ++i) {
    position = identities_.first_after(identity, position, events_.oldest());
    if (position == 0) return never;
    const Event& event = events_[position];
    if (event.allocates()) {
      // Its successor is allocated while it still lives: it continues as the marker.
      identity = identities_.marker(identity);
      continue;
    }
    if (touches_only && !event.touches()) return never;
    if (kind) *kind = event.kind();
    return position - twin_.position();
  }
  return never;
}

bool History::foreseen(Life life) const {
  FIRN_CHECK(identities_.alive(life), "is life %u foreseen", life);
  if (!known()) return false;
  uint64_t oldest = events_.oldest();
  uint64_t first = identities_.oldest(identities_[life].identity, oldest);
  return first != 0 && (first <= twin_.position() || first < identities_[life].born);
}

uint64_t History::next_use(Life life) const { return next(life, true, nullptr); }

uint64_t History::next_event(Life life, EventKind* kind) const { return next(life, false, kind); }

uint64_t History::ns_until(uint64_t ahead) const {
  if (!known()) return never;
  uint64_t twin = twin_.position(), ns = 0, period_ns = 0;
  if (!stamps_.between(twin, twin + ahead % period(), ns)) return never;
  if (ahead >= period() && !stamps_.between(twin, now(), period_ns)) return never;
  return ns + ahead / period() * period_ns;
}

uint64_t History::period_ns() const {
  uint64_t ns = 0;
  return known() && period() > 0 && stamps_.last(period(), ns) ? ns : never;
}

void History::preload(std::span<const Planned> plan) {
  FIRN_CHECK(plan.size() < events_.most(), "a plan of %zu events, %zu are kept", plan.size(),
             events_.most());
  struct Block {
    Identity identity;
    uint64_t bytes, born;
  };
  std::unordered_map<uint32_t, Block> blocks;
  events_.want(events_.most());
  uint64_t begin = now(), live_bytes = identities_.live_bytes();
  uint32_t live_count = identities_.live_count();
  for (const Planned& planned : plan) {
    if (planned.block < plan_block) {
      FIRN_CHECK(identities_.alive(planned.block), "a plan for life %u", planned.block);
      const Identities::LifeRecord& record = identities_[planned.block];
      blocks.try_emplace(planned.block, Block{record.identity, record.bytes, record.born});
    } else if (planned.kind == EventKind::allocate) {
      blocks[planned.block] = {identities_.fresh(), planned.bytes, now() + 1};
      live_bytes += planned.bytes;
      ++live_count;
    }
    auto it = blocks.find(planned.block);
    FIRN_CHECK(it != blocks.end(), "a plan uses block %u before it is allocated", planned.block);
    const Block& block = it->second;
    if (planned.kind == EventKind::free) {
      live_bytes -= block.bytes;
      --live_count;
    }
    append(planned.kind, block.identity, false, block.bytes, block.born, live_bytes, live_count);
    contexts_.insert(events_);
    if (planned.kind == EventKind::free) blocks.erase(it);
  }
  if (!plan.empty()) twin_.move_to(begin);
}

}  // namespace firn::lifetimes
