// Two devices of which neither may use the other's memory: copies between them by every call that a
// program makes where it knows of unified addresses only, from either side.
#include "tests/gpu/program.h"

namespace {
constexpr CUmemorytype device_memory = static_cast<CUmemorytype>(2);
constexpr size_t arrays = 14, count = 1u << 20, pitch = 4096;

CUDA_MEMCPY2D plane(const Block& to, const Block& from) {
  CUDA_MEMCPY2D is{};
  is.srcMemoryType = is.dstMemoryType = device_memory;
  is.dstDevice = to.address;
  is.srcDevice = from.address;
  is.dstPitch = is.srcPitch = pitch;
  is.dstY = 3;
  is.srcXInBytes = 128;
  is.WidthInBytes = 1000;
  is.Height = 40;
  return is;
}
CUDA_MEMCPY3D box(const Block& to, const Block& from) {
  CUDA_MEMCPY3D is{};
  is.srcMemoryType = is.dstMemoryType = device_memory;
  is.dstDevice = to.address;
  is.srcDevice = from.address;
  is.dstPitch = is.srcPitch = pitch;
  is.dstHeight = 50;
  is.srcHeight = 60;
  is.dstZ = 1;
  is.WidthInBytes = 2000;
  is.Height = 30;
  is.Depth = 4;
  return is;
}
}  // namespace

int main(int argc, char** argv) {
  Gpu gpus[2] = {Gpu(kernels_of(argc, argv), 0), Gpu(kernels_of(argc, argv), 1)};
  std::vector<Block> all[2];
  CUstream streams[2];
  for (int d = 0; d < 2; ++d) {
    DO(cuCtxSetCurrent(gpus[d].context));
    DO(cuStreamCreate(&streams[d], CU_STREAM_NON_BLOCKING));
    for (size_t i = 0; i < arrays; ++i) {
      all[d].push_back(make(count));
      fill(gpus[d], all[d][i], static_cast<Word>(i + 100 * static_cast<size_t>(d)));
    }
    DO(cuCtxSynchronize());
  }
  live_bytes_peak /= 2;  // each device has its own budget
  for (Word round = 0; round < 3; ++round)
    for (int d = 0; d < 2; ++d) {
      DO(cuCtxSetCurrent(gpus[d].context));
      std::vector<Block>&mine = all[d], &theirs = all[1 - d];
      const size_t bytes = mine[0].bytes();
      for (size_t i = 0; i < arrays; ++i)
        mix(gpus[d].kernel("mix"), mine[i], mine[(i + 1) % arrays], mine[(i + 5) % arrays], round);
      DO(cuCtxSynchronize());
      DO(cuMemcpy(mine[0].address, theirs[round].address, bytes));
      DO(cuMemcpyDtoD(theirs[1].address, mine[round + 4].address, bytes / 2));
      DO(cuCtxSynchronize());
      DO(cuMemcpyAsync(mine[2].address, theirs[round + 6].address, bytes, streams[d]));
      DO(cuMemcpyDtoDAsync(theirs[3].address, mine[round + 8].address, bytes, streams[d]));
      DO(cuStreamSynchronize(streams[d]));
      const CUDA_MEMCPY2D rows = plane(mine[4], theirs[round + 9]);
      DO(cuMemcpy2D(&rows));
      DO(cuCtxSynchronize());
      const CUDA_MEMCPY3D slices = box(theirs[5], mine[round + 10]);
      DO(cuMemcpy3DAsync(&slices, streams[d]));
      DO(cuStreamSynchronize(streams[d]));
    }
  for (int d = 0; d < 2; ++d) {
    DO(cuCtxSetCurrent(gpus[d].context));
    for (Block& block : all[d]) add_to_digest(block);
  }
  return finish();
}
