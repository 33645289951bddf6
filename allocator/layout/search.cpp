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
  list_neighbours();
  list_left();
}

void Search::list_neighbours() {
  const std::vector<Item>& items = problem_.items;
  const auto each_neighbour = [&](uint32_t index, const auto& visit) {
    for (uint32_t other : sections_.alive(items[index].first))
      if (other != index) visit(other);
    for (uint32_t s = items[index].first + 1; s < items[index].last; ++s)
      for (uint32_t other : sections_.beginning(s)) visit(other);
  };
  neighbours_begin_.assign(items.size() + 1, 0);
  for (uint32_t i = 0; i < items.size(); ++i)
    each_neighbour(i, [&](uint32_t other) { ++neighbours_begin_[other + 1]; });
  std::partial_sum(neighbours_begin_.begin(), neighbours_begin_.end(), neighbours_begin_.begin());
  neighbours_.resize(neighbours_begin_.back());
  std::vector<uint32_t> by_size(items.size());
  std::iota(by_size.begin(), by_size.end(), 0u);
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](uint32_t a, uint32_t b) { return items[a].size < items[b].size; });
  std::vector<size_t> ends(neighbours_begin_.begin(), neighbours_begin_.end() - 1);
  for (uint32_t i : by_size)
    each_neighbour(i, [&](uint32_t other) { neighbours_[ends[other]++] = i; });
}

void Search::list_left() {
  const std::vector<Item>& items = problem_.items;
  left_begin_.assign(problem_.sections() + 1, 0);
  for (uint32_t s = 0; s < problem_.sections(); ++s)
    left_begin_[s + 1] = left_begin_[s] + sections_.alive(s).size();
  left_.resize(left_begin_.back());
  places_begin_.assign(items.size() + 1, 0);
  for (size_t i = 0; i < items.size(); ++i)
    places_begin_[i + 1] = places_begin_[i] + (items[i].last - items[i].first);
  places_.resize(places_begin_.back());
  for (uint32_t s = 0; s < problem_.sections(); ++s) {
    const std::span<const uint32_t> alive = sections_.alive(s);
    for (uint32_t at = 0; at < alive.size(); ++at) {
      left_[left_begin_[s] + at] = alive[at];
      places_[places_begin_[alive[at]] + s - items[alive[at]].first] = at;
    }
  }
}

void Search::reset(uint64_t height, std::span<const uint32_t> rank) {
  const size_t items = problem_.items.size(), sections = problem_.sections();
  height_ = height;
  rank_ = rank;
  floors_.assign(sections, 0);
  bytes_left_ = problem_.loads;
  items_left_.resize(sections);
  for (uint32_t s = 0; s < sections; ++s)
    items_left_[s] = static_cast<uint32_t>(sections_.alive(s).size());
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
                                Branching branching, uint64_t branches_max) {
  reset(height, rank);
  branching_ = branching;
  branches_left_ = branches_max;
  if (height < problem_.load) return Outcome::none;
  return solve({0, problem_.sections()});
}

Search::Outcome Search::solve(SectionRange range) {
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

uint32_t Search::choose(SectionRange range) const {
  const uint64_t lowest =
      *std::min_element(floors_.begin() + range.begin, floors_.begin() + range.end);
  // Where there is the least choice, a wrong one shows soonest.
  uint32_t chosen = 0;
  double least = std::numeric_limits<double>::max();
  for (uint32_t s = range.begin; s < range.end; ++s) {
    if (floors_[s] != lowest) continue;
    uint32_t candidates = 0, first = 0;
    for (uint32_t item : left_in(s)) {
      if (offsets_[item] != lowest) continue;
      if (candidates == 0 || rank_[item] < rank_[first]) first = item;
      ++candidates;
    }
    const double choice =
        branching_ == Branching::fewest ? candidates : (candidates + 1.0) / items_left_[s];
    if (choice >= least) continue;
    least = choice;
    chosen = first;
  }
  return chosen;
}

Search::Outcome Search::branch(SectionRange range) {
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
    // Swaps with the last one left; it stays just behind those, where undo() finds it.
    const uint32_t at = places_[places_begin_[index] + s - item.first];
    const uint32_t end = --items_left_[s];
    const uint32_t last = left_[left_begin_[s] + end];
    std::swap(left_[left_begin_[s] + at], left_[left_begin_[s] + end]);
    places_[places_begin_[last] + s - problem_.items[last].first] = at;
    places_[places_begin_[index] + s - item.first] = end;
  }
  for (uint32_t s = item.first + 1; s < item.last; ++s) --crossing_left_[s];
  for (uint32_t s = item.first; s < item.last; ++s) {
    if (!raise_floor(s, top)) return false;
    for (uint32_t other : left_in(s))
      if (!raise_bound(other, top)) return false;
    mark_dirty(s);
  }
  return settle();
}

bool Search::exclude(uint32_t index) {
  const Item& item = problem_.items[index];
  // Placed higher, it rests on an unplaced neighbour: placed ones end at or below its bound, the
  // lowest of all. Goes from the smallest neighbour on: soon none can be lower.
  const uint64_t lowest = offsets_[index];
  uint64_t bound = no_bound;
  for (size_t at = neighbours_begin_[index]; at < neighbours_begin_[index + 1]; ++at) {
    const uint32_t other = neighbours_[at];
    const uint64_t size = problem_.items[other].size;
    if (lowest + size >= bound) break;
    if (!placed_[other]) bound = std::min(bound, offsets_[other] + size);
  }
  if (bound == no_bound || bound + item.size > height_) return false;
  uint32_t twin = index;
  do {  // of twins the first in rank is the lowest
    if (!placed_[twin] && !raise_bound(twin, bound)) return false;
    twin = twins_[twin];
  } while (twin != index);
  return settle();
}

bool Search::raise_floor(uint32_t section, uint64_t floor) {
  changes_.push_back({Change::Kind::floor, section, floors_[section]});
  floors_[section] = floor;
  return items_left_[section] == 0 || floor + bytes_left_[section] <= height_;
}

bool Search::raise_bound(uint32_t index, uint64_t bound) {
  const uint64_t before = offsets_[index];
  if (bound <= before) return true;
  const Item& item = problem_.items[index];
  if (bound + item.size > height_) return false;
  changes_.push_back({Change::Kind::bound, index, before});
  offsets_[index] = bound;
  // A floor is the lowest bound in its section: it changes only where this one was it.
  for (uint32_t s = item.first; s < item.last; ++s)
    if (floors_[s] == before) mark_dirty(s);
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
    for (uint32_t item : left_in(section)) lowest = std::min(lowest, offsets_[item]);
    if (lowest > floors_[section] && !raise_floor(section, lowest)) return false;
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
