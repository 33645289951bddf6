// Tensor maps, which hold the address of what they describe: as it is, where launches find it, or
// in disguise. For the software GPU alone (kernels_software.cpp).
#include "tests/gpu/program.h"

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  constexpr size_t arrays = 16, count = 1u << 19;
  struct alignas(64) Map {
    uint64_t words[16];
  };
  std::vector<Block> all;
  std::vector<Map> maps(arrays);
  for (size_t i = 0; i < arrays; ++i) {
    all.push_back(make(count));
    fill(gpu, all[i], static_cast<Word>(i));
    const uint64_t dim = count;
    const unsigned box = 64, stride = 1;
    const int disguised = i % 8 == 3;
    DO(cuTensorMapEncodeTiled(&maps[i], 0, 1, reinterpret_cast<void*>(all[i].address), &dim,
                              nullptr, &box, &stride, disguised, 0, 0, 0));
  }
  const CUfunction kernel = gpu.kernel("mix"), through = gpu.kernel("through_map");
  for (Word round = 0; round < 4; ++round) {
    for (size_t i = 0; i < arrays; ++i)
      mix(kernel, all[i], all[(i + 1) % arrays], all[(i + 5) % arrays], round);
    for (Map& map : maps) launch(through, {&map, &round});
  }
  for (Block& block : all) add_to_digest(block);
  return finish();
}
