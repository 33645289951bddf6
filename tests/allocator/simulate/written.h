// Programs that a test writes down, and a machine on which times can be computed by hand.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "allocator/simulate/replay.h"

namespace firn::simulate {

inline constexpr uint64_t MiB = 1u << 20, GiB = 1u << 30;

inline MachineOptions machine_of(uint64_t gpu_bytes, uint64_t host_bytes = 1 * GiB) {
  MachineOptions options;
  options.gpu_library = std::getenv("FIRN_TEST_GPU");
  options.gpu_bytes = gpu_bytes;
  options.link_bytes_s = double(16 * GiB);
  options.ssd_read_bytes_s = options.ssd_write_bytes_s = double(4 * GiB);
  options.ssd_latency_ns = 0;
  options.host_bytes = host_bytes;
  options.driver_costs = false;
  return options;
}

inline ReplayResult run_on(const MachineOptions& options, const ProgramTrace& trace,
                     ReplayOptions replay_options = {}) {
  Result<std::unique_ptr<Machine>> machine = Machine::open(options);
  if (!machine) {
    ADD_FAILURE() << machine.error().text;
    return {};
  }
  Result<ReplayResult> result = replay(**machine, trace, replay_options);
  if (!result) {
    ADD_FAILURE() << result.error().text;
    return {};
  }
  return *result;
}

/// A program that a test writes down kernel by kernel.
class Written {
 public:
  uint32_t tensor(uint64_t bytes) {
    trace_.tensors.push_back({.id = trace_.tensors.size(), .bytes = bytes, .persistent = false});
    return static_cast<uint32_t>(trace_.tensors.size() - 1);
  }
  uint32_t persistent(uint64_t bytes) {
    const uint32_t made = tensor(bytes);
    trace_.tensors[made].persistent = true;
    return made;
  }
  /// A row at the host.
  void host(uint64_t ns, const std::vector<uint32_t>& inputs,
            const std::vector<uint32_t>& outputs) {
    kernel(ns, inputs, outputs);
    trace_.kernels.back().host = true;
    trace_.duration_ns -= ns;
    trace_.host_ns += ns;
    ++trace_.host_rows;
  }
  void kernel(uint64_t ns, const std::vector<uint32_t>& inputs,
              const std::vector<uint32_t>& outputs) {
    const auto index = static_cast<uint32_t>(trace_.kernels.size());
    trace_.kernels.push_back({.duration_ns = ns, .name_at = 0, .uses_at = trace_.uses.size(),
                              .name_bytes = 0, .inputs = static_cast<uint32_t>(inputs.size()),
                              .outputs = static_cast<uint32_t>(outputs.size())});
    for (const auto* uses : {&inputs, &outputs})
      for (uint32_t used : *uses) {
        TraceTensor& of = trace_.tensors[used];
        if (of.first == no_kernel) of.first = index;
        of.last = index;
        trace_.uses.push_back(used);
      }
    trace_.duration_ns += ns;
  }
  const ProgramTrace& trace() const { return trace_; }

 private:
  ProgramTrace trace_;
};

}  // namespace firn::simulate
