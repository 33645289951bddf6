// Operators over lists, cut as the plugin cuts them.
#include "allocator/simulate/cut_lists.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "allocator/blocks/block.h"

namespace firn::simulate {
namespace {

constexpr uint64_t MiB = 1u << 20;

/// A trace by hand: tensors by their bytes, kernels by their tensors' indices.
class Trace {
 public:
  uint32_t tensor(uint64_t bytes) {
    trace_.tensors.push_back({trace_.tensors.size(), bytes, true});
    return static_cast<uint32_t>(trace_.tensors.size() - 1);
  }
  std::vector<uint32_t> list(const std::vector<uint64_t>& bytes) {
    std::vector<uint32_t> tensors;
    for (uint64_t each : bytes) tensors.push_back(tensor(each));
    return tensors;
  }
  void kernel(const std::string& name, const std::vector<std::vector<uint32_t>>& inputs,
              const std::vector<std::vector<uint32_t>>& outputs, uint64_t duration_ns = 1000) {
    TraceKernel kernel;
    kernel.duration_ns = duration_ns;
    kernel.name_at = trace_.names.size();
    kernel.name_bytes = static_cast<uint32_t>(name.size());
    kernel.uses_at = trace_.uses.size();
    kernel.inputs = add(inputs);
    kernel.outputs = add(outputs);
    kernel.line = static_cast<uint32_t>(trace_.kernels.size() + 2);
    trace_.names += name;
    trace_.kernels.push_back(kernel);
    trace_.duration_ns += duration_ns;
  }
  ProgramTrace cut(uint64_t gpu_bytes) const { return cut_lists(trace_, gpu_bytes); }
  const ProgramTrace& whole() const { return trace_; }

 private:
  uint32_t add(const std::vector<std::vector<uint32_t>>& lists) {
    const size_t before = trace_.uses.size();
    for (const std::vector<uint32_t>& list : lists)
      trace_.uses.insert(trace_.uses.end(), list.begin(), list.end());
    return static_cast<uint32_t>(trace_.uses.size() - before);
  }
  ProgramTrace trace_;
};

std::vector<uint32_t> inputs(const ProgramTrace& trace, size_t kernel) {
  const auto span = trace.inputs(trace.kernels[kernel]);
  return {span.begin(), span.end()};
}
std::vector<uint32_t> outputs(const ProgramTrace& trace, size_t kernel) {
  const auto span = trace.outputs(trace.kernels[kernel]);
  return {span.begin(), span.end()};
}

using Tensors = std::vector<uint32_t>;

TEST(CutLists, an_operator_of_more_than_half_becomes_slices_of_an_eighth) {
  Trace trace;
  const Tensors from = trace.list({8 * MiB, 8 * MiB, 8 * MiB, 8 * MiB});
  const Tensors to = trace.list({8 * MiB, 8 * MiB, 8 * MiB, 8 * MiB});
  trace.kernel("aten::_foreach_sqrt", {from}, {to});
  EXPECT_EQ(trace.cut(128 * MiB).kernels.size(), 1u) << "64 MiB are half";
  const ProgramTrace pairs = trace.cut(127 * MiB);
  ASSERT_EQ(pairs.kernels.size(), 4u) << "16 MiB are more than an eighth";
  EXPECT_EQ(inputs(pairs, 2), Tensors{from[2]});
  EXPECT_EQ(outputs(pairs, 2), Tensors{to[2]});
  EXPECT_EQ(pairs.name(pairs.kernels[3]), "aten::_foreach_sqrt");
  EXPECT_EQ(pairs.kernels[3].line, 2u);
  EXPECT_EQ(pairs.kernels[0].duration_ns, 250u);
  EXPECT_EQ(pairs.tensors[to[1]].first, 1u);
  EXPECT_TRUE(trace.cut(8 * MiB).check_fits(8 * MiB));
  EXPECT_FALSE(trace.cut(6 * MiB).check_fits(6 * MiB)) << "one element";
}

TEST(CutLists, lists_of_optimizers_are_told_apart) {
  for (const bool amsgrad : {false, true}) {
    Trace trace;
    const std::vector<uint64_t> sizes{4 * MiB, 2 * MiB, 16 * MiB};
    std::vector<Tensors> lists;
    for (int i = 0; i < (amsgrad ? 5 : 4); ++i) lists.push_back(trace.list(sizes));
    std::vector<Tensors> read = lists;
    read.push_back(trace.list({4, 4, 4}));
    const Tensors rate = trace.list({4, 4});
    read.push_back(rate);
    trace.kernel("aten::_fused_adamw_", read, lists);
    const ProgramTrace cut = trace.cut(100 * MiB);
    ASSERT_EQ(cut.kernels.size(), 3u) << amsgrad;
    for (size_t k = 0; k < 3; ++k) {
      Tensors expected;
      for (const Tensors& list : lists) expected.push_back(list[k]);
      EXPECT_EQ(outputs(cut, k), expected);
      expected.push_back(read[lists.size()][k]);
      if (k == 2) expected.insert(expected.end(), rate.begin(), rate.end());
      EXPECT_EQ(inputs(cut, k), expected);
    }
  }
}

TEST(CutLists, with_and_without_momentum) {
  for (const size_t count : {2u, 3u}) {
    Trace trace;
    std::vector<Tensors> lists;
    for (size_t i = 0; i < count; ++i)
      lists.push_back(trace.list({2 * MiB, 4 * MiB, 8 * MiB, 16 * MiB, 2 * MiB, 32 * MiB}));
    trace.kernel("aten::_fused_sgd_", lists, lists);
    const ProgramTrace cut = trace.cut(100 * MiB);
    ASSERT_GT(cut.kernels.size(), 2u);
    EXPECT_EQ(outputs(cut, cut.kernels.size() - 1).size(), count);
    EXPECT_EQ(outputs(cut, cut.kernels.size() - 1).back(), lists.back().back());
  }
}

TEST(CutLists, in_place_with_results_on_the_way) {
  Trace trace;
  const std::vector<uint64_t> sizes(3, 8 * MiB);
  const Tensors self = trace.list(sizes), other = trace.list(sizes), made = trace.list(sizes);
  trace.kernel("aten::_foreach_addcdiv_", {self, other}, {self, made});
  const ProgramTrace cut = trace.cut(64 * MiB);
  ASSERT_EQ(cut.kernels.size(), 3u);
  for (size_t k = 0; k < 3; ++k) {
    EXPECT_EQ(inputs(cut, k), (Tensors{self[k], other[k]}));
    EXPECT_EQ(outputs(cut, k), (Tensors{self[k], made[k]}));
  }
}

TEST(CutLists, others_stay_whole) {
  Trace trace;
  const Tensors from = trace.list({8 * MiB, 8 * MiB, 8 * MiB});
  const Tensors to = trace.list({8 * MiB, 8 * MiB, 8 * MiB});
  trace.kernel("aten::cat", {from}, {to});
  trace.kernel("aten::_foreach_norm", {from}, {});
  trace.kernel("aten::_fused_adam_", {from, to}, {from});  // of no number of lists that it has
  trace.kernel("aten::_foreach_add_", {{from[0]}}, {{from[0]}});
  // Some of a list only: whose elements belong together is not known.
  const Tensors more = trace.list(std::vector<uint64_t>(10, 4 * MiB));
  trace.kernel("aten::_foreach_mul_", {{more.begin(), more.begin() + 4}}, {more});
  const ProgramTrace cut = trace.cut(8 * MiB);
  ASSERT_EQ(cut.kernels.size(), 5u);
  for (size_t k = 0; k < 5; ++k) {
    EXPECT_EQ(inputs(cut, k), inputs(trace.whole(), k));
    EXPECT_EQ(outputs(cut, k), outputs(trace.whole(), k));
  }
}

/// Whatever the sizes: nothing is lost, nothing is twice, no slice is larger than it has to be.
TEST(CutLists, random_lists) {
  for (unsigned seed = 0; seed < 2'000; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](uint64_t most) { return random() % most; };
    Trace trace;
    const size_t length = 1 + draw(40), lists = 1 + draw(3);
    std::vector<uint64_t> sizes;
    for (size_t i = 0; i < length; ++i)
      sizes.push_back(draw(3) ? 1 + draw(20 * MiB) : 1 + draw(4096));
    std::vector<Tensors> read;
    for (size_t i = 0; i < lists; ++i) read.push_back(trace.list(sizes));
    const bool in_place = draw(2);
    const Tensors written = in_place ? read[0] : trace.list(sizes);
    const uint64_t duration = draw(1'000'000) + 1;
    trace.kernel("aten::_foreach_addcdiv", read, {written}, duration);
    const uint64_t gpu_bytes = 2 * MiB + draw(800 * MiB);
    const ProgramTrace cut = trace.cut(gpu_bytes);

    SCOPED_TRACE("seed " + std::to_string(seed));
    uint64_t sum = 0;
    std::vector<Tensors> seen(lists);
    Tensors made;
    for (size_t k = 0; k < cut.kernels.size(); ++k) {
      sum += cut.kernels[k].duration_ns;
      const Tensors in = inputs(cut, k), out = outputs(cut, k);
      ASSERT_EQ(in.size(), out.size() * lists);
      ASSERT_FALSE(out.empty());
      for (size_t list = 0; list < lists; ++list)
        seen[list].insert(seen[list].end(), in.begin() + static_cast<ptrdiff_t>(list * out.size()),
                          in.begin() + static_cast<ptrdiff_t>((list + 1) * out.size()));
      made.insert(made.end(), out.begin(), out.end());
      std::set<uint32_t> all(in.begin(), in.end());
      all.insert(out.begin(), out.end());
      uint64_t bytes = 0;
      for (uint32_t tensor : all) {
        const uint64_t each = cut.tensors[tensor].bytes;
        bytes += each <= size_class::small_most
                     ? each
                     : (each + granule_bytes - 1) / granule_bytes * granule_bytes;
        EXPECT_LE(cut.tensors[tensor].first, k);
        EXPECT_GE(cut.tensors[tensor].last, k);
      }
      EXPECT_TRUE(out.size() == 1 || bytes <= gpu_bytes / 8 ||
                  (cut.kernels.size() == 1 && bytes <= gpu_bytes / 2))
          << bytes << " of " << gpu_bytes;
    }
    EXPECT_EQ(sum, duration);
    EXPECT_EQ(made, written);
    for (size_t list = 0; list < lists; ++list) EXPECT_EQ(seen[list], read[list]);
  }
}

}  // namespace
}  // namespace firn::simulate
