// Several threads, each with its own stream and blocks, which allocate and free all the while.
#include <thread>

#include "tests/gpu/program.h"

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  constexpr size_t threads = 4, each = 6, count = 1u << 19;
  std::vector<Block> all;
  for (size_t i = 0; i < threads * each; ++i) {
    all.push_back(make(count));
    fill(gpu, all[i], static_cast<Word>(i));
  }
  DO(cuCtxSynchronize());
  const CUfunction kernel = gpu.kernel("mix");
  std::vector<std::thread> workers;
  for (size_t t = 0; t < threads; ++t)
    workers.emplace_back([&, t] {
      DO(cuCtxSetCurrent(gpu.context));
      CUstream stream = nullptr;
      DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      Block* mine = &all[t * each];
      for (Word round = 0; round < 5; ++round) {
        Block extra{0, count};
        DO(cuMemAllocAsync(&extra.address, extra.bytes(), stream));
        fill(gpu, extra, round, stream);
        for (size_t i = 0; i < each; ++i)
          mix(kernel, mine[i], mine[(i + 1) % each], i % 2 ? extra : mine[(i + 3) % each], round,
              stream);
        DO(cuMemFreeAsync(extra.address, stream));
      }
      DO(cuStreamSynchronize(stream));
      DO(cuStreamDestroy(stream));
    });
  for (std::thread& worker : workers) worker.join();
  for (Block& block : all) add_to_digest(block);
  return finish();
}
