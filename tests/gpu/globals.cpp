// A variable of the module that holds an address: kernels follow it without being given it.
#include "tests/gpu/program.h"

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  constexpr size_t arrays = 16, count = 1u << 20;
  std::vector<Block> all;
  for (size_t i = 0; i < arrays; ++i) {
    all.push_back(make(count));
    fill(gpu, all[i], static_cast<Word>(3 * i));
  }
  CUdeviceptr variable = 0;
  size_t bytes = 0;
  DO(cuModuleGetGlobal(&variable, &bytes, gpu.module, "firn_global"));
  EXPECT(bytes == sizeof(CUdeviceptr));
  const CUfunction follow = gpu.kernel("from_global"), kernel = gpu.kernel("mix");
  const unsigned long long words = count;
  for (Word round = 0; round < 4; ++round) {
    // From the host, and, every other time, from a place on the device.
    const CUdeviceptr address = all[3 * round].address;
    if (round % 2 == 0) {
      DO(cuMemcpyHtoD(variable, &address, sizeof address));
    } else {
      CUdeviceptr place = 0;
      DO(cuMemAlloc(&place, sizeof address));
      DO(cuMemcpyHtoD(place, &address, sizeof address));
      DO(cuMemcpyDtoD(variable, place, sizeof address));
      DO(cuMemFree(place));
    }
    for (size_t i = 0; i < arrays; ++i)
      mix(kernel, all[i], all[(i + 1) % arrays], all[(i + 2) % arrays], round);
    for (size_t i = 1; i < 4; ++i)
      launch(follow, {&all[(3 * round + i) % arrays].address, &words, &round});
  }
  for (Block& block : all) add_to_digest(block);
  return finish();
}
