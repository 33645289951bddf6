// A timeline for people to view: work on the GPU, transfers, stalls, memory.
// Owns: its records. Locks: none (one thread).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "allocator/simulate/program_trace.h"

namespace firn::simulate {

enum class Track : uint8_t {
  kernel, stall, copy_out, copy_in, store_write, store_read, host, host_wait
};
inline constexpr const char* track_names[] = {"kernels",      "stalls",       "copies out",
                                              "copies in",    "store writes", "store reads",
                                              "host work",    "host waits"};

struct Span {
  Track track;
  uint32_t kernel = no_kernel;  // the row that ran, or that was waited for
  uint64_t begin_ns = 0, end_ns = 0, bytes = 0;
};

struct MemorySample {
  uint64_t at_ns = 0, resident_bytes = 0, host_bytes = 0, nvme_bytes = 0;
};

struct Timeline {
  std::vector<Span> spans;             // by end
  std::vector<MemorySample> samples;   // by time
  std::vector<uint64_t> iteration_ends_ns;
  uint64_t begin_ns = 0;               // of the first iteration
  uint64_t budget_bytes = 0;
};

/// The Chrome trace format (chrome://tracing, Perfetto), as text.
std::string chrome_trace(const Timeline& timeline, const ProgramTrace& trace);

/// The data that the Python module draws, as JSON.
std::string plot_data(const Timeline& timeline);

}  // namespace firn::simulate
