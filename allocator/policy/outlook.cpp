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
         (!(w & word::freed) || block.kept);
}

void Outlook::clear() {
  blocks_.clear();
  items_.clear();
  steps_.clear();
  all_steps_.clear();
  host_uses_.clear();
  host_uses_passed_ = 0;
  hosts_ = false;
  parts_.clear();
  std::fill(part_of_.begin(), part_of_.end(), none);
  std::fill(first_of_.begin(), first_of_.end(), none);
  kept_.clear();
  first_kept_of_.clear();
}

uint32_t& Outlook::part_of(Identity identity) {
  if (identity >= part_of_.size()) {
    part_of_.resize(identity + 1024, none);
    first_of_.resize(part_of_.size(), none);
  }
  return part_of_[identity];
}

/// None: it has not been added, or was never seen.
uint32_t Outlook::part_of(const Learner& learner, const Block& block) {
  if (const auto kept = kept_.find(&block); kept != kept_.end()) return kept->second;
  const Life life = learner.life_of(block);
  return life ? part_of(learner.history().identity(life)) : none;
}

uint32_t Outlook::add_part(const Learner& learner, const Block& block) {
  const auto part = static_cast<uint32_t>(parts_.size());
  parts_.emplace_back();
  if (block.kept) {
    kept_[&block] = part;
    parts_[part].freed = true;
    parts_[part].identity = learner.last_identity_of(block);
  } else if (const Life life = learner.life_of(block)) {
    play(part, learner.history().identity(life));
  }
  return part;
}

void Outlook::play(uint32_t part, Identity identity) {
  part_of(identity) = part;
  parts_[part].identity = identity;
}

void Outlook::add(const Learner& learner, Block& block, lifetimes::Item item, bool assume) {
  const History& history = learner.history();
  const Life life = learner.life_of(block);
  if (assume && !block.kept && (!life || !history.foreseen(life)))
    item.assumed = history.period() / 2;
  blocks_.push_back({&block, block.generation, block.age.load(std::memory_order_relaxed)});
  const auto of = static_cast<uint32_t>(items_.size());
  items_.push_back(item);
  Part& part = parts_[add_part(learner, block)];
  part.item = of;
  if (block.kept)
    first_kept_of_[part.identity] = of;
  else if (life)
    first_of_[history.identity(life)] = of;
}

void Outlook::add_dropped(const Learner& learner, const Block& block, uint64_t pages) {
  parts_[add_part(learner, block)].dropped = pages;
}

void Outlook::add_recipe(const Learner& learner, const Block& block, const Block& input) {
  const uint32_t part = part_of(learner, block), from = part_of(learner, input);
  if (part != none && from != none) need(part, from);
}

/// A block that still has the identity goes on as another, and is freed as that.
void Outlook::step_aside(const History& history, Identity identity) {
  uint32_t older = std::exchange(part_of(identity), none);
  while (older != none && (identity = history.marker(identity))) {
    const uint32_t there = part_of(identity);
    play(older, identity);
    older = there;
  }
}

void Outlook::need(uint32_t part, uint32_t input) {
  if (part == input) return;
  parts_[part].needs.push_back(input);
  ++parts_[input].needed_by;
}

/// The same as in the last period.
void Outlook::need_inputs(const Learner& learner, uint32_t part, Identity identity) {
  for (const Identity input : learner.made_from(identity))
    if (const uint32_t from = part_of(input); from != none) need(part, from);
}

void Outlook::release_inputs(uint32_t part, uint64_t ahead) {
  for (const uint32_t input : std::exchange(parts_[part].needs, {}))
    if (--parts_[input].needed_by == 0 && parts_[input].freed) end(input, ahead);
}

void Outlook::step(uint32_t part, Step::Kind kind, uint64_t ahead) {
  if (parts_[part].item == none) return;
  steps_.push_back({ahead, kind, parts_[part].item});
  if (hosts_) all_steps_.push_back(steps_.back());
}

void Outlook::foresee_host_uses(const Learner& learner) {
  for (const Learner::HostUsed& last : learner.host_uses())
    if (const uint64_t ahead = learner.host_use_ahead(last); ahead <= learner.history().period())
      host_uses_.push_back({ahead, last.identity, last.writes});
  std::sort(host_uses_.begin(), host_uses_.end(), [](const HostUse& a, const HostUse& b) {
    return a.ahead != b.ahead ? a.ahead < b.ahead : a.identity < b.identity;
  });
  hosts_ = !host_uses_.empty();
}

/// Those behind the event.
void Outlook::step_at_host(uint64_t ahead) {
  for (; host_uses_passed_ < host_uses_.size(); ++host_uses_passed_) {
    const HostUse& use = host_uses_[host_uses_passed_];
    if (use.ahead > ahead) return;
    const uint32_t part = part_of(use.identity);
    if (part == none || parts_[part].item == none) continue;
    all_steps_.push_back({ahead, use.writes ? Step::Kind::host_write : Step::Kind::host_read,
                          parts_[part].item});
  }
}

void Outlook::bear(uint32_t part, uint64_t pages, uint64_t ahead) {
  const auto item = parts_[part].item = static_cast<uint32_t>(items_.size());
  items_.push_back({.size = pages, .born = true});
  step(part, Step::Kind::birth, ahead);
  if (parts_[part].freed || !parts_[part].identity) return;
  if (uint32_t& first = first_of_[parts_[part].identity]; first == none) first = item;
}

void Outlook::drop(uint32_t part, uint64_t ahead) {
  parts_[part].dropped = items_[parts_[part].item].size;
  step(part, Step::Kind::death, ahead);
  parts_[part].item = none;
}

/// Its inputs are on the device first.
void Outlook::make_again(uint32_t part, uint64_t ahead) {
  const uint64_t pages = std::exchange(parts_[part].dropped, 0);
  for (size_t i = 0; i < parts_[part].needs.size(); ++i)
    if (const uint32_t input = parts_[part].needs[i]; parts_[input].dropped)
      make_again(input, ahead);
  for (const uint32_t input : parts_[part].needs) step(input, Step::Kind::read, ahead);
  bear(part, pages, ahead);
  release_inputs(part, ahead);
}

/// By the program.
void Outlook::free(uint32_t part, uint64_t ahead) {
  parts_[part].freed = true;
  if (parts_[part].needed_by == 0) return end(part, ahead);
  if (!parts_[part].dropped) release_inputs(part, ahead);
}

void Outlook::end(uint32_t part, uint64_t ahead) {
  step(part, Step::Kind::death, ahead);
  parts_[part].item = none;
  parts_[part].dropped = 0;
  release_inputs(part, ahead);
}

void Outlook::look_ahead(
    const Learner& learner,
    const std::function<uint64_t(const History::Upcoming&)>& pages_to_come) {
  const History& history = learner.history();
  const uint64_t period = history.period();
  foresee_host_uses(learner);
  for (uint64_t ahead = 1; ahead <= period; ++ahead) {
    step_at_host(ahead - 1);
    const History::Upcoming coming = history.upcoming(ahead);
    const Identity identity = coming.identity;
    const uint64_t dropped_behind = learner.dropped_behind(identity) + period;
    const uint64_t event = history.now() + ahead;
    if (coming.kind == EventKind::allocate) {
      step_aside(history, identity);
      const auto part = static_cast<uint32_t>(parts_.size());
      parts_.emplace_back();
      play(part, identity);
      bear(part, pages_to_come(coming), ahead);
      if (dropped_behind > event) need_inputs(learner, part, identity);
      continue;
    }
    const uint32_t part = part_of(identity);
    if (part == none) continue;
    if (coming.kind == EventKind::free) {
      part_of(identity) = none;
      free(part, ahead);
      continue;
    }
    if (parts_[part].dropped) make_again(part, ahead);
    step(part, coming.kind == EventKind::touch_write ? Step::Kind::write : Step::Kind::read, ahead);
    if (dropped_behind != event || parts_[part].item == none) continue;
    if (parts_[part].needs.empty()) need_inputs(learner, part, identity);
    drop(part, ahead);
  }
  step_at_host(period);
  for (size_t identity = 0; identity < part_of_.size(); ++identity)
    if (const uint32_t part = part_of_[identity]; part != none && parts_[part].item != none)
      items_[parts_[part].item].again = first_of_[identity];
  for (const Part& part : parts_) {
    if (!part.freed || part.item == none) continue;
    const auto first = first_kept_of_.find(part.identity);
    if (first != first_kept_of_.end()) items_[part.item].again = first->second;
  }
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
