// The exports of libcuda.so.1 beside the driver API: firn/software_gpu.h.
#include <cstring>

#include "graph.h"
#include "gpu.h"

namespace firn::software {

// In a forked child the lock may be held by a thread that is not there: nothing takes it.

FIRN_GPU_API int firnGpuConfigure(const FirnGpuConfig* config) {
  Gpu& g = gpu();
  if (g.forked) return -1;
  Lock lock(g.mutex);
  if (g.initialised || !config || config->struct_bytes != sizeof *config) return -1;
  if (config->devices < 0 || config->devices > devices_max) return -1;
  if (config->no_bytes && config->virtual_clock != 1) return -1;
  if (config->tags && !config->no_bytes) return -1;
  g.config = *config;
  g.configured = true;
  return 0;
}

FIRN_GPU_API void firnGpuReset(void) {
  Gpu& g = gpu();
  if (g.forked) return;
  Lock lock(g.mutex);
  if (g.entries != 0) die("firnGpuReset", "another thread is inside the driver");
  g.scheduler.reset(lock);
  g.captures.clear();
  g.space.reset();
  g.graph_execs.clear();
  g.graph_nodes.clear();
  g.graphs.clear();
  g.functions.clear();
  g.modules.clear();
  g.events.clear();
  g.streams.clear();
  g.contexts.clear();
  g.frames.clear();
  g.pools.clear();
  g.devices.clear();
  g.faults.clear();
  g.host_tags.clear();
  g.config = FirnGpuConfig{};
  g.configured = false;
  g.observer = nullptr;
  g.initialised = false;
  g.scheduler.virtual_clock = false;
  thread().contexts.clear();
  ++g.contexts_gone;
  thread().own_streams.clear();
}

FIRN_GPU_API uint64_t firnGpuNow(void) {
  if (gpu().forked) return 0;
  Lock lock(gpu().mutex);
  return gpu().scheduler.now_ns();
}

FIRN_GPU_API void firnGpuAdvanceTo(uint64_t ns) {
  if (gpu().forked) return;
  Lock lock(gpu().mutex);
  if (!gpu().scheduler.virtual_clock) die("firnGpuAdvanceTo", "the clock is the wall's");
  gpu().scheduler.advance_to(lock, ns);
}

FIRN_GPU_API uint64_t firnGpuNextEvent(void) {
  if (gpu().forked) return UINT64_MAX;
  Lock lock(gpu().mutex);
  return gpu().scheduler.next_event_ns();
}

FIRN_GPU_API void firnGpuFailAt(const char* entry, uint64_t nth, int error) {
  if (gpu().forked) return;
  Lock lock(gpu().mutex);
  gpu().faults.fail_at(entry, nth, static_cast<CUresult>(error));
}

FIRN_GPU_API void firnGpuFailFrom(const char* entry, uint64_t nth, int error) {
  if (gpu().forked) return;
  Lock lock(gpu().mutex);
  gpu().faults.fail_from(entry, nth, static_cast<CUresult>(error));
}

FIRN_GPU_API void firnGpuFailRate(const char* entry, double rate, uint64_t seed, int error) {
  if (gpu().forked) return;
  Lock lock(gpu().mutex);
  gpu().faults.fail_rate(entry, rate, seed, static_cast<CUresult>(error));
}

FIRN_GPU_API uint64_t firnGpuFallibleCalls(void) {
  if (gpu().forked) return 0;
  Lock lock(gpu().mutex);
  return gpu().faults.calls();
}

FIRN_GPU_API int firnGpuCounts(int device, FirnGpuCounts* counts) {
  Gpu& g = gpu();
  if (g.forked) return -1;
  Lock lock(g.mutex);
  if (!g.has_device(device) || !counts) return -1;
  const Device& d = g.device(device);
  *counts = FirnGpuCounts{};
  counts->frame_bytes = d.memory.frame_bytes.now;
  counts->frame_bytes_peak = d.memory.frame_bytes.peak;
  counts->malloc_bytes = d.memory.linear_bytes.now;
  counts->malloc_bytes_peak = d.memory.linear_bytes.peak;
  counts->used_bytes_peak = d.memory.used_bytes.peak;
  counts->frames = d.memory.frames;
  counts->mapped_bytes = d.memory.mapped_bytes;
  for (const auto& [handle, stream] : g.streams.live()) counts->streams += stream->device == device;
  for (const auto& [handle, event] : g.events.live()) counts->events += event->device == device;
  counts->host_registered_bytes = g.space.host_registered_bytes();
  counts->kernels = d.kernels;
  counts->copies = d.copies;
  counts->copied_bytes = d.copied_bytes;
  counts->copied_to_device_bytes = d.copied_to_device_bytes;
  counts->copied_to_host_bytes = d.copied_to_host_bytes;
  return 0;
}

FIRN_GPU_API uint64_t firnGpuReservedBytes(void) {
  if (gpu().forked) return 0;
  Lock lock(gpu().mutex);
  return gpu().space.reserved_bytes();
}

FIRN_GPU_API void firnGpuResetPeaks(int device) {
  Gpu& g = gpu();
  if (g.forked) return;
  Lock lock(g.mutex);
  if (!g.has_device(device)) return;
  DeviceMemory& memory = g.device(device).memory;
  for (Peak* peak : {&memory.frame_bytes, &memory.linear_bytes, &memory.used_bytes})
    peak->peak = peak->now;
}

FIRN_GPU_API int firnGpuBusy(void* stream, uint64_t ns) {
  return enter("firnGpuBusy", Need::initialised, [&](Gate& gate) -> CUresult {
    std::shared_ptr<Stream> on;
    if (CUresult result = find_stream(gate, static_cast<CUstream>(stream), &on)) return result;
    return submit(gate, on, Body{.entry = "firnGpuBusy", .type = node_kernel, .latency_ns = ns});
  }, false);
}

FIRN_GPU_API void firnGpuObserve(FirnGpuObserver observer, void* context) {
  if (gpu().forked) return;
  Lock lock(gpu().mutex);
  gpu().observer = observer;
  gpu().observer_context = context;
}

}  // namespace firn::software
