// Sums and products of sizes that a program gives: SIZE_MAX on overflow, which no memory holds. A
// wrapped result would make a huge size small.
#pragma once

#include <cstddef>
#include <cstdint>

namespace firn {

inline size_t saturating_add(size_t a, size_t b) {
  size_t sum;
  return __builtin_add_overflow(a, b, &sum) ? SIZE_MAX : sum;
}
inline size_t saturating_multiply(size_t a, size_t b) {
  size_t product;
  return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

/// The bytes from the first to the last of `slices` of `rows` of `bytes`; neither number is 0.
inline size_t strided_span(size_t bytes, size_t rows, size_t pitch, size_t slices, size_t slice) {
  return saturating_add(saturating_multiply(slices - 1, slice),
                        saturating_add(saturating_multiply(rows - 1, pitch), bytes));
}

}  // namespace firn
