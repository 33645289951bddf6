// Several streams, made and destroyed, that hand their results on by events.
#include "tests/gpu/program.h"

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  constexpr size_t lanes = 4, each = 4, count = 1u << 20;
  std::vector<Block> all;
  for (size_t i = 0; i < lanes * each; ++i) {
    all.push_back(make(count));
    fill(gpu, all[i], static_cast<Word>(i));
  }
  DO(cuCtxSynchronize());
  const CUfunction kernel = gpu.kernel("mix");
  for (Word round = 0; round < 4; ++round) {
    CUstream streams[lanes];
    CUevent done[lanes];
    for (size_t s = 0; s < lanes; ++s) {
      DO(cuStreamCreate(&streams[s], s % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
      DO(cuEventCreate(&done[s], CU_EVENT_DISABLE_TIMING));
    }
    for (size_t s = 0; s < lanes; ++s) {
      for (size_t i = 0; i < each; ++i)
        mix(kernel, all[s * each + i], all[s * each + (i + 1) % each],
            all[s * each + (i + 2) % each], round, streams[s]);
      DO(cuEventRecord(done[s], streams[s]));
    }
    // Each takes what its neighbour has made, when both are done with it.
    for (size_t s = 0; s < lanes; ++s)
      for (size_t other = 0; other < lanes; ++other)
        DO(cuStreamWaitEvent(streams[s], done[other], 0));
    for (size_t s = 0; s < lanes; ++s)
      mix(kernel, all[s * each], all[(s + 1) % lanes * each + 1],
          all[(s + 2) % lanes * each + 2], round + 10, streams[s]);
    // Destroyed with work under way: that goes on.
    for (size_t s = 0; s < lanes; ++s) {
      if (round % 2 == 0) DO(cuStreamSynchronize(streams[s]));
      DO(cuStreamDestroy(streams[s]));
      DO(cuEventDestroy(done[s]));
    }
    DO(cuCtxSynchronize());
  }
  for (Block& block : all) add_to_digest(block);
  for (Block& block : all) end(block);
  return finish();
}
