// Stream-ordered allocation, from the default pool and from one of the program's own.
#include "tests/gpu/program.h"

namespace {
Block make_on(size_t count, CUstream stream, CUmemoryPool pool) {
  Block block{0, count};
  if (pool)
    DO(cuMemAllocFromPoolAsync(&block.address, block.bytes(), pool, stream));
  else
    DO(cuMemAllocAsync(&block.address, block.bytes(), stream));
  count_live(block.bytes());
  return block;
}
unsigned long long used(CUmemoryPool pool) {
  unsigned long long bytes = 0;
  DO(cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(7),
                           &bytes));
  return bytes;
}
}  // namespace

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  constexpr size_t kept = 14, count = 1u << 20;
  CUstream streams[2];
  for (CUstream& stream : streams) DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, {}};
  CUmemoryPool own = nullptr, standard = nullptr;
  DO(cuMemPoolCreate(&own, &props));
  DO(cuDeviceGetDefaultMemPool(&standard, gpu.device));
  std::vector<Block> all;
  for (size_t i = 0; i < kept; ++i) {
    all.push_back(make_on(count, streams[i % 2], i % 3 ? own : nullptr));
    fill(gpu, all[i], static_cast<Word>(i), streams[i % 2]);
  }
  DO(cuCtxSynchronize());
  EXPECT(used(own) == 9 * all[0].bytes());
  EXPECT(used(standard) == 5 * all[0].bytes());
  const CUfunction kernel = gpu.kernel("mix");
  for (Word round = 0; round < 6; ++round) {
    // Freed on one stream, and at once somebody else's there.
    Block passing = make_on(count, streams[0], round % 2 ? own : nullptr);
    fill(gpu, passing, round, streams[0]);
    mix(kernel, all[round], all[round + 1], passing, round, streams[0]);
    DO(cuMemFreeAsync(passing.address, streams[0]));
    live_bytes -= passing.bytes();
    Block next = make_on(count, streams[0], nullptr);
    fill(gpu, next, round + 90, streams[0]);
    mix(kernel, all[round + 2], next, all[round + 8], round, streams[0]);
    // And freed on a stream that it was not allocated for, after that one has waited.
    DO(cuStreamSynchronize(streams[0]));
    mix(kernel, all[round + 3], next, all[round + 5], round, streams[1]);
    DO(cuMemFreeAsync(next.address, streams[1]));
    live_bytes -= next.bytes();
    DO(cuStreamSynchronize(streams[1]));
  }
  DO(cuCtxSynchronize());
  for (Block& block : all) add_to_digest(block);
  for (size_t i = 1; i < kept; i += 2) DO(cuMemFreeAsync(all[i].address, streams[0]));
  DO(cuCtxSynchronize());
  EXPECT(used(own) == 4 * all[0].bytes());
  EXPECT(used(standard) == 3 * all[0].bytes());
  // (Of memory that cuMemFree gives back a pool's count says nothing: an H100's driver keeps it.)
  for (size_t i = 0; i < kept; i += 2) DO(cuMemFree(all[i].address));
  DO(cuCtxSynchronize());
  DO(cuMemPoolDestroy(own));
  return finish();
}
