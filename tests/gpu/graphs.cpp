// Work captured into graphs and launched again and again, with other work in between; a copy within
// a graph reads its table of addresses from the host at each launch.
#include "tests/gpu/program.h"

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  constexpr size_t arrays = 18, count = 1u << 19, entries = 2;
  std::vector<Block> all;
  for (size_t i = 0; i < arrays; ++i) {
    all.push_back(make(count));
    fill(gpu, all[i], static_cast<Word>(i));
  }
  CUstream stream = nullptr;
  DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const CUfunction kernel = gpu.kernel("mix"), products = gpu.kernel("products");
  CUdeviceptr tables[3];
  for (CUdeviceptr& table : tables) DO(cuMemAlloc(&table, entries * sizeof(CUdeviceptr)));
  CUdeviceptr addresses[3][entries];
  const auto choose = [&](size_t from) {
    for (size_t t = 0; t < 3; ++t)
      for (size_t e = 0; e < entries; ++e)
        addresses[t][e] = all[(from + t * entries + e) % arrays].address;
  };
  DO(cuCtxSynchronize());
  std::vector<CUgraphExec> graphs;
  for (size_t g = 0; g < 3; ++g) {
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (size_t i = 0; i < 4; ++i)
      mix(kernel, all[(6 * g + i) % arrays], all[(6 * g + i + 1) % arrays],
          all[(6 * g + i + 2) % arrays], static_cast<Word>(i), stream);
    if (g == 2) {
      for (size_t t = 0; t < 3; ++t)
        DO(cuMemcpyHtoDAsync(tables[t], addresses[t], sizeof addresses[t], stream));
      const unsigned number = entries;
      const unsigned long long words = count;
      launch(products, {&tables[0], &tables[1], &tables[2], &number, &words}, stream);
    }
    DO(cuMemcpyDtoDAsync(all[(6 * g + 5) % arrays].address, all[6 * g].address, 4096, stream));
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphInstantiate(&exec, graph, 0));
    DO(cuGraphDestroy(graph));
    graphs.push_back(exec);
  }
  for (size_t round = 0; round < 4; ++round)
    for (size_t g = 0; g < graphs.size(); ++g) {
      if (g == 2) {
        DO(cuStreamSynchronize(stream));
        choose(5 * round);
      }
      DO(cuGraphLaunch(graphs[g], stream));
      DO(cuStreamSynchronize(stream));
      mix(kernel, all[(7 * round + g) % arrays], all[3], all[12], static_cast<Word>(round));
      DO(cuCtxSynchronize());
    }
  for (Block& block : all) add_to_digest(block);
  for (CUgraphExec exec : graphs) DO(cuGraphExecDestroy(exec));
  DO(cuStreamDestroy(stream));
  return finish();
}
