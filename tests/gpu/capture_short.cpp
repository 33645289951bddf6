// Memory is short for the first time while a stream is captured; and a capture that ended with its
// stream does not keep blocks on the device.
#include "tests/gpu/program.h"

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  constexpr size_t before = 9, within = 4, after = 7, count = 1u << 20;
  std::vector<Block> all;
  CUstream stream = nullptr, gone = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  DO(cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
  DO(cuStreamBeginCapture(gone, CU_STREAM_CAPTURE_MODE_GLOBAL));
  DO(cuStreamDestroy(gone));
  const auto more = [&](size_t number) {
    for (size_t i = 0; i < number; ++i) all.push_back(make(count));
  };
  more(before);
  for (size_t i = 0; i < before; ++i) fill(gpu, all[i], static_cast<Word>(i));
  DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  more(within);
  for (size_t i = before; i < all.size(); ++i) fill(gpu, all[i], static_cast<Word>(i), stream);
  mix(gpu.kernel("mix"), all[before], all[before + 1], all[before + 2], 7, stream);
  DO(cuStreamEndCapture(stream, &graph));
  DO(cuGraphInstantiate(&exec, graph, 0));
  DO(cuCtxSynchronize());
  DO(cuGraphLaunch(exec, stream));
  DO(cuStreamSynchronize(stream));
  more(after);
  for (size_t i = before + within; i < all.size(); ++i) fill(gpu, all[i], static_cast<Word>(i));
  for (Word round = 0; round < 3; ++round) {
    for (size_t i = 0; i < all.size(); ++i)
      mix(gpu.kernel("mix"), all[i], all[(i + 1) % all.size()], all[(i + 5) % all.size()], round);
    DO(cuCtxSynchronize());
    DO(cuGraphLaunch(exec, stream));
    DO(cuStreamSynchronize(stream));
  }
  for (Block& block : all) add_to_digest(block);
  return finish();
}
