// The operators of an iteration as a rehearsal takes them (rehearse.h): a step for each use, birth
// and death of a value.
// Owns: its arrays. Locks: none.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/lifetimes/operators.h"
#include "allocator/lifetimes/rehearse.h"

namespace firn::lifetimes {

/// Values smaller than `bytes_least` are left out.
struct OperatorSteps {
  OperatorSteps(const Operators& operators, uint64_t page_bytes, uint64_t bytes_least);

  std::vector<Item> items;  // persistent ones are away
  std::vector<Step> steps;
  std::vector<uint64_t> before_ns;
  uint64_t after_ns = 0;

  /// Persistent values are on the device as far as they fit, those used first before others; the
  /// rest is in host memory, and what exceeds `host` pages of that in the store.
  void start_warm(uint64_t capacity, uint64_t host);
  std::vector<uint64_t> in_store;  // filled by start_warm()

  /// Its spans are of these vectors.
  Rehearsal rehearsal(const RehearsalMachine& machine) const;
};

/// At each operator: bytes of values of at least `bytes_least` that are alive while it runs.
std::vector<uint64_t> alive_bytes(const Operators& operators, uint64_t bytes_least);

}  // namespace firn::lifetimes
