// How cold a block is, if its next use is unknown: by the time since its last use, weighted by size;
// one whose bytes are valid elsewhere counts for more, since dropping it costs nothing. Used by the
// engine's order of ages and by rehearsals of it.
#pragma once

#include <bit>
#include <cstdint>

namespace firn {

/// `unused`: events since the last use; `pages`: on the device; `clean`: all valid elsewhere too.
inline double age_score(uint64_t unused, uint64_t pages, bool clean) {
  const double size = 1.0 + std::bit_width(pages) / 8.0;
  return (static_cast<double>(unused) + 1) * size * (clean ? 1.5 : 1.0);
}

}  // namespace firn
