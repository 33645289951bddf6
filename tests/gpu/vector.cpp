// A vector pipeline: sixteen arrays, three of them in each launch, in turn.
#include "tests/gpu/program.h"

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  constexpr size_t arrays = 16, count = 1u << 20;
  std::vector<Block> all;
  for (size_t i = 0; i < arrays; ++i) {
    all.push_back(make(count));
    if (i % 2) {
      fill(gpu, all[i], static_cast<Word>(i));
    } else {
      std::vector<Word> words(count);
      for (size_t k = 0; k < count; ++k) words[k] = scramble(static_cast<Word>(i + k));
      DO(cuMemcpyHtoD(all[i].address, words.data(), all[i].bytes()));
    }
  }
  const CUfunction kernel = gpu.kernel("mix");
  for (Word round = 0; round < 4; ++round)
    for (size_t i = 0; i < arrays; ++i)
      mix(kernel, all[i], all[(i + 1) % arrays], all[(i + 5) % arrays], round);
  // Parts of arrays, as addresses within blocks; and copies of all kinds.
  Block part{all[3].address + 4096, count / 2};
  mix(kernel, part, all[9], all[10], 99);
  DO(cuMemcpyDtoD(all[4].address, all[11].address + 1024, count));
  DO(cuMemsetD32(all[5].address + 64, 0xabcd, 1000));
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = static_cast<CUmemorytype>(2);
  rows.dstMemoryType = static_cast<CUmemorytype>(2);
  rows.srcDevice = all[6].address;
  rows.dstDevice = all[7].address;
  rows.srcPitch = 8192;
  rows.dstPitch = 4096;
  rows.WidthInBytes = 2000;
  rows.Height = 300;
  DO(cuMemcpy2D(&rows));
  for (Block& block : all) add_to_digest(block);
  for (Block& block : all) end(block);
  return finish();
}
