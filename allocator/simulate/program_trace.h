// One iteration of a program: its tensors and its kernels in order, as read from PREFIX.tensors.csv
// and PREFIX.kernels.csv.
// Owns: everything it names. Locks: none.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "firn/result.h"

namespace firn::simulate {

inline constexpr uint32_t no_kernel = UINT32_MAX;

struct TraceTensor {
  uint64_t id = 0;
  uint64_t bytes = 0;
  bool persistent = false;
  uint32_t first = no_kernel, last = no_kernel;  // kernels (indices) that name it
};

struct TraceKernel {
  uint64_t duration_ns = 0;
  uint64_t name_at = 0, uses_at = 0;
  uint32_t name_bytes = 0, inputs = 0, outputs = 0;
  uint32_t line = 0;  // of the kernels' file
  bool host = false;  // it runs at the host, beside the device (host_work.h)
};

class ProgramTrace {
 public:
  std::vector<TraceTensor> tensors;
  std::vector<TraceKernel> kernels;
  uint64_t duration_ns = 0;  // of all kernels on the device
  uint64_t host_ns = 0;      // of those at the host, `host_rows`
  uint32_t host_rows = 0;
  uint64_t again_ns = 0;     // of that, kernels that run again (remake.h)

  std::string_view name(const TraceKernel& kernel) const {
    return std::string_view(names).substr(kernel.name_at, kernel.name_bytes);
  }
  /// Indices of tensors; no tensor twice in either list.
  std::span<const uint32_t> inputs(const TraceKernel& kernel) const {
    return std::span(uses).subspan(kernel.uses_at, kernel.inputs);
  }
  std::span<const uint32_t> outputs(const TraceKernel& kernel) const {
    return std::span(uses).subspan(kernel.uses_at + kernel.inputs, kernel.outputs);
  }

  /// Checks that each persistent or used tensor, in whole frames, fits a GPU of `gpu_bytes`. A
  /// kernel's tensors need not fit together: some are used in host memory then.
  Result<void> check_fits(uint64_t gpu_bytes) const;

  std::string names;            // one after the other
  std::vector<uint32_t> uses;   // per kernel: inputs, then outputs
  std::string tensors_path, kernels_path;
};

/// The most kernels in all iterations: at 2 to 200 us each, more would run for too long.
inline constexpr uint64_t kernels_run_most = 1u << 24;

/// Reads and checks both files, for so many iterations. Errors begin with "FILE:LINE: ".
Result<ProgramTrace> read_program_trace(const std::string& prefix, unsigned iterations = 1);

}  // namespace firn::simulate
