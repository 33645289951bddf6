// Which results of an iteration are made again, by their operators' places in it; and how a program
// is found to be at such a place.
// Owns: its arrays. Locks: none; it does not change once it is made.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "allocator/policy/remake_choice.h"
#include "pytorch_plugin/recipes/operator_log.h"

namespace firn::pytorch {

class Choice {
 public:
  static constexpr size_t row = 32;              // operators that show a place
  static constexpr uint32_t none = UINT32_MAX;   // no place

  /// `operators`: those that the answer is about, with their `signatures` in the same order;
  /// `results`: see OperatorLog::operators().
  Choice(const RemakeChoice& answer, std::vector<uint64_t> signatures,
         const std::vector<uint64_t>& device_ns,
         const std::vector<std::vector<OperatorLog::Result>>& results);

  struct Slot {
    uint8_t result_at;   // of its operator
    uint64_t device_ns;  // how long that takes
    uint64_t bytes = 0;
  };
  const std::vector<Slot>& slots() const { return slots_; }
  /// Slots whose results the operator at that place makes; and those whose blocks leave behind it.
  const std::vector<uint32_t>& gives(uint32_t place) const { return gives_[place]; }
  const std::vector<uint32_t>& leaves(uint32_t place) const { return leaves_[place]; }

  uint32_t count() const { return static_cast<uint32_t>(signatures_.size()); }
  uint64_t signature(uint32_t place) const { return signatures_[place]; }
  /// The place behind a row of operators, the oldest at `last[oldest]`; none: there is no such row,
  /// or more than one.
  uint32_t place_behind(const std::array<uint64_t, row>& last, size_t oldest) const;

 private:
  std::vector<uint64_t> signatures_;
  std::vector<std::vector<uint32_t>> gives_, leaves_;
  std::vector<Slot> slots_;
  std::unordered_map<uint64_t, uint32_t> behind_;  // rows
};

}  // namespace firn::pytorch
