// XXH3-128 over a slot's bytes, in order, in as many pieces as they come. The widest vector unit of
// the machine is chosen once. Owns its state; no lock: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "firn/sum.h"

namespace firn {

/// A hash between its pieces, made beforehand: a due sum takes no memory.
struct SumState {
  alignas(64) std::byte bytes[576];
};

/// One implementation of the hash (see sum_generic.cpp, sum_avx2.cpp); they agree bit for bit.
struct SumKernel {
  void (*reset)(SumState& state);
  void (*update)(SumState& state, const void* data, size_t bytes);
  Sum (*digest)(const SumState& state);
};
extern const SumKernel sum_kernel_generic;
extern const SumKernel sum_kernel_avx2;  // where the build has it; call only with AVX2 present
const SumKernel& sum_kernel();           // the best one here

class Summer {
 public:
  Summer() { reset(); }
  Summer(const Summer&) = delete;
  Summer& operator=(const Summer&) = delete;

  void reset();
  /// Adds bytes [summed(), end) of the slot that begins at `data`.
  void sum_to(const std::byte* data, size_t end);
  size_t summed() const { return summed_; }
  Sum digest() const;

 private:
  SumState state_;
  size_t summed_ = 0;
};

}  // namespace firn
