#include "allocator/lifetimes/twin.h"

#include <algorithm>
#include <bit>

namespace firn::lifetimes {

namespace {
constexpr int credit_most = 24, credit_short = 9, surprise_cost = 3, slip_events = 8;
constexpr int slide_most = 24;         // events missing or new that are slid over at once
constexpr uint64_t window = 8;         // events compared when sliding
constexpr uint64_t window_must = 4;    // the newest of them must all agree
constexpr size_t look_back_most = 12;  // earlier events of a block that are compared with now
constexpr uint64_t evidence_events = 16;
constexpr double fading = 63.0 / 64, contradiction_free = 0.5, contradiction_share = 0.25;
// So much evidence, hardly contradicted, outweighs a difference of memory in use: the second
// iteration has gradients and moments that the first lacked.
constexpr double agree_alone = 8, agree_enough = 3;
// A program that has been unknown for long is searched less often.
constexpr uint64_t unknown_long = 4096, unknown_every = 5;
constexpr uint64_t coarse_over = 128;  // exact events in a row after which a match is exact again

bool close(uint64_t a, uint64_t b, uint64_t part, uint64_t slack) {
  uint64_t large = std::max(a, b), small = std::min(a, b);
  return large - small <= large / part + slack;
}

/// How well an event of now and one of then agree, for sliding; 0: not at all.
int likeness(const Event& a, const Event& b) {
  if (a.kind_bits != b.kind_bits) return 0;
  if (a.allocates()) return a.bytes == b.bytes ? 2 : 0;
  return a.identity == b.identity ? 3 : a.bytes == b.bytes ? 1 : 0;
}

int likeness(const Events& events, uint64_t position) {
  int sum = 0;
  for (uint64_t i = 0; i < window; ++i) {
    int one = likeness(events[events.now() - i], events[position - i]);
    if (one == 0 && i < window_must) return 0;
    sum += one;
  }
  return sum;
}

}  // namespace

Twin::Grade Twin::grade(const Event& event, const Event& twin, bool old) {
  if (event.kind_bits != twin.kind_bits) return Grade::none;
  if (event.allocates()) return event.bytes == twin.bytes ? Grade::same : Grade::weak;
  if (event.identity == twin.identity) return Grade::same;
  if (old) return Grade::contradiction;
  return event.bytes == twin.bytes ? Grade::same : Grade::weak;
}

void Twin::move_to(uint64_t position) {
  *this = {};
  position_ = position;
  matched_ = known_ = true;
  credit_ = credit_most;
  agree_ = evidence_events;
}

void Twin::judge(Grade grade, bool agrees) {
  paired_ = grade == Grade::same || grade == Grade::weak;
  if (agrees || grade == Grade::contradiction) {
    agree_ = agree_ * fading + (agrees ? 1 : 0);
    contradict_ = contradict_ * fading + (agrees ? 0 : 1);
  }
  if (grade == Grade::same) {
    ++run_;
    credit_ = std::min(credit_ + 1, credit_most);
    slipping_ = std::max(slipping_ - 1, 0);
    if (run_ >= coarse_over) coarse_ = false;
  } else if (grade == Grade::weak) {
    run_ = 0;
    coarse_ = true;
  } else {
    credit_ -= surprise_cost;
    slipping_ = slip_events;
  }
}

void Twin::advance(const Events& events, const Contexts& contexts, const Identities& identities,
                   Life of) {
  const Identities::LifeRecord& life = identities[of];
  paired_ = false;
  unknown_ = known_ ? 0 : unknown_ + 1;
  bool search = unknown_ <= unknown_long || unknown_ % unknown_every == 0;
  if (matched_ && !events.holds(position_ + 1)) matched_ = false;
  if (matched_) {
    ++position_;
    const Event &event = events[events.now()], &twin = events[position_];
    bool old = !event.allocates() && life.born <= position_;
    Grade one = grade(event, twin, old);
    judge(one, old && event.identity == twin.identity && one == Grade::same);
    if (slipping_ && search) realign(events);
    if (credit_ < 0) matched_ = false;
  }
  if (search) {
    look_up(events, contexts);
    if (!matched_) look_back(events, identities, life);
  }
  const Event& now = events[events.now()];
  known_ = matched_ && contradict_ <= contradiction_free + agree_ * contradiction_share &&
           (agree_ >= 2 ||
            (run_ >= evidence_events && now.live_bytes == events[position_].live_bytes)) &&
           (agree_ >= agree_alone + contradict_ * agree_alone ||
            live_agrees(events, position_, coarse_));
}

void Twin::realign(const Events& events) {
  uint64_t now = events.now(), lowest = std::max<uint64_t>(events.oldest(), 1) + window;
  int best = position_ >= lowest ? likeness(events, position_) : 0;
  uint64_t found = position_;
  for (int slide = 1; slide <= slide_most; ++slide) {
    for (int sign : {1, -1}) {
      uint64_t candidate = position_ + static_cast<uint64_t>(sign * slide);
      if (candidate < lowest || candidate >= now) continue;
      int one = likeness(events, candidate);
      // Clearly better than where we are, and the nearest such.
      if (one > best + 2) best = one, found = candidate;
    }
  }
  if (found == position_) return;
  position_ = found;
  paired_ = true;
}

bool Twin::live_agrees(const Events& events, uint64_t candidate, bool coarse) const {
  const Event &now = events[events.now()], &then = events[candidate];
  return close(now.live_count, then.live_count, 50, 4) &&
         (coarse ? close(now.live_bytes, then.live_bytes / 4, 1, 0) &&
                       now.live_bytes / 4 <= then.live_bytes
                 : close(now.live_bytes, then.live_bytes, 50, 0));
}

bool Twin::accept(const Events& events, uint64_t candidate, const Contexts::Kind& kind,
                  double enough) {
  uint64_t now = events.now(), distance = now - candidate;
  if (kind.live && events[now].live_bytes != events[candidate].live_bytes) return false;
  double agree = 0, contradict = 0;
  for (uint64_t i = 0; i < std::min(evidence_events, kind.length); ++i) {
    const Event &event = events[now - i], &twin = events[candidate - i];
    if (event.allocates() || event.age <= std::bit_width(distance)) continue;
    (event.identity == twin.identity ? agree : contradict) += 1;
  }
  if (contradict > contradiction_free + agree * contradiction_share) return false;
  if ((agree < enough || contradict > 0) && !live_agrees(events, candidate, kind.coarse))
    return false;
  position_ = candidate;
  matched_ = paired_ = true;
  coarse_ = kind.coarse;
  run_ = kind.coarse ? 0 : kind.length;
  credit_ = kind.length >= coarse_over ? credit_most : credit_short;
  slipping_ = 0;
  agree_ = agree;
  contradict_ = contradict;
  return true;
}

void Twin::look_back(const Events& events, const Identities& identities,
                     const Identities::LifeRecord& life) {
  const Event& now = events[events.now()];
  uint64_t lowest = std::max<uint64_t>(events.oldest(), 1) + evidence_events;
  for (size_t back = 1; back <= look_back_most; ++back) {
    uint64_t candidate = identities.recent(life.identity, back, events.now());
    if (candidate < lowest) return;
    if (events[candidate].kind_bits != now.kind_bits || likeness(events, candidate) == 0) continue;
    // The presence of this very block is evidence by itself.
    if (candidate < life.born) return;
    if (accept(events, candidate, {evidence_events, false, false, 0}, 0)) {
      run_ = window_must;
      agree_ = std::max(agree_, 1.0);
      return;
    }
  }
}

void Twin::look_up(const Events& events, const Contexts& contexts) {
  for (size_t which = 0; which < Contexts::kinds.size(); ++which) {
    const Contexts::Kind& kind = Contexts::kinds[which];
    bool lost = !matched_;
    if (!lost && (kind.coarse || (!slipping_ && kind.length <= run_))) continue;
    if (!contexts.due(events, which)) continue;
    uint64_t candidate = contexts.find(events, which);
    if (candidate == 0) continue;
    // The present position is as good: stay.
    if (!lost &&
        (candidate == position_ || contexts.same(events, which, events.now(), position_))) {
      run_ = std::max(run_, kind.length);
      return;
    }
    if (accept(events, candidate, kind, agree_enough)) return;
  }
}

}  // namespace firn::lifetimes
