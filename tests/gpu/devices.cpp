// Two devices: each works on its own memory, copies go between them, and one reads the other's.
#include "tests/gpu/program.h"

int main(int argc, char** argv) {
  constexpr size_t arrays = 14, count = 1u << 20;
  Gpu gpus[2] = {Gpu(kernels_of(argc, argv), 0), Gpu(kernels_of(argc, argv), 1)};
  DO(cuCtxSetCurrent(gpus[1].context));
  DO(cuCtxEnablePeerAccess(gpus[0].context, 0));
  std::vector<Block> all[2];
  for (int d = 0; d < 2; ++d) {
    DO(cuCtxSetCurrent(gpus[d].context));
    for (size_t i = 0; i < arrays; ++i) {
      all[d].push_back(make(count));
      fill(gpus[d], all[d][i], static_cast<Word>(i + 100 * static_cast<size_t>(d)));
    }
  }
  live_bytes_peak /= 2;  // each device has its own budget
  for (Word round = 0; round < 3; ++round) {
    for (int d = 0; d < 2; ++d) {
      DO(cuCtxSetCurrent(gpus[d].context));
      const CUfunction kernel = gpus[d].kernel("mix");
      for (size_t i = 0; i < arrays; ++i)
        mix(kernel, all[d][i], all[d][(i + 1) % arrays], all[d][(i + 5) % arrays], round);
      DO(cuCtxSynchronize());
    }
    DO(cuCtxSetCurrent(gpus[0].context));
    DO(cuMemcpyPeerAsync(all[1][round].address, gpus[1].context, all[0][2 * round].address,
                         gpus[0].context, all[0][0].bytes(), nullptr));
    DO(cuCtxSynchronize());
    DO(cuCtxSetCurrent(gpus[1].context));
    mix(gpus[1].kernel("mix"), all[1][7], all[0][round + 5], all[1][round], round + 50);
    DO(cuCtxSynchronize());
  }
  for (int d = 0; d < 2; ++d) {
    DO(cuCtxSetCurrent(gpus[d].context));
    for (Block& block : all[d]) add_to_digest(block);
  }
  return finish();
}
