// A structure with addresses in it, passed by value.
#include "tests/gpu/program.h"

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  constexpr size_t arrays = 18, count = 1u << 19;
  std::vector<Block> all;
  for (size_t i = 0; i < arrays; ++i) {
    all.push_back(make(count));
    fill(gpu, all[i], static_cast<Word>(100 + i));
  }
  const CUfunction kernel = gpu.kernel("gather");
  const unsigned long long words = count;
  for (Word round = 0; round < 3; ++round)
    for (size_t i = 0; i < arrays; ++i) {
      Sources sources{};
      sources.weight = round + 1;
      sources.salt = static_cast<Word>(i);
      for (size_t k = 0; k < inputs_most; ++k)
        sources.in[k] = reinterpret_cast<const Word*>(all[(i + 2 * k + 1) % arrays].address);
      sources.out = reinterpret_cast<Word*>(all[i].address);
      // The same in a packed buffer, every other time.
      if (i % 2 == 0) {
        launch(kernel, {&sources, &words});
        continue;
      }
      struct {
        Sources sources;
        unsigned long long count;
      } packed{sources, words};
      size_t bytes = sizeof packed;
      void* extra[] = {reinterpret_cast<void*>(1), &packed, reinterpret_cast<void*>(2), &bytes,
                       nullptr};
      DO(cuLaunchKernel(kernel, 64, 1, 1, 256, 1, 1, 0, nullptr, nullptr, extra));
    }
  for (Block& block : all) add_to_digest(block);
  return finish();
}
