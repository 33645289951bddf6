// Structures on the device that hold addresses, of data and of further structures.
#include <cstring>

#include "tests/gpu/program.h"

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  constexpr size_t chains = 5, depth = 3, count = 1u << 19;
  std::vector<Block> data;
  for (size_t i = 0; i < 2 * chains * depth; ++i) {
    data.push_back(make(count));
    fill(gpu, data[i], static_cast<Word>(7 * i));
  }
  CUdeviceptr nodes[chains][depth];
  const auto describe = [&](size_t chain, size_t level) {
    Layer layer{};
    const size_t at = 2 * (chain * depth + level);
    layer.out = reinterpret_cast<Word*>(data[at].address);
    layer.in = reinterpret_cast<const Word*>(data[at + 1].address);
    layer.below =
        level ? reinterpret_cast<const Layer*>(nodes[chain][level - 1]) : nullptr;
    layer.count = count;
    return layer;
  };
  for (size_t chain = 0; chain < chains; ++chain)
    for (size_t level = 0; level < depth; ++level) {
      DO(cuMemAlloc(&nodes[chain][level], sizeof(Layer)));
      const Layer layer = describe(chain, level);
      DO(cuMemcpyHtoD(nodes[chain][level], &layer, sizeof layer));
    }
  const CUfunction kernel = gpu.kernel("layers");
  for (Word salt = 0; salt < 3; ++salt)
    for (size_t chain = 0; chain < chains; ++chain)
      launch(kernel, {&nodes[chain][depth - 1], &salt});
  // A chain is hung onto another one, and a large block is the home of a structure.
  Layer joined = describe(0, 0);
  joined.below = reinterpret_cast<const Layer*>(nodes[4][1]);
  DO(cuMemcpyHtoD(nodes[0][0], &joined, sizeof joined));
  Block home = make(count);
  fill(gpu, home, 1);
  const Layer top = describe(1, 2);
  DO(cuMemcpyHtoD(home.address + 4096, &top, sizeof top));
  const CUdeviceptr top_at = home.address + 4096;
  for (Word salt = 10; salt < 13; ++salt) {
    launch(kernel, {&nodes[0][depth - 1], &salt});
    launch(kernel, {&top_at, &salt});
    launch(kernel, {&nodes[3][depth - 1], &salt});
  }
  for (Block& block : data) add_to_digest(block);
  return finish();
}
