// A program that says where it wants its memory: prefetches and advice, by every version of the
// calls. On the driver alone they are refused, since the memory is not managed; with Firn they are
// hints; the bits are the same. Managed memory, and wrong calls, are answered alike.
#include <cstdint>
#include <cstring>
#include <functional>

#include "tests/gpu/program.h"

namespace {

using Prefetch = CUresult (*)(CUdeviceptr, size_t, CUdevice, CUstream);
using Prefetch2 = CUresult (*)(CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream);
using PrefetchBatch = CUresult (*)(CUdeviceptr*, size_t*, size_t, CUmemLocation*, size_t*, size_t,
                                   unsigned long long, CUstream);
using Advise = CUresult (*)(CUdeviceptr, size_t, int, CUdevice);
using Advise2 = CUresult (*)(CUdeviceptr, size_t, int, CUmemLocation);
enum : int { read_mostly = 1, preferred = 3, accessed_by = 5, accessed_by_no_more = 6 };
constexpr CUdevice cpu = -1;

/// By the way that the CUDA runtime takes.
template <class Entry>
Entry entry(const char* name, int version) {
  void* found = nullptr;
  DO(cuGetProcAddress(name, &found, version, 0, nullptr));
  return reinterpret_cast<Entry>(found);
}

CUmemLocation location(CUmemLocationType type, int id = 0) {
  CUmemLocation is{};
  is.type = type;
  is.id = id;
  return is;
}

struct Calls {
  Prefetch prefetch = entry<Prefetch>("cuMemPrefetchAsync", 8000);
  Prefetch2 prefetch2 = entry<Prefetch2>("cuMemPrefetchAsync", 12020);
  PrefetchBatch batch = entry<PrefetchBatch>("cuMemPrefetchBatchAsync", 13000);
  Advise advise = entry<Advise>("cuMemAdvise", 8000);
  Advise2 advise2 = entry<Advise2>("cuMemAdvise", 12020);
};

/// All hints of Firn's blocks are answered as the first was.
struct Answers {
  CUresult first;
  void operator()(CUresult result) const { EXPECT(result == first); }
};

void wrong_calls(const Calls& calls, const Block& block, CUdeviceptr freed, CUdeviceptr managed,
                 CUstream stream) {
  const auto device = location(CU_MEM_LOCATION_TYPE_DEVICE);
  const auto invalid = [](CUresult result) { EXPECT(result == CUDA_ERROR_INVALID_VALUE); };
  for (const CUdeviceptr address : {block.address, managed}) {
    invalid(calls.prefetch2(address, 0, device, 0, stream));
    invalid(calls.prefetch2(address, 4096, device, 1, stream));
    invalid(calls.prefetch2(address, block.bytes() + (1u << 20), device, 0, stream));
    invalid(calls.prefetch2(address, SIZE_MAX, device, 0, stream));
    invalid(calls.prefetch2(address, 4096, location(CU_MEM_LOCATION_TYPE_INVALID), 0, stream));
    invalid(calls.advise(address, 4096, 7, 0));
    invalid(calls.advise(address, 4096, 0, 0));
    invalid(calls.advise2(address, 0, read_mostly, device));
    EXPECT(calls.prefetch(address, 4096, 99, stream) != CUDA_SUCCESS);
    EXPECT(calls.advise(address, 4096, preferred, 99) != CUDA_SUCCESS);
  }
  EXPECT(calls.prefetch(managed, 4096, 99, stream) == CUDA_ERROR_INVALID_DEVICE);
  invalid(calls.prefetch(freed, 4096, 0, stream));
  invalid(calls.advise(freed, 4096, read_mostly, 0));
  // One for each, in a batch, is as wrong as the wrongest; and so are a batch's own parameters.
  CUdeviceptr addresses[] = {managed, block.address};
  size_t bytes[] = {4096, 4096}, indices[] = {0, 1};
  CUmemLocation places[] = {device, device};
  invalid(calls.batch(addresses, bytes, 2, places, indices, 2, 0, stream));
  invalid(calls.batch(addresses, bytes, 1, places, indices, 2, 0, stream));
  invalid(calls.batch(addresses, bytes, 1, places, indices, 0, 0, stream));
  invalid(calls.batch(addresses, bytes, 1, places, indices + 1, 1, 0, stream));
  invalid(calls.batch(addresses, bytes, 1, places, indices, 1, 1, stream));
  invalid(calls.batch(addresses, bytes, 1, places, indices, 1, 0, nullptr));
  DO(calls.batch(addresses, bytes, 1, places, indices, 1, 0, stream));
}

/// Firn ignores a hint then; and the graph does its work.
void in_a_capture(const Calls& calls, const Block& block, CUstream stream, CUfunction kernel,
                  const Block& other) {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  DO(calls.prefetch(block.address, block.bytes(), 0, stream));
  DO(calls.prefetch(block.address, block.bytes(), cpu, stream));
  mix(kernel, block, other, other, 77, stream);
  DO(cuStreamEndCapture(stream, &graph));
  DO(cuGraphInstantiate(&exec, graph, 0));
  DO(cuGraphLaunch(exec, stream));
  DO(cuStreamSynchronize(stream));
  DO(cuGraphExecDestroy(exec));
  DO(cuGraphDestroy(graph));
}

}  // namespace

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  constexpr size_t arrays = 12, count = 1u << 20;
  std::vector<Block> all;
  for (size_t i = 0; i < arrays; ++i) {
    all.push_back(make(count));
    fill(gpu, all[i], static_cast<Word>(i));
  }
  DO(cuCtxSynchronize());
  const Calls calls;
  CUstream stream = nullptr;
  DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr managed = 0, freed = 0;
  DO(cuMemAllocManaged(&managed, count, 1));
  DO(cuMemAlloc(&freed, count));
  DO(cuMemFree(freed));
  const CUfunction kernel = gpu.kernel("mix");

  const Answers answers{calls.prefetch(all[0].address, all[0].bytes(), 0, stream)};
  EXPECT(answers.first == CUDA_SUCCESS || answers.first == CUDA_ERROR_INVALID_VALUE);
  std::printf("hints are %s\n", answers.first == CUDA_SUCCESS ? "taken" : "refused");
  DO(calls.prefetch(managed, count, 0, stream));
  DO(calls.prefetch(managed, count, cpu, stream));
  DO(calls.prefetch2(managed, count, location(CU_MEM_LOCATION_TYPE_HOST), 0, stream));
  DO(calls.advise(managed, count, accessed_by, 0));
  DO(calls.advise2(managed, count, preferred, location(CU_MEM_LOCATION_TYPE_HOST_NUMA)));
  wrong_calls(calls, all[0], freed, managed, stream);

  const auto host = location(CU_MEM_LOCATION_TYPE_HOST);
  const auto device = location(CU_MEM_LOCATION_TYPE_DEVICE);
  for (size_t round = 0; round < 3 * arrays; ++round) {
    const auto at = [&](size_t ahead) -> const Block& { return all[(round + ahead) % arrays]; };
    const auto prefetch = [&](const Block& block, const CUmemLocation& to) {
      switch (round % 3) {
        case 0:
          return answers(calls.prefetch(block.address, block.bytes(),
                                        to.type == host.type ? cpu : 0, stream));
        case 1: return answers(calls.prefetch2(block.address, block.bytes(), to, 0, stream));
        default: {
          CUdeviceptr addresses[] = {block.address, block.address + block.bytes() / 2};
          size_t bytes[] = {block.bytes() / 2, block.bytes() / 2}, indices[] = {0};
          CUmemLocation place = to;
          return answers(calls.batch(addresses, bytes, 2, &place, indices, 1, 0, stream));
        }
      }
    };
    mix(kernel, at(0), at(1), at(2), static_cast<Word>(round), stream);
    prefetch(at(6), device);
    prefetch(at(0), host);
    answers(calls.advise(at(3).address, at(3).bytes(), 1 + static_cast<int>(round % 6), 0));
    answers(calls.advise2(at(11).address, at(11).bytes(), preferred, host));
    // Meanwhile the prefetch can come: the memory of these three stays.
    for (Word turn = 0; turn < 4; ++turn) {
      mix(kernel, at(3), at(4), at(5), turn, stream);
      DO(cuStreamSynchronize(stream));
    }
    mix(kernel, at(6), at(5), at(4), static_cast<Word>(round), stream);
  }
  DO(cuStreamSynchronize(stream));
  if (answers.first == CUDA_SUCCESS)
    in_a_capture(calls, all[0], stream, kernel, all[1]);
  else
    mix(kernel, all[0], all[1], all[1], 77, stream);
  DO(cuCtxSynchronize());
  for (Block& block : all) add_to_digest(block);
  DO(cuMemFree(managed));
  return finish();
}
