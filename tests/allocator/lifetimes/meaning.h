// The meaning of operators (allocator/lifetimes/operators.h): what they read and leave behind,
// without their bytes. Each content has an identity, which is the hash of the operator that made it
// and of all that it read. It knows nothing of versions, cuts or copies. And programs of operators
// drawn at random.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "allocator/lifetimes/operators.h"

namespace firn::program {

struct Meaning {
  /// Per source: what it read, the first time it ran.
  std::vector<std::vector<uint64_t>> read;
  std::vector<uint64_t> persistent;  // per persistent value: what it holds at the end
  /// What went wrong on the way: something read that was never written, or an operator that ran
  /// again with other inputs, or before it first ran, or though it may not.
  std::string broken;
  bool operator==(const Meaning&) const = default;
};

/// `given`: the number of values that may hold something from before; those beyond hold nothing.
Meaning meaning_of(const lifetimes::Operators& operators, size_t given);

struct OperatorBounds {
  uint64_t operators[2] = {4, 14};     // before the turn, least and most; as many come after it
  uint64_t bytes[2] = {1, 40};         // of values, in pages
  uint64_t ns[2] = {1'000, 100'000};
  uint64_t page_bytes = 1 << 20;
  double again = 0.8;      // share of operators that may run again
  double in_place = 0.15;  // share that write one of their inputs
  double more_results = 0.15;
};

/// A program like a training step: results of the first half are used again in the second half,
/// mostly in reverse order; some persistent values are read, and some written in the end.
lifetimes::Operators draw_operators(const OperatorBounds& bounds, std::mt19937_64& random);

/// A seed's number for a test, and the command that replays it.
uint64_t seeds(uint64_t count);
uint64_t first_seed();
std::string replay(const char* test, uint64_t seed);

/// `share` of `seeds`: how many of them must draw what a test is about, or it says nothing. 0 for
/// fewer than 20 seeds, of which none may.
uint64_t drawn_least(double share, uint64_t seeds);

}  // namespace firn::program
