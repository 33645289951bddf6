// Static memory layout: gives buffers with known lifetimes and sizes addresses so that buffers
// alive at once do not overlap and the highest address is as low as possible (known as dynamic
// storage allocation, NP-hard). A pure library: standard C++ only.
//
// How it is solved, best first:
//  - exactly, by a search at the lowest level of the skyline that branches "this buffer here"
//    against "this buffer higher", in short restarts over random orders (search.h);
//  - where there are too many buffers for that: those alive near the peak by that search, the rest
//    into the holes that they leave (core.h);
//  - by greedy skylines of several priorities (skyline.h), which also give the first layout.
// The skyline is the bottom-left one of strip packing (Burke, Kendall, Whitwell 2004) with the
// position in time fixed; the exact search follows the section view of MiniMalloc (Moffitt 2023).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace firn::layout {

/// Alive in [lower, upper), in any unit of time; needs `size` bytes.
struct Buffer {
  uint64_t lower = 0, upper = 0;
  uint64_t size = 0;
};

/// Bytes of the largest buffer.
inline constexpr uint64_t size_max = uint64_t{1} << 63;
/// Bytes alive at once, unless all buffers together are at most size_max: a layout many times as
/// high as that still has 64-bit addresses.
inline constexpr uint64_t load_max_of_many = uint64_t{1} << 59;
/// Buffers, and the two ends of each, are numbered in 32 bits.
inline constexpr size_t buffers_max = size_t{1} << 30;

/// The largest sum of sizes alive at once, the first time at which it is reached, and a buffer that
/// begins then. No layout is lower. All 0 without buffers.
struct Load {
  uint64_t bytes = 0;
  uint64_t time = 0;
  size_t buffer = 0;
};

/// Why solve() cannot take an instance: lower is not below upper; the size is 0 or above size_max;
/// too much is alive at once; there are too many.
struct Trouble {
  enum class Kind : uint8_t { lifetime, size, load, count } kind = Kind::lifetime;
  size_t buffer = 0;  // the first wrong one; with load: the one whose begin is too much
};

struct Examined {
  std::optional<Trouble> trouble;
  Load load;  // without trouble
};

/// O(n log n).
Examined examine(std::span<const Buffer> buffers);

struct Options {
  /// Bytes: a layout of this height is good enough, the search ends. At or below the load: the
  /// search ends at the load, or at the optimum where it can prove it.
  uint64_t capacity = 0;
  /// Wall time from the call on. The first layout is always finished, in O(n log n).
  std::chrono::nanoseconds deadline = std::chrono::seconds(10);
  /// Decides the orders that are tried. With one thread the same seed gives the same layout, unless
  /// the deadline cuts it short.
  uint64_t seed = 0;
  /// Greedy layouts and searches of each independent part, at most. Unlike the deadline, this limit
  /// ends the work at the same step each time.
  uint64_t steps = UINT64_MAX;
  /// Threads that search, while the caller's waits; 0: one for each core.
  unsigned threads = 0;
};

struct Layout {
  std::vector<uint64_t> offsets;  // bytes, of each buffer as given
  uint64_t height = 0;            // bytes: the largest offset + size
  uint64_t load = 0;              // bytes: see Load
  bool optimal = false;           // proven: the height is the load, or nothing below it exists
};

/// Always a valid layout; lower with more time. Needs examine() to have found no trouble. Throws
/// std::bad_alloc if memory runs out, std::system_error if threads do.
Layout solve(std::span<const Buffer> buffers, const Options& options);

}  // namespace firn::layout
