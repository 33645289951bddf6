// Tables of addresses in memory of the host that kernels read by themselves: pinned, and managed.
#include "tests/gpu/program.h"

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  constexpr size_t arrays = 18, count = 1u << 19, entries = 2;
  std::vector<Block> all;
  for (size_t i = 0; i < arrays; ++i) {
    all.push_back(make(count));
    fill(gpu, all[i], static_cast<Word>(i));
  }
  void* pinned = nullptr;
  CUdeviceptr managed = 0;
  DO(cuMemAllocHost(&pinned, 3 * entries * sizeof(CUdeviceptr)));
  DO(cuMemAllocManaged(&managed, 3 * entries * sizeof(CUdeviceptr), 1));
  const CUfunction products = gpu.kernel("products"), kernel = gpu.kernel("mix");
  const unsigned number = entries;
  const unsigned long long words = count;
  for (size_t round = 0; round < 6; ++round) {
    const CUdeviceptr table =
        round % 2 ? managed : reinterpret_cast<CUdeviceptr>(pinned);
    auto* addresses = reinterpret_cast<CUdeviceptr*>(table);
    for (size_t i = 0; i < 3 * entries; ++i)
      addresses[i] = all[(5 * round + 2 * i) % arrays].address;
    const CUdeviceptr tables[] = {table, table + 8 * entries, table + 16 * entries};
    launch(products, {&tables[0], &tables[1], &tables[2], &number, &words});
    DO(cuCtxSynchronize());
    for (size_t i = 0; i < arrays; ++i)
      mix(kernel, all[i], all[(i + 1) % arrays], all[(i + 2) % arrays], static_cast<Word>(round));
  }
  for (Block& block : all) add_to_digest(block);
  DO(cuMemFreeHost(pinned));
  DO(cuMemFree(managed));
  return finish();
}
