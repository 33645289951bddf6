// One iteration of a program as its operators in order, and the values that they read and write:
// the input and the result of choosing what is made again (remake.h). A value stands for a block's
// bytes. It knows no operator's name: whether one may run again is the caller's word.
// Owns: its arrays. Locks: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace firn::lifetimes {

/// In place of the number of an operator, a value or a version: there is none.
inline constexpr uint32_t none = UINT32_MAX;

struct Value {
  uint64_t bytes = 0;
  bool persistent = false;  // there before the iteration and after it
};

struct Operator {
  uint64_t ns = 0;     // device time
  // Run with the same inputs it gives the same outputs, bit by bit, and does nothing else.
  bool again = false;
  // Running again, it neither reads nor writes the persistent values that it writes: its other
  // outputs do not depend on them (running statistics, say).
  bool leaves_state = false;
  uint32_t source = 0;  // the caller's number of it; one that runs again has that of the original
  uint64_t uses_at = 0;
  uint32_t reads = 0, writes = 0;
};

struct Operators {
  std::vector<Value> values;
  std::vector<Operator> operators;
  std::vector<uint32_t> uses;  // per operator: the values it reads, then those it writes

  /// No value twice in either. A value that is in `writes` only is written as a whole if it is new.
  void add(Operator one, std::span<const uint32_t> reads, std::span<const uint32_t> writes) {
    one.uses_at = uses.size();
    one.reads = static_cast<uint32_t>(reads.size());
    one.writes = static_cast<uint32_t>(writes.size());
    uses.insert(uses.end(), reads.begin(), reads.end());
    uses.insert(uses.end(), writes.begin(), writes.end());
    operators.push_back(one);
  }
  std::span<const uint32_t> reads(const Operator& one) const {
    return std::span(uses).subspan(one.uses_at, one.reads);
  }
  std::span<const uint32_t> writes(const Operator& one) const {
    return std::span(uses).subspan(one.uses_at + one.reads, one.writes);
  }
  /// Reads, then writes: a value that is in both comes twice.
  std::span<const uint32_t> named(const Operator& one) const {
    return std::span(uses).subspan(one.uses_at, size_t{one.reads} + one.writes);
  }
  uint32_t count() const { return static_cast<uint32_t>(operators.size()); }
};

}  // namespace firn::lifetimes
