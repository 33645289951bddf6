#include "allocator/policy/outlook.h"

#include <algorithm>
#include <utility>

namespace firn {

using lifetimes::Step;

uint64_t immovable_pages(const Block& block) {
  const uint64_t w = block.word.load(std::memory_order_relaxed);
  const State state = word::state(w);
  if (state == State::ready || state == State::draining || (w & word::freed)) return 0;
  return (w & word::pinned) || !(w & word::proven) ? block.device : 0;
}

bool may_move(const Block& block) {
  const uint64_t w = block.word.load(std::memory_order_relaxed);
  const State state = word::state(w);
  return block.segment == 0 && immovable_pages(block) == 0 && state != State::ready &&
         state != State::draining && state != State::lost && state != State::free &&
         !(w & word::freed);
}

void Outlook::clear() {
  blocks_.clear();
  items_.clear();
  steps_.clear();
  std::fill(item_of_.begin(), item_of_.end(), 0);
  std::fill(first_of_.begin(), first_of_.end(), 0);
  std::fill(dropped_.begin(), dropped_.end(), 0);
}

void Outlook::make_room_for(Identity identity) {
  if (identity < item_of_.size()) return;
  item_of_.resize(identity + 1024);
  first_of_.resize(identity + 1024);
  dropped_.resize(identity + 1024);
}

void Outlook::add(const Learner& learner, Block& block, lifetimes::Item item, bool assume) {
  const History& history = learner.history();
  const Life life = learner.life_of(block);
  if (assume && (!life || !history.foreseen(life))) item.assumed = history.period() / 2;
  blocks_.push_back({&block, block.generation, block.age.load(std::memory_order_relaxed)});
  items_.push_back(item);
  if (!life) return;
  const Identity identity = history.identity(life);
  make_room_for(identity);
  item_of_[identity] = first_of_[identity] = static_cast<uint32_t>(items_.size());
}

void Outlook::add_dropped(const Learner& learner, const Block& block, uint64_t pages) {
  const Life life = learner.life_of(block);
  if (!life) return;
  const Identity identity = learner.history().identity(life);
  make_room_for(identity);
  dropped_[identity] = pages;
}

/// An item takes the identity's part from that event on.
void Outlook::bear(Identity identity, uint64_t ahead, uint64_t pages) {
  items_.push_back({.size = pages, .born = true});
  const auto item = static_cast<uint32_t>(items_.size());
  item_of_[identity] = item;
  if (!first_of_[identity]) first_of_[identity] = item;
  steps_.push_back({ahead, Step::Kind::birth, item - 1});
}

void Outlook::look_ahead(
    const Learner& learner,
    const std::function<uint64_t(const History::Upcoming&)>& pages_to_come) {
  const History& history = learner.history();
  const uint64_t period = history.period();
  for (uint64_t ahead = 1; ahead <= period; ++ahead) {
    const History::Upcoming coming = history.upcoming(ahead);
    make_room_for(coming.identity);
    if (coming.kind == EventKind::allocate) {
      // A block that still has this identity goes on as another, and is freed as that.
      uint32_t older = std::exchange(item_of_[coming.identity], 0);
      uint64_t older_dropped = std::exchange(dropped_[coming.identity], 0);
      for (Identity at = coming.identity; (older || older_dropped) && (at = history.marker(at));) {
        make_room_for(at);
        std::swap(older, item_of_[at]);
        std::swap(older_dropped, dropped_[at]);
      }
      bear(coming.identity, ahead, pages_to_come(coming));
      continue;
    }
    uint32_t& item = item_of_[coming.identity];
    uint64_t& dropped = dropped_[coming.identity];
    if (coming.kind != EventKind::free && dropped)
      bear(coming.identity, ahead, std::exchange(dropped, 0));
    if (!item) continue;
    steps_.push_back({ahead,
                      coming.kind == EventKind::free          ? Step::Kind::death
                      : coming.kind == EventKind::touch_write ? Step::Kind::write
                                                              : Step::Kind::read,
                      item - 1});
    if (coming.kind == EventKind::free) {
      item = 0;
    } else if (learner.dropped_behind(coming.identity) + period == history.now() + ahead) {
      dropped = items_[item - 1].size;
      steps_.push_back({ahead, Step::Kind::death, item - 1});
      item = 0;
    }
  }
  for (size_t identity = 0; identity < item_of_.size(); ++identity)
    if (item_of_[identity]) items_[item_of_[identity] - 1].again = first_of_[identity] - 1;
}

std::vector<uint64_t> Outlook::step_times(const History& history, uint64_t period_ns) const {
  std::vector<uint64_t> times(steps_.size());
  uint64_t reached_ns = 0;
  for (size_t i = 0; i < times.size(); ++i) {
    const uint64_t ns = history.ns_until(steps_[i].ahead);
    if (ns != History::never) reached_ns = std::clamp(ns, reached_ns, period_ns);
    times[i] = reached_ns;
  }
  return times;
}

}  // namespace firn
