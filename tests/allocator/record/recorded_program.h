// A program that trains a few layers, written down as a recorder would: for tests of what is cut
// out of it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "allocator/record/recording.h"

namespace firn::record {

/// When an iteration's gradients are freed.
enum class ZeroGrad { at_the_start, after_forward, at_the_end, never };

/// Sizes differ, so that a tensor is known by its bytes.
struct Trainer {
  explicit Trainer(Recording& to, uint32_t layer_count = 4) : recording(to), layers(layer_count) {}

  static uint64_t weight_bytes(uint32_t layer) { return 1'000'000 + layer; }
  static uint64_t moment_bytes(uint32_t layer) { return 2'000'000 + layer; }
  static uint64_t gradient_bytes(uint32_t layer) { return 3'000'000 + layer; }
  static uint64_t activation_bytes(uint32_t layer) { return 4'000'000 + layer; }
  static constexpr uint64_t workspace_bytes = 5'000'000, loss_bytes = 512;
  /// Kernels of an iteration: forward, loss, backward, optimizer.
  size_t kernels() const { return 3 * layers + 1; }

  void make_model();
  void iteration(ZeroGrad zero_grad, uint32_t micro_batches = 1);
  /// Reads every weight, frees all.
  void tear_down();

  Recording& recording;
  const uint32_t layers;
  std::vector<uint32_t> weights, moments, gradients;
  uint32_t loss = UINT32_MAX;
  uint64_t steps = 0;

 private:
  void run(const std::string& name, std::vector<uint32_t> inputs, std::vector<uint32_t> outputs);
  void zero_gradients();
  void forward_and_backward(ZeroGrad zero_grad);
};

/// How many tensors of so many bytes are persistent, and transient.
struct Count {
  int persistent = 0, transient = 0;
  bool operator==(const Count&) const = default;
};

}  // namespace firn::record
