#include "tests/allocator/record/recorded_program.h"

namespace firn::record {

void Trainer::run(const std::string& name, std::vector<uint32_t> inputs,
                  std::vector<uint32_t> outputs) {
  recording.kernel(name, 1000, inputs, outputs);
}

void Trainer::make_model() {
  for (uint32_t layer = 0; layer < layers; ++layer) {
    weights.push_back(recording.allocate(weight_bytes(layer)));
    run("init", {}, {weights.back()});
  }
  gradients.assign(layers, UINT32_MAX);
}

void Trainer::zero_gradients() {
  for (uint32_t& gradient : gradients) {
    if (gradient != UINT32_MAX) recording.free(gradient);
    gradient = UINT32_MAX;
  }
}

void Trainer::forward_and_backward(ZeroGrad zero_grad) {
  std::vector<uint32_t> activations;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    activations.push_back(recording.allocate(activation_bytes(layer)));
    std::vector<uint32_t> inputs{weights[layer]};
    if (layer > 0) inputs.push_back(activations[layer - 1]);
    run("forward" + std::to_string(layer), inputs, {activations.back()});
  }
  // As Python does: the old value is freed when the new one is there.
  const uint32_t old = loss;
  loss = recording.allocate(loss_bytes);
  run("loss", {activations.back()}, {loss});
  if (old != UINT32_MAX) recording.free(old);
  if (zero_grad == ZeroGrad::after_forward) zero_gradients();
  for (uint32_t layer = layers; layer-- > 0;) {
    const bool fresh = gradients[layer] == UINT32_MAX;
    if (fresh) gradients[layer] = recording.allocate(gradient_bytes(layer));
    const uint32_t workspace = recording.allocate(workspace_bytes);
    recording.free(workspace);  // before the operator is over
    run("backward" + std::to_string(layer), {weights[layer], activations[layer]},
        {gradients[layer], workspace});
    recording.free(activations[layer]);
  }
}

void Trainer::iteration(ZeroGrad zero_grad, uint32_t micro_batches) {
  if (zero_grad == ZeroGrad::at_the_start) zero_gradients();
  for (uint32_t i = 0; i < micro_batches; ++i) forward_and_backward(zero_grad);
  for (uint32_t layer = 0; layer < layers; ++layer) {
    if (steps == 0) {
      moments.push_back(recording.allocate(moment_bytes(layer)));
      run("zero", {}, {moments.back()});
    }
    run("step", {gradients[layer], weights[layer], moments[layer]},
        {weights[layer], moments[layer]});
  }
  if (zero_grad == ZeroGrad::at_the_end) zero_gradients();
  ++steps;
}

void Trainer::tear_down() {
  for (uint32_t weight : weights) {
    const uint32_t sum = recording.allocate(loss_bytes);
    run("sum", {weight}, {sum});
    recording.free(sum);
  }
  zero_gradients();
  for (const auto* blocks : {&weights, &moments})
    for (uint32_t block : *blocks) recording.free(block);
  recording.free(loss);
}

}  // namespace firn::record
