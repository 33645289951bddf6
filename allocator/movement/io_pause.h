// Pauses between tries of the store's reads or writes, when they fail in a row.
#pragma once

#include <algorithm>
#include <cstdint>

namespace firn {

inline constexpr uint64_t io_pause_least_ns = 1'000'000, io_pause_most_ns = 1'000'000'000;

/// The pause after a failure, with so many before it in the row: it doubles up to the longest.
inline uint64_t io_pause_ns(unsigned failures_before) {
  return std::min(io_pause_most_ns, io_pause_least_ns << std::min(failures_before, 16u));
}

}  // namespace firn
