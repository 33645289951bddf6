// Products of many matrices whose addresses lie in tables on the device: no kernel is given them.
#include "tests/gpu/program.h"

namespace {
constexpr size_t count = 1u << 18, groups = 8, entries = 3;

/// A table of the blocks' addresses, copied from the host.
CUdeviceptr table_of(const std::vector<Block>& blocks) {
  std::vector<CUdeviceptr> addresses;
  for (const Block& block : blocks) addresses.push_back(block.address);
  CUdeviceptr table = 0;
  DO(cuMemAlloc(&table, addresses.size() * sizeof(CUdeviceptr)));
  DO(cuMemcpyHtoD(table, addresses.data(), addresses.size() * sizeof(CUdeviceptr)));
  return table;
}
}  // namespace

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  std::vector<Block> to[groups], a[groups], b[groups];
  CUdeviceptr tables[groups][3];
  Word seed = 0;
  for (size_t g = 0; g < groups; ++g) {
    for (size_t e = 0; e < entries; ++e)
      for (auto* list : {&to[g], &a[g], &b[g]}) {
        list->push_back(make(count));
        fill(gpu, list->back(), ++seed);
      }
    tables[g][0] = table_of(to[g]);
    tables[g][1] = table_of(a[g]);
    tables[g][2] = table_of(b[g]);
  }
  const CUfunction kernel = gpu.kernel("products");
  const unsigned number = entries;
  const unsigned long long words = count;
  const auto multiply = [&](size_t c, size_t x, size_t y) {
    launch(kernel, {&tables[c][0], &tables[x][1], &tables[y][2], &number, &words});
  };
  for (int round = 0; round < 3; ++round)
    for (size_t g = 0; g < groups; ++g) multiply(g, (g + 1) % groups, (g + 3) % groups);
  // Tables change: the last group's products go where the first one's were; one is copied within
  // the device, and what it held before no longer counts.
  DO(cuMemcpyDtoD(tables[7][0], tables[0][0], entries * sizeof(CUdeviceptr)));
  multiply(7, 2, 4);
  CUdeviceptr only = to[5][1].address;
  DO(cuMemcpyHtoD(tables[6][0] + 8, &only, 8));
  multiply(6, 5, 1);
  for (auto* lists : {to, a, b})
    for (size_t g = 0; g < groups; ++g)
      for (const Block& block : lists[g]) add_to_digest(block);
  return finish();
}
