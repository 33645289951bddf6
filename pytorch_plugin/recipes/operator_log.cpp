#include "pytorch_plugin/recipes/operator_log.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace firn::pytorch {

using lifetimes::Operators;

void OperatorLog::clear() {
  operators_.clear();
  uses_.clear();
  frees_from_ = 0;
}

void OperatorLog::begin(uint64_t signature) {
  operators_.push_back({signature, 0, 0, 0, 0, 0, frees_from_, false});
}

void OperatorLog::use(const void* base, uint64_t bytes, Use use, uint8_t result_at) {
  if (use == Use::result)  // (it may return what it was given, or two views of what it makes)
    for (size_t u = operators_.back().uses_at; u < uses_.size(); ++u)
      if (uses_[u].base == base && uses_[u].bytes != 0) return;
  uses_.push_back({base, bytes, use, result_at});
}

void OperatorLog::end(bool again, uint64_t events, uint64_t waited_ns) {
  Logged& last = operators_.back();
  last.again = again;
  last.events = events;
  last.waited_ns = waited_ns;
  last.kind = last.signature;
  for (size_t u = last.uses_at; u < uses_.size(); ++u)
    if (uses_[u].bytes != 0)
      last.kind = mix(last.kind, uses_[u].bytes << 2 | static_cast<uint64_t>(uses_[u].use));
  frees_from_ = uses_.size();
}

void OperatorLog::freed(const void* base) {
  if (!operators_.empty() && !full()) uses_.push_back({base, 0, Use::read, 0});
}

void OperatorLog::leave_waits_out() {
  struct Times {
    std::vector<uint64_t> undisturbed, waited, gaps;
  };
  std::unordered_map<uint64_t, Times> times;
  const auto pair = [this](size_t at) {
    return mix(mix(1, operators_[at].kind), at + 1 < size() ? operators_[at + 1].kind : 0);
  };
  for (size_t at = 0; at < size(); ++at) {
    const Logged& each = operators_[at];
    times[pair(at)].gaps.push_back(each.gap_ns);
    if (each.ns == 0) continue;
    Times& of = times[each.kind];
    if (each.waited_ns == 0)
      of.undisturbed.push_back(each.ns);
    else
      of.waited.push_back(each.ns - std::min(each.ns, each.waited_ns));
  }
  const auto quarter = [](std::vector<uint64_t>& of) {
    if (of.empty()) return uint64_t{0};
    const auto at = of.begin() + static_cast<std::ptrdiff_t>((of.size() - 1) / 4);
    std::nth_element(of.begin(), at, of.end());
    return *at;
  };
  std::unordered_map<uint64_t, uint64_t> ns_of, gap_of;
  for (auto& [kind, of] : times) {
    ns_of[kind] = quarter(of.undisturbed.empty() ? of.waited : of.undisturbed);
    gap_of[kind] = quarter(of.gaps);
  }
  for (size_t at = 0; at < size(); ++at)
    operators_[at].ns = ns_of[operators_[at].kind] + gap_of[pair(at)];
}

std::optional<OperatorLog::Period> OperatorLog::period(uint64_t events) const {
  const size_t end = operators_.size();
  if (end < 4) return {};
  const uint64_t last = operators_.back().events;
  const auto since = [&](size_t count) {  // events, without the last so many operators
    return count < end ? last - operators_[end - 1 - count].events : UINT64_MAX;
  };
  const auto repeats = [&](size_t count) {
    for (size_t i = end - count; i < end; ++i)
      if (operators_[i].signature != operators_[i - count].signature) return false;
    return true;
  };
  size_t count = 0;
  while (since(count) < events) ++count;
  // (Operators without events may precede the same one of the iteration before.)
  while (2 * count <= end && !repeats(count) && since(count) == events) ++count;
  if (count < 2 || 2 * count > end || !repeats(count)) return {};
  // From where least is in use on. A storage that no operator of the log made was there before it.
  std::unordered_map<const void*, uint64_t> bytes_of;
  uint64_t in_use = uint64_t{1} << 62, least = UINT64_MAX;  // (not all is known that was there)
  std::unordered_set<const void*> known;
  for (const Used& use : uses_)
    if (known.insert(use.base).second && use.bytes != 0 && use.use != Use::result)
      in_use += bytes_of[use.base] = use.bytes;
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
      if (result) results[i].push_back({value, use.result_at, use.bytes});
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
