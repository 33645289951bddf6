// How much of a program's memory its kernels use at a time, and for how long the rest lies idle,
// from a trace alone (the measures of TERAIO's study of training, arXiv 2506.06472).
// Time is that of the trace's kernels, one after the other, with all of the memory there; rows at
// the host take none.
// Owns: nothing. Locks: none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/simulate/program_trace.h"

namespace firn::simulate {

/// Persistent tensors are states where the kernel of their first use writes them (an optimizer's,
/// running statistics), else weights. All others the iteration makes: activations, gradients.
enum class TensorKind : uint8_t { weights, states, made };
inline constexpr size_t tensor_kinds = 3;
inline constexpr const char* tensor_kind_names[] = {"weights", "states", "made"};

/// An inactive period belongs to the first of these that is as long as it; the last has no end.
inline constexpr std::array<uint64_t, 6> length_bounds_ns = {
    10'000, 100'000, 1'000'000, 10'000'000, 100'000'000, 1'000'000'000};
inline constexpr size_t length_classes = length_bounds_ns.size() + 1;
inline constexpr uint64_t long_period_ns = 10'000'000;
inline constexpr size_t activity_buckets = 400;

struct Activity {
  uint64_t duration_ns = 0;
  // A tensor is active while a kernel runs that names it; the footprint is what is alive then:
  // persistent tensors always, others from their first kernel to their last one. Means are over
  // time, shares of the footprint of the same instant.
  double active_bytes_mean = 0, footprint_bytes_mean = 0, active_share_mean = 0;
  uint64_t active_bytes_peak = 0, footprint_bytes_peak = 0;
  double active_share_peak = 0;
  struct Kind {
    uint64_t tensors = 0, bytes = 0;      // all of them, alive together or not
    uint64_t tensors_inactive_long = 0;   // inactive for longer than long_period_ns at least once
    double active_bytes_mean = 0;
    std::array<uint64_t, length_classes> periods{};           // inactive ones, by their length
    std::array<double, length_classes> inactive_bytes_mean{};
  };
  std::array<Kind, tensor_kinds> kinds;   // tensors that neither persist nor are used: in none
  /// Of equal parts of the iteration: means of active bytes, then of inactive ones by length.
  std::vector<std::array<double, 1 + length_classes>> over_time;
};

/// An inactive period lies between two kernels that name the tensor, with another one between
/// them; that of a persistent tensor may go over into the next iteration.
Activity activity_of(const ProgramTrace& trace);

}  // namespace firn::simulate
