#include "allocator/lifetimes/versions.h"

#include <algorithm>

namespace firn::lifetimes {

/// Counts each value's versions, and the operators that name it.
void Versions::number(const Operators& operators) {
  const size_t values = operators.values.size();
  std::vector<uint32_t> versions(values, 1), last(values, none);
  uses_at_.assign(values + 1, 0);
  for (uint32_t i = 0; i < operators.count(); ++i) {
    const Operator& one = operators.operators[i];
    for (const uint32_t value : operators.writes(one)) ++versions[value];
    for (const uint32_t value : operators.named(one))
      if (last[value] != i) last[value] = i, ++uses_at_[value + 1];
  }
  first_.assign(values + 1, 0);
  for (size_t v = 0; v < values; ++v) {
    first_[v + 1] = first_[v] + versions[v];
    uses_at_[v + 1] += uses_at_[v];
  }
  value_.resize(first_[values]);
  maker_.assign(first_[values], none);
  unwritten_.assign(first_[values], 0);
  uses_.resize(uses_at_[values]);
  for (uint32_t v = 0; v < values; ++v)
    std::fill(value_.begin() + first_[v], value_.begin() + first_[v + 1], v);
}

Versions::Versions(const Operators& operators) {
  number(operators);
  std::vector<uint32_t> now(first_.begin(), first_.end() - 1);  // per value: its version
  std::vector<uint32_t> used(uses_at_.begin(), uses_at_.end() - 1), last(now.size(), none);
  read_at_.push_back(0);
  made_at_.push_back(0);
  for (uint32_t i = 0; i < operators.count(); ++i) {
    const Operator& one = operators.operators[i];
    for (const uint32_t value : operators.reads(one)) read_.push_back(now[value]);
    for (const uint32_t value : operators.writes(one)) {
      const bool is_new = last[value] == none && !operators.values[value].persistent;
      const auto reads = operators.reads(one);
      if (std::find(reads.begin(), reads.end(), value) != reads.end()) continue;
      if (is_new)
        unwritten_[now[value]] = 1;
      else
        read_.push_back(now[value]);
    }
    for (const uint32_t value : operators.writes(one)) {
      made_.push_back(++now[value]);
      maker_[now[value]] = i;
    }
    for (const uint32_t value : operators.named(one))
      if (last[value] != i) last[value] = i, uses_[used[value]++] = i;
    read_at_.push_back(static_cast<uint32_t>(read_.size()));
    made_at_.push_back(static_cast<uint32_t>(made_.size()));
  }
  find_state(operators);
}

/// Fills in the versions that operators read and make when they run again.
void Versions::find_state(const Operators& operators) {
  read_again_at_.push_back(0);
  made_again_at_.push_back(0);
  for (uint32_t i = 0; i < operators.count(); ++i) {
    const Operator& one = operators.operators[i];
    const auto is_state = [&](uint32_t made) {
      return one.leaves_state && operators.values[value_[made]].persistent;
    };
    uint32_t listed = 0, at = 0;
    for (const uint32_t version : read(i)) {
      const bool state = overwritten(version) == i && is_state(version);
      if (at++ < one.reads) listed += !state;
      if (!state) read_again_.push_back(version);
    }
    for (const uint32_t version : made(i))
      if (!is_state(version)) made_again_.push_back(version);
    reads_again_.push_back(listed);
    read_again_at_.push_back(static_cast<uint32_t>(read_again_.size()));
    made_again_at_.push_back(static_cast<uint32_t>(made_again_.size()));
  }
}

uint32_t Versions::before(uint32_t value, uint32_t at) const {
  // Makers of a value's versions ascend, and the first has none.
  const auto begin = maker_.begin() + first_[value] + 1, end = maker_.begin() + first_[value + 1];
  return first_[value] + static_cast<uint32_t>(std::lower_bound(begin, end, at) - begin);
}

}  // namespace firn::lifetimes
