// Locks: none.
#include "allocator/layout/search.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

namespace firn::layout {
namespace {

constexpr uint64_t no_bound = std::numeric_limits<uint64_t>::max();

}  // namespace

Search::Search(const Problem& problem, const std::atomic<bool>& stop)
    : problem_(problem), stop_(stop), sections_(problem) {
  const size_t items = problem.items.size();
  twins_.resize(items);
  std::vector<uint32_t> sorted(items);
  std::iota(sorted.begin(), sorted.end(), 0u);
  const auto key = [&](uint32_t i) {
    const Item& item = problem.items[i];
    return std::tuple(item.first, item.last, item.size);
  };
  std::sort(sorted.begin(), sorted.end(),
            [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
  for (size_t begin = 0; begin < items;) {
    size_t end = begin + 1;
    while (end < items && key(sorted[end]) == key(sorted[begin])) ++end;
    for (size_t i = begin; i < end; ++i)
      twins_[sorted[i]] = sorted[i + 1 < end ? i + 1 : begin];
    begin = end;
  }
  is_dirty_.assign(problem.sections(), 0);
}

void Search::reset(uint64_t height, std::span<const uint32_t> rank) {
  const size_t items = problem_.items.size(), sections = problem_.sections();
  height_ = height;
  rank_ = rank;
  floors_.assign(sections, 0);
  bytes_left_ = problem_.loads;
  items_left_.resize(sections);
  for (size_t s = 0; s < sections; ++s) 
    items_left_[s] = static_cast<uint32_t>(sections_.alive(static_cast<uint32_t>(s)).size());
  crossing_left_.assign(sections, 0);
  for (const Item& item : problem_.items)
    for (uint32_t s = item.first + 1; s < item.last; ++s) ++crossing_left_[s];
  offsets_.assign(items, 0);
  placed_.assign(items, 0);
  changes_.clear();
  for (uint32_t section : dirty_) is_dirty_[section] = 0;
  dirty_.clear();
}

Search::Outcome Search::attempt(uint64_t height, std::span<const uint32_t> rank,
                                uint64_t branches_max) {
  reset(height, rank);
  branches_left_ = branches_max;
  if (height < problem_.load) return Outcome::none;
  return solve({0, problem_.sections()});
}

Search::Outcome Search::solve(Range range) {
  for (uint32_t begin = range.begin; begin < range.end;) {
    if (items_left_[begin] == 0) {
      ++begin;
      continue;
    }
    uint32_t end = begin + 1;
    while (end < range.end && crossing_left_[end] > 0) ++end;
    const Outcome outcome = branch({begin, end});
    if (outcome != Outcome::found) return outcome;
    begin = end;
  }
  return Outcome::found;
}

uint32_t Search::choose(Range range) const {
  const uint64_t lowest =
      *std::min_element(floors_.begin() + range.begin, floors_.begin() + range.end);
  // Where fewest can lie at the lowest level, a wrong choice shows soonest.
  uint32_t chosen = 0, fewest = std::numeric_limits<uint32_t>::max();
  for (uint32_t s = range.begin; s < range.end && fewest > 1; ++s) {
    if (floors_[s] != lowest) continue;
    uint32_t candidates = 0, first = 0;
    for (uint32_t item : sections_.alive(s)) {
      if (placed_[item] || offsets_[item] != lowest) continue;
      if (candidates == 0 || rank_[item] < rank_[first]) first = item;
      ++candidates;
    }
    if (candidates >= fewest) continue;
    fewest = candidates;
    chosen = first;
  }
  return chosen;
}

Search::Outcome Search::branch(Range range) {
  const size_t before = changes_.size();
  for (;;) {
    if (branches_left_ == 0 || stop_.load(std::memory_order_relaxed)) return Outcome::gave_up;
    --branches_left_;
    const uint32_t item = choose(range);
    const size_t mark = changes_.size();
    if (place(item)) {
      const Outcome outcome = solve(range);
      if (outcome != Outcome::none) return outcome;
    }
    undo(mark);
    if (!exclude(item)) {
      undo(before);
      return Outcome::none;
    }
  }
}

bool Search::place(uint32_t index) {
  const Item& item = problem_.items[index];
  const uint64_t top = offsets_[index] + item.size;
  placed_[index] = 1;
  changes_.push_back({Change::Kind::placed, index, 0});
  for (uint32_t s = item.first; s < item.last; ++s) {
    bytes_left_[s] -= item.size;
    --items_left_[s];
  }
  for (uint32_t s = item.first + 1; s < item.last; ++s) --crossing_left_[s];
  for (uint32_t s = item.first; s < item.last; ++s)
    if (!raise_floor(s, top)) return false;
  return settle();
}

bool Search::exclude(uint32_t index) {
  const Item& item = problem_.items[index];
  // Higher, it rests on one that is not placed yet: nothing placed near it is above its bound.
  uint64_t bound = no_bound;
  for (uint32_t s = item.first; s < item.last; ++s)
    for (uint32_t other : sections_.alive(s))
      if (other != index && !placed_[other])
        bound = std::min(bound, offsets_[other] + problem_.items[other].size);
  if (bound == no_bound || bound + item.size > height_) return false;
  uint32_t twin = index;
  do {  // of twins the first in the order is the lowest
    if (!placed_[twin] && !raise_bound(twin, bound)) return false;
    twin = twins_[twin];
  } while (twin != index);
  return settle();
}

bool Search::raise_floor(uint32_t section, uint64_t floor) {
  if (floor <= floors_[section]) return true;
  changes_.push_back({Change::Kind::floor, section, floors_[section]});
  floors_[section] = floor;
  if (items_left_[section] == 0) return true;
  if (floor + bytes_left_[section] > height_) return false;
  for (uint32_t item : sections_.alive(section))
    if (!placed_[item] && !raise_bound(item, floor)) return false;
  mark_dirty(section);
  return true;
}

bool Search::raise_bound(uint32_t index, uint64_t bound) {
  const uint64_t before = offsets_[index];
  if (bound <= before) return true;
  const Item& item = problem_.items[index];
  if (bound + item.size > height_) return false;
  changes_.push_back({Change::Kind::bound, index, before});
  offsets_[index] = bound;
  for (uint32_t s = item.first; s < item.last; ++s)
    if (floors_[s] < bound) mark_dirty(s);
  return true;
}

void Search::mark_dirty(uint32_t section) {
  if (is_dirty_[section]) return;
  is_dirty_[section] = 1;
  dirty_.push_back(section);
}

bool Search::settle() {
  while (!dirty_.empty()) {
    const uint32_t section = dirty_.back();
    dirty_.pop_back();
    is_dirty_[section] = 0;
    if (items_left_[section] == 0) continue;
    uint64_t lowest = no_bound;
    for (uint32_t item : sections_.alive(section))
      if (!placed_[item]) lowest = std::min(lowest, offsets_[item]);
    if (!raise_floor(section, lowest)) return false;
  }
  return true;
}

void Search::undo(size_t changes) {
  for (uint32_t section : dirty_) is_dirty_[section] = 0;
  dirty_.clear();
  for (; changes_.size() > changes; changes_.pop_back()) {
    const Change& change = changes_.back();
    if (change.kind == Change::Kind::floor) {
      floors_[change.index] = change.before;
    } else if (change.kind == Change::Kind::bound) {
      offsets_[change.index] = change.before;
    } else {
      const Item& item = problem_.items[change.index];
      placed_[change.index] = 0;
      for (uint32_t s = item.first; s < item.last; ++s) {
        bytes_left_[s] += item.size;
        ++items_left_[s];
      }
      for (uint32_t s = item.first + 1; s < item.last; ++s) ++crossing_left_[s];
    }
  }
}

}  // namespace firn::layout
