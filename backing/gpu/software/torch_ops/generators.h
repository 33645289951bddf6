// Random numbers of a CUDA generator, drawn on the CPU.
//
// A CUDA generator's state is (seed, offset). Here the offset counts 32-bit draws of the CPU's
// Mersenne Twister, four to a draw (torch wants multiples of four), so that the state that torch
// saves and restores names the same numbers in any process, and a fresh seed gives the numbers that
// the CPU's generator of that seed gives.
//
// Owns a CPU generator per CUDA generator. Locks: one per generator, held while an operator draws.
#pragma once

#include <ATen/core/Generator.h>

#include <functional>

namespace firn::torch_ops {

/// Calls `draw` with a CPU generator that stands where `generator` (a CUDA one) stands, then moves
/// `generator` on by what was drawn.
void with_cpu_generator(const at::Generator& generator,
                        const std::function<void(const at::Generator&)>& draw);

/// Within with_cpu_generator(), on the same thread: its CPU generator. Else undefined.
const at::Generator& present_cpu_generator();

}  // namespace firn::torch_ops
