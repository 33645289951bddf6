// The order of a graph of operators: a topological order in which the bytes alive at once are as
// few as possible, and a layout of them (known as register sufficiency or minimum-memory
// scheduling, NP-hard). A pure library: standard C++ and allocator/layout only.
//
// How it is solved. The bytes alive after a set of operators has run are a submodular function of
// it, so that the least there can be when one given operator runs is a minimum cut (cut.h). The
// largest of these is the bound, and the cut says what to run before that operator and what after:
//  - an order's worst operator is cut, what is before it and what is after it are orders of their
//    own, and so on down (refine.h); that starts from several simple orders (greedy.h);
//  - ends when the bound is reached, when much work has improved nothing, or at the deadline.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace firn::order {

enum class Life : uint8_t {
  throughout,  // alive before, during and after
  from_start,  // alive from the start to the last operator that names it (throughout: if none does)
  made,        // alive from the operator that makes it to the last that names it, both included
};

struct Storage {
  uint64_t bytes = 0;
  Life life = Life::made;
};

/// Storages by number. What is written in place may be among those read, too.
struct Op {
  std::vector<uint32_t> reads, makes, writes;
};

/// Bytes of the largest storage, and of all together.
inline constexpr uint64_t bytes_max = uint64_t{1} << 63;

/// Why solve() cannot take a graph.
struct Trouble {
  enum class Kind : uint8_t {
    bytes,       // storage: with it, all are more than bytes_max
    made_twice,  // op makes storage, which an earlier one makes already
    not_made,    // op names storage, which none makes
    cycle,       // each of cycle needs the one before it, the first the last
    too_early,   // op names storage before the operator that makes it: no program's order
  } kind = Kind::bytes;
  size_t op = 0, storage = 0;
  std::vector<uint32_t> cycle;
};

/// The first trouble that there is. O(n).
std::optional<Trouble> examine(std::span<const Storage> storages, std::span<const Op> ops);

struct Options {
  /// Wall time from the call on, for order and layout. There is always an answer.
  std::chrono::nanoseconds deadline = std::chrono::seconds(10);
  /// Decides what is tried. With one thread the same seed gives the same answer, unless the
  /// deadline cuts a search short.
  uint64_t seed = 0;
  /// 0: one for each core.
  unsigned threads = 0;
};

struct Plan {
  std::vector<uint32_t> order;    // operators
  std::vector<uint64_t> offsets;  // bytes, of each storage as given
  uint64_t peak_given = 0;        // bytes alive at most in the order given
  uint64_t peak = 0;              // the same in `order`
  uint64_t bound = 0;             // no order has a lower peak
  uint64_t height = 0;            // the largest offset + bytes
};

/// Always a valid order and layout; better with more time. Needs examine() to have found no
/// trouble.
Plan solve(std::span<const Storage> storages, std::span<const Op> ops, const Options& options);

}  // namespace firn::order
