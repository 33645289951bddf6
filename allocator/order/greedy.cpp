// Locks: none.
#include "allocator/order/greedy.h"

#include <algorithm>
#include <iterator>

namespace firn::order {

Greedy::Greedy(const Graph& graph, std::span<const uint32_t> given, Turn& turn)
    : graph_(graph), given_(given), turn_(turn), position_(graph.ops()), mark_(graph.ops(), 0),
      uses_(graph.storages(), 0) {
  for (uint32_t at = 0; at < given.size(); ++at) position_[given[at]] = at;
}

void Greedy::reset() {
  done_.assign(graph_.ops(), 0);
  namers_left_.resize(graph_.storages());
  for (uint32_t i = 0; i < graph_.storages(); ++i)
    namers_left_[i] = static_cast<uint32_t>(graph_.named_by[i].size());
  units_.assign(graph_.storages(), {});
  watched_by_.assign(graph_.ops(), {});
  is_stale_.assign(graph_.storages(), 0);
  stale_.clear();
  freeing_.clear();
  growing_.clear();
  by_peak_.clear();
  order_.clear();
  next_ = 0;
  alive_ = graph_.at_start;
  for (uint32_t i = 0; i < graph_.storages(); ++i) look(i);
}

std::vector<uint32_t> Greedy::run(uint64_t budget, Else otherwise) {
  reset();
  for (; order_.size() < graph_.ops(); look_again()) {
    while (done_[given_[next_]]) ++next_;
    if (turn_.over()) {
      std::copy_if(given_.begin(), given_.end(), std::back_inserter(order_),
                   [&](uint32_t op) { return !done_[op]; });
      break;
    }
    const uint32_t unit = next_unit(budget, otherwise);
    unit == nothing ? run_op(given_[next_]) : run_unit(unit);
  }
  return order_;
}

uint32_t Greedy::next_unit(uint64_t budget, Else otherwise) const {
  const auto first_that_fits = [&](const std::set<Choice>& choices) {
    for (const Choice& choice : choices)
      if (alive_ + static_cast<uint64_t>(units_[choice.storage].peak) <= budget)
        return choice.storage;
    return nothing;
  };
  uint32_t unit = first_that_fits(freeing_);
  if (unit != nothing) return unit;
  if (otherwise == Else::least_growth) {
    unit = first_that_fits(growing_);
    if (unit != nothing) return unit;
  }
  const bool fits = alive_ + graph_.made_bytes[given_[next_]] <= budget;
  return fits || by_peak_.empty() ? nothing : by_peak_.begin()->storage;
}

void Greedy::forget(uint32_t storage) {
  const Unit& unit = units_[storage];
  if (!unit.small) return;
  freeing_.erase({unit.growth, storage});
  growing_.erase({unit.growth, storage});
  by_peak_.erase({unit.peak, storage});
}

void Greedy::look(uint32_t storage) {
  forget(storage);
  Unit& unit = units_[storage];
  const bool watched = unit.small;  // by all that it can still hold
  unit = {};
  if (namers_left_[storage] == 0) return;
  ++marks_;
  const auto visit = [&](uint32_t op) {
    if (done_[op] || mark_[op] == marks_ || unit.ops.size() > unit_max) return;
    mark_[op] = marks_;
    unit.ops.push_back(op);
  };
  for (const uint32_t op : graph_.named_by[storage]) visit(op);
  for (size_t at = 0; at < unit.ops.size(); ++at)
    for (const uint32_t op : graph_.before[unit.ops[at]]) visit(op);
  turn_.spend(unit.ops.size());
  if (!watched)
    for (const uint32_t op : unit.ops) watched_by_[op].push_back(storage);
  if (unit.ops.size() > unit_max) return;
  unit.small = true;
  std::sort(unit.ops.begin(), unit.ops.end(),
            [&](uint32_t a, uint32_t b) { return position_[a] < position_[b]; });
  cost(unit);
  (unit.growth <= 0 ? freeing_ : growing_).insert({unit.growth, storage});
  by_peak_.insert({unit.peak, storage});
}

void Greedy::cost(Unit& unit) {
  int64_t alive = 0;
  for (const uint32_t op : unit.ops) {
    alive += static_cast<int64_t>(graph_.made_bytes[op]);
    unit.peak = std::max(unit.peak, alive);
    for (const uint32_t storage : graph_.names[op]) {
      if (uses_[storage]++ == 0) touched_.push_back(storage);
      if (uses_[storage] == namers_left_[storage])
        alive -= static_cast<int64_t>(graph_.bytes[storage]);
    }
  }
  unit.growth = alive;
  for (const uint32_t storage : touched_) uses_[storage] = 0;
  touched_.clear();
}

void Greedy::run_unit(uint32_t storage) {
  const std::vector<uint32_t> ops = units_[storage].ops;
  for (const uint32_t op : ops) run_op(op);
}

void Greedy::run_op(uint32_t op) {
  turn_.spend(1 + watched_by_[op].size());
  done_[op] = 1;
  order_.push_back(op);
  alive_ += graph_.made_bytes[op];
  for (const uint32_t storage : graph_.names[op])
    if (--namers_left_[storage] == 0) alive_ -= graph_.bytes[storage];
  for (const uint32_t storage : watched_by_[op])
    if (!is_stale_[storage] && (units_[storage].small || ++units_[storage].done == done_max)) {
      is_stale_[storage] = 1;
      stale_.push_back(storage);
    }
  watched_by_[op].clear();
}

void Greedy::look_again() {
  for (const uint32_t storage : stale_) {
    is_stale_[storage] = 0;
    look(storage);
  }
  stale_.clear();
}

}  // namespace firn::order
