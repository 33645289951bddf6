#include "allocator/runtime/trace_ends.h"

#include <unistd.h>

#include <ctime>

#include <fmt/format.h>

#include "allocator/runtime/command_line.h"
namespace firn {

void trace_begin(TraceWriter& trace, uint64_t now_ns, const Config& config) {
  trace.row(now_ns, "begin", 0, 0, 0, 0,
            fmt::format("pid={};at={};policy={};host={};store={};command={}", ::getpid(),
                        std::time(nullptr), config.policy, config.host_bytes,
                        config.dirs.empty() ? 0 : 1, command_line(::getpid())));
}

void trace_end(TraceWriter& trace, uint64_t now_ns, const std::vector<EngineStats>& devices) {
  if (devices.empty()) trace.row(now_ns, "end", 0, 0, 0, 0);  // nothing was allocated
  for (const EngineStats& s : devices)
    trace.row(now_ns, "end", s.device, 0, 0, 0,
              fmt::format("budget={};peak_device={};peak_allocated={};out={};in={};dropped={};"
                          "stall_ns={};stalls={};faults={};evictions={};lost={};host_out_s={:.0f};"
                          "host_in_s={:.0f};store_write_s={:.0f};store_read_s={:.0f}",
                          s.budget_bytes, s.peak_device_bytes, s.peak_allocated_bytes,
                          s.spilled_bytes, s.faulted_bytes + s.prefetched_bytes,
                          s.clean_dropped_bytes, s.stall_ns, s.stalls, s.faults, s.evictions,
                          s.lost_blocks, s.measured_host_out_bytes_s, s.measured_host_in_bytes_s,
                          s.measured_store_write_bytes_s, s.measured_store_read_bytes_s));
  trace.flush();
}

}  // namespace firn
