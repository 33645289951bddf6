// Graphs built by hand: nodes that launch, copy and fill; nodes whose parameters change, in the
// graph and in the executable; a table of addresses that a node copies from memory of the host, and
// then from other memory, the first having been given back.
#include <sys/mman.h>

#include "tests/gpu/program.h"

namespace {
constexpr size_t arrays = 20, count = 1u << 19, entries = 2;

CUDA_MEMCPY3D copy(CUdeviceptr to, CUdeviceptr from, const void* host, size_t bytes) {
  CUDA_MEMCPY3D is{};
  is.srcMemoryType = static_cast<CUmemorytype>(host ? 1 : 2);
  is.dstMemoryType = static_cast<CUmemorytype>(2);
  is.srcHost = host;
  is.srcDevice = from;
  is.dstDevice = to;
  is.WidthInBytes = bytes;
  is.Height = is.Depth = 1;
  return is;
}

/// Pages of their own, so that what is given back is really gone.
CUdeviceptr* host_table() {
  void* at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) std::exit(5);
  return static_cast<CUdeviceptr*>(at);
}
}  // namespace

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  std::vector<Block> all;
  for (size_t i = 0; i < arrays; ++i) {
    all.push_back(make(count));
    fill(gpu, all[i], static_cast<Word>(i));
  }
  CUdeviceptr tables = 0;
  DO(cuMemAlloc(&tables, 4096));
  const CUfunction kernel = gpu.kernel("mix"), products = gpu.kernel("products");
  CUstream stream = nullptr;
  DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  DO(cuCtxSynchronize());

  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUgraphNode mixes, fills, copies, table, product;
  DO(cuGraphCreate(&graph, 0));
  Mix first{all[0].address, all[1].address, all[2].address, count};
  CUDA_KERNEL_NODE_PARAMS launch_mix = first.node(kernel);
  DO(cuGraphAddKernelNode(&mixes, graph, nullptr, 0, &launch_mix));
  CUDA_MEMSET_NODE_PARAMS zeros{};
  zeros.dst = all[3].address + 4096;
  zeros.value = 0xabcd;
  zeros.elementSize = 4;
  zeros.width = 10000;
  zeros.height = 1;
  DO(cuGraphAddMemsetNode(&fills, graph, &mixes, 1, &zeros, gpu.context));
  CUDA_MEMCPY3D within = copy(all[4].address, all[0].address, nullptr, all[0].bytes());
  DO(cuGraphAddMemcpyNode(&copies, graph, &fills, 1, &within, gpu.context));
  CUdeviceptr* addresses = host_table();
  for (size_t i = 0; i < 3 * entries; ++i) addresses[i] = all[5 + i].address;
  CUDA_MEMCPY3D from_host = copy(tables, 0, addresses, 3 * entries * sizeof(CUdeviceptr));
  DO(cuGraphAddMemcpyNode(&table, graph, &copies, 1, &from_host, gpu.context));
  CUdeviceptr parts[] = {tables, tables + 8 * entries, tables + 16 * entries};
  unsigned number = entries;
  unsigned long long words = count;
  void* of_products[] = {&parts[0], &parts[1], &parts[2], &number, &words};
  CUDA_KERNEL_NODE_PARAMS launch_products = launch_mix;
  launch_products.func = products;
  launch_products.kernelParams = of_products;
  DO(cuGraphAddKernelNode(&product, graph, &table, 1, &launch_products));
  DO(cuGraphInstantiate(&exec, graph, 0));

  Word salt = 0;
  const auto around = [&](CUgraphExec runs) {
    DO(cuGraphLaunch(runs, stream));
    DO(cuStreamSynchronize(stream));
    for (size_t i = 0; i < arrays; ++i)
      mix(kernel, all[i], all[(i + 3) % arrays], all[(i + 7) % arrays], ++salt);
    DO(cuCtxSynchronize());
  };
  around(exec);
  around(exec);
  // The executable's nodes change, and then those of the graph, from which another one is made.
  Mix second{all[12].address, all[13].address, all[14].address, count};
  launch_mix = second.node(kernel);
  DO(cuGraphExecKernelNodeSetParams(exec, mixes, &launch_mix));
  zeros.dst = all[15].address;
  DO(cuGraphExecMemsetNodeSetParams(exec, fills, &zeros, gpu.context));
  within = copy(all[16].address, all[17].address, nullptr, all[0].bytes());
  DO(cuGraphExecMemcpyNodeSetParams(exec, copies, &within, gpu.context));
  CUdeviceptr* others = host_table();
  for (size_t i = 0; i < 3 * entries; ++i) others[i] = all[19 - i].address;
  from_host.srcHost = others;
  DO(cuGraphExecMemcpyNodeSetParams(exec, table, &from_host, gpu.context));
  ::munmap(addresses, 4096);
  around(exec);
  around(exec);
  Mix third{all[6].address, all[8].address, all[10].address, count};
  launch_mix = third.node(kernel);
  DO(cuGraphKernelNodeSetParams(mixes, &launch_mix));
  DO(cuGraphMemcpyNodeSetParams(table, &from_host));
  CUgraphExecUpdateResultInfo how{};
  DO(cuGraphExecUpdate(exec, graph, &how));
  around(exec);
  DO(cuGraphDestroy(graph));
  DO(cuGraphExecDestroy(exec));

  // Of nodes of any type, by the call that takes all of them; and a captured one, given a node.
  CUgraphNodeParams any{};
  DO(cuGraphCreate(&graph, 0));
  any.type = static_cast<CUgraphNodeType>(0);
  Mix fourth{all[1].address, all[18].address, all[11].address, count};
  const CUDA_KERNEL_NODE_PARAMS plain = fourth.node(kernel);
  any.kernel.func = plain.func;
  any.kernel.gridDimX = any.kernel.gridDimY = any.kernel.gridDimZ = 1;
  any.kernel.blockDimX = any.kernel.blockDimY = any.kernel.blockDimZ = 1;
  any.kernel.kernelParams = plain.kernelParams;
  any.kernel.blockDimX = 256;
  any.kernel.gridDimX = 64;
  DO(ADD_NODE(&mixes, graph, nullptr, 0, &any));
  any = {};
  any.type = static_cast<CUgraphNodeType>(1);
  others[0] = all[2].address;
  others[1] = all[9].address;
  any.memcpy.copyCtx = gpu.context;
  any.memcpy.copyParams = copy(tables, 0, others, 3 * entries * sizeof(CUdeviceptr));
  DO(ADD_NODE(&table, graph, &mixes, 1, &any));
  DO(cuGraphAddKernelNode(&product, graph, &table, 1, &launch_products));
  DO(cuGraphInstantiate(&exec, graph, 0));
  around(exec);
  around(exec);
  for (Block& block : all) add_to_digest(block);
  return finish();
}
