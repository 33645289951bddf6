// A trace that makes values again: its kernels, names and times.
#include "allocator/simulate/remake.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace firn::simulate {
namespace {

constexpr uint64_t MiB = 1u << 20;

/// Activations of 64 MiB, each made of the one before by `name` in 100 us, and a slow kernel beside
/// each; used again in reverse order. `statistics`: each reads and writes so many persistent tensors
/// too, the first ones but one.
ProgramTrace layers(unsigned count, const std::string& name, unsigned statistics = 0) {
  ProgramTrace trace;
  const auto tensor = [&](uint64_t id) {
    trace.tensors.push_back({.id = id, .bytes = 64 * MiB,
                             .persistent = trace.tensors.size() <= statistics});
    return static_cast<uint32_t>(trace.tensors.size() - 1);
  };
  const auto kernel = [&](const std::string& named, uint64_t ns, const std::vector<uint32_t>& in,
                          const std::vector<uint32_t>& out) {
    const auto index = static_cast<uint32_t>(trace.kernels.size());
    trace.kernels.push_back({.duration_ns = ns, .name_at = trace.names.size(),
                             .uses_at = trace.uses.size(),
                             .name_bytes = static_cast<uint32_t>(named.size()),
                             .inputs = static_cast<uint32_t>(in.size()),
                             .outputs = static_cast<uint32_t>(out.size()), .line = index + 2});
    trace.names += named;
    trace.duration_ns += ns;
    for (const auto* list : {&in, &out})
      for (const uint32_t used : *list) {
        trace.uses.push_back(used);
        TraceTensor& of = trace.tensors[used];
        if (of.first == no_kernel) of.first = index;
        of.last = index;
      }
  };
  uint32_t in = tensor(7);
  std::vector<uint32_t> made, state;
  for (unsigned i = 0; i < statistics; ++i) state.push_back(tensor(8 + i));
  const auto with_state = [&](std::vector<uint32_t> list) {
    list.insert(list.end(), state.begin(), state.end());
    return list;
  };
  for (unsigned i = 0; i < count; ++i) {
    const uint32_t wide = tensor(100 + 2 * i);
    kernel("aten::normal_", 1'000'000, {}, {wide});
    const uint32_t out = tensor(101 + 2 * i);
    kernel(name, 100'000, with_state({in, wide}), with_state({out}));
    made.push_back(out);
    in = wide;
  }
  for (unsigned i = count; i-- > 0;) kernel("loss", 1'000'000, {made[i]}, {});
  return trace;
}

MachineOptions machine(uint64_t gpu_bytes) {
  MachineOptions options;
  options.gpu_bytes = gpu_bytes;
  options.link_bytes_s = 16e9;
  options.ssd_read_bytes_s = options.ssd_write_bytes_s = 4e9;
  options.host_bytes = uint64_t{16} << 30;
  return options;
}

TEST(RemakeTrace, adds_kernels_of_their_own_name_and_nothing_else) {
  const ProgramTrace trace = layers(16, "aten::gelu");
  const Remade remade = remake(trace, machine(700 * MiB));
  ASSERT_GT(remade.values, 0u);
  EXPECT_EQ(remade.bytes, remade.values * 64 * MiB);
  EXPECT_GT(remade.choice_s, 0);
  EXPECT_EQ(remade.trace.duration_ns - remade.trace.again_ns, trace.duration_ns);
  EXPECT_NEAR(remade.again_s, static_cast<double>(remade.trace.again_ns) * 1e-9, 1e-12);
  size_t original = 0, again = 0;
  uint64_t ns = 0;
  for (const TraceKernel& kernel : remade.trace.kernels) {
    ns += kernel.duration_ns;
    if (remade.trace.name(kernel) == "remake(aten::gelu)") {
      EXPECT_GE(kernel.line, 2u);
      EXPECT_LT(kernel.line, trace.kernels[original].line);  // it has run before
      ++again;
      continue;
    }
    ASSERT_LT(original, trace.kernels.size());
    EXPECT_EQ(kernel.line, trace.kernels[original].line);
    EXPECT_EQ(remade.trace.name(kernel), trace.name(trace.kernels[original]));
    ++original;
  }
  EXPECT_EQ(original, trace.kernels.size());
  EXPECT_EQ(again, remade.values);
  EXPECT_EQ(ns, remade.trace.duration_ns);
  for (size_t t = trace.tensors.size(); t < remade.trace.tensors.size(); ++t) {
    EXPECT_GT(remade.trace.tensors[t].id, 131u);
    EXPECT_NE(remade.trace.tensors[t].first, no_kernel);
  }
}

TEST(RemakeTrace, a_batch_norm_runs_again_without_its_statistics) {
  const ProgramTrace trace = layers(16, "aten::native_batch_norm", 2);
  const Remade remade = remake(trace, machine(900 * MiB));
  ASSERT_GT(remade.values, 0u);
  const ProgramTrace& made = remade.trace;
  size_t again = 0;
  uint64_t uses = 0;
  for (const TraceKernel& kernel : made.kernels) {
    EXPECT_EQ(kernel.uses_at, uses) << kernel.line;
    uses += kernel.inputs + kernel.outputs;
    if (made.name(kernel) != "remake(aten::native_batch_norm)") continue;
    ++again;
    EXPECT_EQ(kernel.inputs, 2u);
    ASSERT_EQ(kernel.outputs, 1u);
    EXPECT_GE(made.outputs(kernel)[0], trace.tensors.size()) << "a tensor of its own";
  }
  EXPECT_EQ(uses, made.uses.size());
  EXPECT_GT(again, 0u);
}

TEST(RemakeTrace, what_may_not_run_again_leaves_the_trace_as_it_is) {
  const ProgramTrace trace = layers(16, "aten::bernoulli_");
  const Remade remade = remake(trace, machine(700 * MiB));
  EXPECT_EQ(remade.values, 0u);
  EXPECT_EQ(remade.trace.kernels.size(), trace.kernels.size());
  EXPECT_EQ(remade.trace.again_ns, 0u);
}

}  // namespace
}  // namespace firn::simulate
