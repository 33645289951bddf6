#include "allocator/lifetimes/operator_steps.h"

#include <algorithm>

namespace firn::lifetimes {

namespace {

/// Operators that name a value first and last; none: no operator does.
struct NamedBy {
  uint32_t first = none, last = none;
};

std::vector<NamedBy> lives(const Operators& operators) {
  std::vector<NamedBy> lives(operators.values.size());
  for (uint32_t i = 0; i < operators.count(); ++i)
    for (const uint32_t value : operators.named(operators.operators[i])) {
      if (lives[value].first == none) lives[value].first = i;
      lives[value].last = i;
    }
  return lives;
}

}  // namespace

OperatorSteps::OperatorSteps(const Operators& operators, uint64_t page_bytes,
                             uint64_t bytes_least) {
  const std::vector<NamedBy> life = lives(operators);
  std::vector<uint32_t> item(operators.values.size(), none);
  for (uint32_t v = 0; v < operators.values.size(); ++v) {
    const Value& value = operators.values[v];
    if (value.bytes < bytes_least || life[v].first == none) continue;
    item[v] = static_cast<uint32_t>(items.size());
    items.push_back({.size = (value.bytes + page_bytes - 1) / page_bytes,
                     .born = !value.persistent});
    if (value.persistent) items.back().again = item[v];
  }
  const auto step = [&](Step::Kind kind, uint32_t of) {
    steps.push_back({steps.size() + 1, kind, of});
    before_ns.push_back(after_ns);
    after_ns = 0;
  };
  for (uint32_t i = 0; i < operators.count(); ++i) {
    const Operator& one = operators.operators[i];
    const auto reads = operators.reads(one), writes = operators.writes(one);
    const auto is_born = [&](uint32_t v) {
      return !operators.values[v].persistent && life[v].first == i;
    };
    const auto is_in = [](std::span<const uint32_t> values, uint32_t v) {
      return std::find(values.begin(), values.end(), v) != values.end();
    };
    // It holds what it is given before it makes its results.
    for (const bool born : {false, true})
      for (const bool write : {false, true})
        for (const uint32_t v : write ? writes : reads) {
          if (item[v] == none || born != is_born(v) || (!write && is_in(writes, v))) continue;
          if (born) step(Step::Kind::birth, item[v]);
          step(write ? Step::Kind::write : Step::Kind::read, item[v]);
        }
    after_ns += one.ns;
    for (const bool write : {false, true})
      for (const uint32_t v : write ? writes : reads)
        if (item[v] != none && !operators.values[v].persistent && life[v].last == i &&
            !(write && is_in(reads, v)))
          step(Step::Kind::death, item[v]);
  }
}

void OperatorSteps::start_warm(uint64_t capacity, uint64_t host) {
  in_store.assign(items.size(), 0);
  for (size_t i = 0; i < items.size(); ++i) {
    Item& item = items[i];
    if (item.born) continue;
    item.on_device = std::min(item.size, capacity);
    capacity -= item.on_device;
    const uint64_t away = item.size - item.on_device, hosted = std::min(away, host);
    host -= hosted;
    in_store[i] = away - hosted;
  }
}

Rehearsal OperatorSteps::rehearsal(const RehearsalMachine& machine) const {
  Rehearsal rehearsal;
  rehearsal.items = items;
  rehearsal.steps = steps;
  rehearsal.before_ns = before_ns;
  rehearsal.after_ns = after_ns;
  rehearsal.in_store = in_store;
  rehearsal.machine = machine;
  return rehearsal;
}

std::vector<uint64_t> alive_bytes(const Operators& operators, uint64_t bytes_least) {
  const std::vector<NamedBy> life = lives(operators);
  std::vector<uint64_t> alive(operators.count() + 1, 0);
  uint64_t persistent = 0;
  for (uint32_t v = 0; v < operators.values.size(); ++v) {
    const Value& value = operators.values[v];
    if (life[v].first == none || value.bytes < bytes_least) continue;
    if (value.persistent) {
      persistent += value.bytes;
      continue;
    }
    alive[life[v].first] += value.bytes;
    alive[life[v].last + 1] -= value.bytes;  // (sums wrap around and back)
  }
  uint64_t sum = persistent;
  for (uint64_t& at : alive) at = sum += at;
  alive.pop_back();
  return alive;
}

}  // namespace firn::lifetimes
