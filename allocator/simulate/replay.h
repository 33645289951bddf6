// A trace replayed: iteration after iteration, kernel after kernel, through the engine's public
// calls as a PyTorch job would make them. It never looks ahead in the trace.
// Owns: its tensors on the machine. Locks: none (one thread).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "allocator/simulate/machine.h"
#include "allocator/simulate/program_trace.h"
#include "allocator/simulate/timeline.h"

namespace firn::simulate {

struct ReplayOptions {
  unsigned iterations = 6;
  unsigned run_ahead = 0;       // kernels enqueued beyond the one that runs
  Timeline* timeline = nullptr; // filled when not null
  std::function<void(unsigned iteration, size_t kernel)> progress;  // called now and then
};

struct ReplayResult {
  double ideal_s = 0, steady_s = 0;  // ideal: of the program alone, if nothing runs again
  std::vector<double> iteration_s;
  // A steady iteration: means over the last half.
  double bytes_spilled = 0, bytes_faulted = 0, bytes_prefetched = 0, bytes_forwarded = 0,
         bytes_clean_dropped = 0, bytes_written = 0, bytes_read = 0, evictions = 0, faults = 0,
         maps = 0, unmaps = 0, frames_created = 0;
  std::vector<double> bytes_written_by_ssd;
  // Used in host memory, by kernels whose tensors do not fit together. Each byte is taken to cross
  // the link once: the times are lower bounds.
  double bytes_in_host = 0;
  double stall_s = 0;   // no kernel ran, though the program had one to run
  double plan_s = 0;    // CPU time of deciding
  // Of rows at the host: how many there are, the time that they ran, that one waited for bytes
  // alone, and that the next kernel waited for one while none ran; bytes used there.
  uint32_t host_rows = 0;
  double host_s = 0, host_waited_s = 0, stall_for_host_s = 0, bytes_used_at_host = 0;
  uint64_t peak_device_bytes = 0, peak_allocated_bytes = 0, peak_host_bytes = 0;
  // As the engine measured them, at the end; 0: too little moved.
  double measured_host_out_bytes_s = 0, measured_host_in_bytes_s = 0,
         measured_store_write_bytes_s = 0, measured_store_read_bytes_s = 0;
  double spare_fraction = 0;  // as it was in the end
  std::optional<unsigned> period_found_at_iteration;
  std::vector<std::string> trouble;
  double fraction_of_ideal() const { return ideal_s / steady_s; }
};

/// Runs the trace on a fresh machine. out_of_memory when the engine finds no room for a kernel.
Result<ReplayResult> replay(Machine& machine, const ProgramTrace& trace,
                            const ReplayOptions& options);

}  // namespace firn::simulate
