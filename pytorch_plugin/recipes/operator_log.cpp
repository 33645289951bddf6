#include "pytorch_plugin/recipes/operator_log.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace firn::pytorch {

using lifetimes::Operators;

void OperatorLog::clear() {
  operators_.clear();
  uses_.clear();
  frees_from_ = 0;
}

void OperatorLog::begin(uint64_t signature) {
  operators_.push_back({signature, 0, 0, frees_from_, false});
}

void OperatorLog::use(const void* base, uint64_t bytes, Use use, uint8_t result_at) {
  if (use == Use::result)  // (it may return what it was given)
    for (size_t u = operators_.back().uses_at; u < uses_.size(); ++u)
      if (uses_[u].base == base && uses_[u].bytes != 0 && uses_[u].use != Use::result) return;
  uses_.push_back({base, bytes, use, result_at});
}

void OperatorLog::end(bool again, uint64_t events) {
  operators_.back().again = again;
  operators_.back().events = events;
  frees_from_ = uses_.size();
}

void OperatorLog::freed(const void* base) {
  if (!operators_.empty()) uses_.push_back({base, 0, Use::read, 0});
}

std::optional<OperatorLog::Period> OperatorLog::period(uint64_t events) const {
  const size_t end = operators_.size();
  if (end < 4) return {};
  const uint64_t last = operators_.back().events;
  size_t count = 0;
  while (count < end && last - operators_[end - 1 - count].events < events) ++count;
  if (count < 2 || 2 * count > end) return {};
  for (size_t i = end - count; i < end; ++i)
    if (operators_[i].signature != operators_[i - count].signature) return {};
  // From where least is in use on: what crosses the ends counts as there all the time.
  std::unordered_map<const void*, uint64_t> bytes_of;
  uint64_t in_use = uint64_t{1} << 62, least = UINT64_MAX;  // (not all is known that was there)
  size_t first = end - 2 * count;
  for (size_t i = 0; i <= end - count; ++i) {
    for (size_t u = operators_[i].uses_at; u < uses_end(i); ++u) {
      const Used& use = uses_[u];
      uint64_t& of = bytes_of[use.base];
      if (use.bytes == 0) in_use -= std::exchange(of, 0);
      if (use.bytes == 0 && i >= end - 2 * count && in_use < least) least = in_use, first = i;
      if (use.bytes != 0 && of == 0) in_use += of = use.bytes;
    }
  }
  return Period{std::min(first, end - count), count};
}

Operators OperatorLog::operators(const Period& period,
                                 std::vector<std::vector<Result>>& results) const {
  Operators made;
  std::unordered_map<const void*, uint32_t> value_of;
  std::unordered_set<const void*> ended;  // freed, and not used since
  for (size_t u = 0; u < operators_[period.first].uses_at; ++u)
    if (uses_[u].bytes == 0)
      ended.insert(uses_[u].base);
    else
      ended.erase(uses_[u].base);
  results.assign(period.count, {});
  std::vector<uint32_t> reads, writes;
  const auto add_once = [](std::vector<uint32_t>& to, uint32_t value) {
    if (std::find(to.begin(), to.end(), value) == to.end()) to.push_back(value);
  };
  for (size_t i = 0; i < period.count; ++i) {
    const size_t at = period.first + i;
    reads.clear(), writes.clear();
    for (size_t u = operators_[at].uses_at; u < uses_end(at); ++u) {
      const Used& use = uses_[u];
      if (use.bytes == 0) {
        value_of.erase(use.base);
        ended.insert(use.base);
        continue;
      }
      const bool result = use.use == Use::result;
      const auto known = value_of.find(use.base);
      // (Memory that was allocated without an operator is written first as a whole.)
      const bool is_new = known == value_of.end() || result;
      const bool born = result || (use.use == Use::write && ended.erase(use.base) != 0);
      const uint32_t value = is_new ? static_cast<uint32_t>(made.values.size()) : known->second;
      if (is_new) {
        made.values.push_back({use.bytes, !born});
        value_of[use.base] = value;
      }
      if (result) results[i].push_back({value, use.result_at});
      if (use.use != Use::read) add_once(writes, value);
      if (!result && !(is_new && born)) add_once(reads, value);
    }
    made.add({.ns = operators_[at].ns, .again = operators_[at].again,
              .source = static_cast<uint32_t>(i)},
             reads, writes);
  }
  return made;
}

}  // namespace firn::pytorch
