#include "tests/allocator/lifetimes/draw.h"

#include <algorithm>
#include <utility>

namespace firn::program {

Kernels draw(const Bounds& bounds, std::mt19937_64& random) {
  const auto between = [&](const uint64_t(&range)[2]) {
    return range[0] + random() % (range[1] - range[0] + 1);
  };
  std::uniform_real_distribution<> share;
  Kernels program;
  program.kernels.resize(between(bounds.kernels));
  const size_t n = program.kernels.size();
  for (Kernels::Kernel& kernel : program.kernels) kernel.ns = between(bounds.ns);
  const auto use = [&](uint32_t block, size_t kernel, bool write) {
    auto& uses = program.kernels[kernel].uses;
    const auto known = std::find_if(uses.begin(), uses.end(),
                                    [&](const auto& other) { return other.block == block; });
    if (known == uses.end())
      uses.push_back({block, write});
    else
      known->write |= write;
  };
  const uint64_t count = between(bounds.blocks);
  for (uint32_t i = 0; i < count; ++i) {
    Kernels::Block block{.size = between(bounds.size)};
    block.persistent = share(random) < bounds.persistent;
    size_t first = random() % n, last = random() % n;
    if (last < first) std::swap(first, last);
    block.born = first;
    block.dies = last;
    use(i, first, !block.persistent || share(random) < bounds.writes);
    if (!block.persistent) use(i, last, share(random) < bounds.writes);
    for (uint64_t more = random() % (2 * bounds.uses + 1); more > 0; --more)
      use(i, first + random() % (last - first + 1), share(random) < bounds.writes);
    program.blocks.push_back(block);
  }
  for (size_t k = program.kernels.size(); k-- > 0;) {  // what uses nothing tells of nothing
    if (!program.kernels[k].uses.empty()) continue;
    program.kernels.erase(program.kernels.begin() + static_cast<ptrdiff_t>(k));
    for (Kernels::Block& block : program.blocks) {
      block.born -= block.born > k;
      block.dies -= block.dies > k;
    }
  }
  return program;
}

}  // namespace firn::program
