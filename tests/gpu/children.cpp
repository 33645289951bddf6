// Graphs within graphs, captures into graphs, and batches of waits and writes, on a stream and as
// nodes: what a child uses is used by whoever launches the whole, and an address that a batch
// writes into a table is followed.
#include "tests/gpu/program.h"

namespace {
constexpr size_t arrays = 24, count = 1u << 19, entries = 2;
enum : unsigned { wait_64 = 4, write_64 = 5 };  // CUstreamBatchMemOpType

/// A graph of one launch and a fill after it.
CUgraph small_graph(const Gpu& gpu, Mix& what, const Block& filled) {
  CUgraph graph = nullptr;
  CUgraphNode launched, fills;
  DO(cuGraphCreate(&graph, 0));
  const CUDA_KERNEL_NODE_PARAMS is = what.node(gpu.kernel("mix"));
  DO(cuGraphAddKernelNode(&launched, graph, nullptr, 0, &is));
  CUDA_MEMSET_NODE_PARAMS words{};
  words.dst = filled.address + 4096;
  words.value = 0x1234;
  words.elementSize = 4;
  words.width = 5000;
  words.height = 1;
  DO(cuGraphAddMemsetNode(&fills, graph, &launched, 1, &words, gpu.context));
  return graph;
}
}  // namespace

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  std::vector<Block> all;
  for (size_t i = 0; i < arrays; ++i) {
    all.push_back(make(count));
    fill(gpu, all[i], static_cast<Word>(i));
  }
  CUdeviceptr tables = 0, flag = 0;
  DO(cuMemAlloc(&tables, 4096));
  DO(cuMemAlloc(&flag, 4096));
  DO(cuMemsetD32(flag, 0, 1024));
  const CUfunction kernel = gpu.kernel("mix"), products = gpu.kernel("products");
  CUstream stream = nullptr;
  DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  DO(cuCtxSynchronize());
  Word salt = 0;
  // Everything is used in between, so that a graph's blocks have left when it is launched again.
  const auto around = [&](CUgraphExec runs) {
    DO(cuGraphLaunch(runs, stream));
    DO(cuStreamSynchronize(stream));
    for (size_t i = 0; i < arrays; ++i)
      mix(kernel, all[i], all[(i + 5) % arrays], all[(i + 11) % arrays], ++salt);
    DO(cuCtxSynchronize());
  };

  Mix first{all[0].address, all[1].address, all[2].address, count};
  Mix second{all[6].address, all[7].address, all[8].address, count};
  Mix behind{all[4].address, all[0].address, all[5].address, count};
  CUgraph inner = small_graph(gpu, first, all[3]), other = small_graph(gpu, second, all[9]);
  CUgraph middle = nullptr, outer = nullptr;
  CUgraphNode nested, whole, last, writes;
  DO(cuGraphCreate(&middle, 0));
  DO(cuGraphAddChildGraphNode(&nested, middle, nullptr, 0, inner));
  DO(cuGraphCreate(&outer, 0));
  DO(cuGraphAddChildGraphNode(&whole, outer, nullptr, 0, middle));
  const CUDA_KERNEL_NODE_PARAMS is = behind.node(kernel);
  DO(cuGraphAddKernelNode(&last, outer, &whole, 1, &is));
  CUstreamBatchMemOpParams mark[] = {MEMORY_OPERATION(write_64, flag, 41),
                                     MEMORY_OPERATION(wait_64, flag, 41),
                                     MEMORY_OPERATION(write_64, flag + 8, 42)};
  CUDA_BATCH_MEM_OP_NODE_PARAMS marks{};
  marks.ctx = gpu.context;
  marks.count = 3;
  marks.paramArray = mark;
  DO(cuGraphAddBatchMemOpNode(&writes, outer, &last, 1, &marks));
  CUgraphExec exec = nullptr;
  DO(cuGraphInstantiate(&exec, outer, 0));
  DO(cuGraphDestroy(inner));
  around(exec);
  around(exec);
  CUgraph replaced = nullptr;
  CUgraphNode there;
  DO(cuGraphCreate(&replaced, 0));
  DO(cuGraphAddChildGraphNode(&there, replaced, nullptr, 0, other));
  DO(cuGraphExecChildGraphNodeSetParams(exec, whole, replaced));
  around(exec);
  around(exec);
  DO(cuGraphExecDestroy(exec));

  // A capture goes on where a node of the graph ends.
  DO(cuStreamBeginCaptureToGraph(stream, outer, &writes, nullptr, 1,
                                 CU_STREAM_CAPTURE_MODE_RELAXED));
  mix(kernel, all[12], all[13], all[14], 7, stream);
  mix(kernel, all[15], all[12], all[16], 8, stream);
  CUgraph ended = nullptr;
  DO(cuStreamEndCapture(stream, &ended));
  EXPECT(ended == outer);
  DO(cuGraphInstantiate(&exec, outer, 0));
  around(exec);
  around(exec);

  // A table whose addresses a batch writes, and a kernel that follows it on the same stream.
  std::vector<CUstreamBatchMemOpParams> addresses;
  for (size_t i = 0; i < 3 * entries; ++i)
    addresses.push_back(MEMORY_OPERATION(write_64, tables + 8 * i, all[17 + i].address));
  DO(cuStreamBatchMemOp(stream, static_cast<unsigned>(addresses.size()), addresses.data(), 0));
  around(exec);
  const CUdeviceptr parts[] = {tables, tables + 8 * entries, tables + 16 * entries};
  const unsigned number = entries;
  const unsigned long long words = count;
  launch(products, {&parts[0], &parts[1], &parts[2], &number, &words}, stream);
  DO(cuStreamSynchronize(stream));
  around(exec);

  for (Block& block : all) add_to_digest(block);
  add_to_digest({flag, 4});
  return finish();
}
