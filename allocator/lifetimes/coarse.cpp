#include "allocator/lifetimes/coarse.h"

#include <algorithm>
#include <utility>

namespace firn::lifetimes {

namespace {

class Joiner {
 public:
  Joiner(const Operators& operators, uint64_t ns_most, uint64_t bytes_most, uint64_t bytes_least)
      : from_(operators), ns_most_(ns_most), bytes_most_(bytes_most), bytes_least_(bytes_least),
        first_(operators.values.size(), none), last_(operators.values.size(), none),
        joined_(operators.values.size(), none) {
    out_.values = operators.values;
    for (uint32_t i = 0; i < operators.count(); ++i)
      for (const uint32_t value : operators.named(operators.operators[i])) {
        if (first_[value] == none) first_[value] = i;
        last_[value] = i;
      }
  }

  Operators join() {
    uint64_t ns = 0, bytes = 0;
    for (uint32_t i = 0; i < from_.count(); ++i) {
      const uint64_t more_ns = from_.operators[i].ns, more = new_bytes(i);
      if (i > begin_ && (ns + more_ns > ns_most_ || bytes + more > bytes_most_)) {
        finish(i, ns);
        ns = bytes = 0;
      }
      ns += more_ns;
      bytes += new_bytes(i);
      for (const uint32_t value : from_.named(from_.operators[i])) joined_[value] = begin_;
    }
    if (begin_ < from_.count()) finish(from_.count(), ns);
    return std::move(out_);
  }

 private:
  /// Bytes that the operator uses, and those before it in the same stretch do not.
  uint64_t new_bytes(uint32_t i) const {
    uint64_t bytes = 0;
    for (const uint32_t value : from_.named(from_.operators[i]))
      if (joined_[value] != begin_) bytes += from_.values[value].bytes;
    return bytes;
  }

  /// Whether it lives within operators begin_ to `end`.
  bool within(uint32_t value, uint32_t end) const {
    return !from_.values[value].persistent && first_[value] >= begin_ && last_[value] < end;
  }

  void finish(uint32_t end, uint64_t ns) {
    std::vector<uint32_t> reads, writes;
    uint64_t alive = 0, most = 0;
    for (uint32_t i = begin_; i < end; ++i) {
      const Operator& one = from_.operators[i];
      for (size_t u = 0; const uint32_t value : from_.named(one)) {
        const bool writes_it = u++ >= one.reads;
        if (from_.values[value].bytes < bytes_least_) continue;
        if (!within(value, end)) {
          (writes_it ? writes : reads).push_back(value);
          continue;
        }
        const bool both = writes_it && reads_too(one, value);
        if (first_[value] == i && !both) alive += from_.values[value].bytes;
      }
      most = std::max(most, alive);
      for (size_t u = 0; const uint32_t value : from_.named(one)) {
        const bool both = u++ >= one.reads && reads_too(one, value);
        if (from_.values[value].bytes >= bytes_least_ && within(value, end) &&
            last_[value] == i && !both)
          alive -= from_.values[value].bytes;
      }
    }
    if (most > 0) {
      writes.push_back(static_cast<uint32_t>(out_.values.size()));
      out_.values.push_back({most, false});
    }
    for (auto* values : {&reads, &writes}) {
      std::sort(values->begin(), values->end());
      values->erase(std::unique(values->begin(), values->end()), values->end());
    }
    // The stretch reads nothing from before that it writes first.
    std::erase_if(reads, [&](uint32_t value) {
      return first_[value] >= begin_ && !from_.values[value].persistent &&
             std::binary_search(writes.begin(), writes.end(), value);
    });
    out_.add({.ns = ns, .again = false, .source = begin_}, reads, writes);
    begin_ = end;
  }

  bool reads_too(const Operator& one, uint32_t value) const {
    const auto reads = from_.reads(one);
    return std::find(reads.begin(), reads.end(), value) != reads.end();
  }

  const Operators& from_;
  const uint64_t ns_most_, bytes_most_, bytes_least_;
  Operators out_;
  uint32_t begin_ = 0;                    // of the stretch being joined
  std::vector<uint32_t> first_, last_;    // per value: operators that name it
  std::vector<uint32_t> joined_;          // per value: the last stretch that named it
};

}  // namespace

Operators coarse(const Operators& operators, uint64_t ns_most, uint64_t bytes_most,
                 uint64_t bytes_least) {
  return Joiner(operators, ns_most, bytes_most, bytes_least).join();
}

}  // namespace firn::lifetimes
