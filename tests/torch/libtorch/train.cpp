// Trains a small network with libtorch alone, as a C++ program does: `train DEVICE STEPS` prints
// each loss and the parameters' sum, in every bit. Another thread than main's begins with the GPU.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const torch::Device device(argv[1]);
  constexpr int64_t width = 768, layers = 6, batch = 512;
  std::thread([&] { (void)torch::ones({8}, device); }).join();
  torch::set_num_threads(1);
  torch::manual_seed(5);
  torch::nn::Sequential model;
  for (int64_t i = 0; i < layers; ++i) {
    model->push_back(torch::nn::Linear(width, width));
    model->push_back(torch::nn::ReLU());
  }
  const torch::Tensor drawn = torch::randn({batch, width});
  model->to(device);
  const torch::Tensor input = drawn.to(device);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  for (int step = 0; step < std::atoi(argv[2]); ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = (model->forward(input) - input).square().mean();
    loss.backward();
    optimizer.step();
    std::printf("loss %a\n", static_cast<double>(loss.item<float>()));
  }
  double sum = 0;
  for (const torch::Tensor& each : model->parameters())
    sum += each.to(torch::kFloat64).sum().item<double>();
  std::printf("sum %a\nthreads %d\n", sum, torch::get_num_threads());
  return 0;
}
