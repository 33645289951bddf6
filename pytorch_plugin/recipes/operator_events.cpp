#include "pytorch_plugin/recipes/operator_events.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "pytorch_plugin/recipes/relaxed_capture.h"

namespace firn::pytorch {

cudaEvent_t OperatorEvents::record() const {
  const c10::cuda::CUDAGuard device(static_cast<c10::DeviceIndex>(device_));
  cudaEvent_t event = nullptr;
  if (cudaEventCreate(&event) == cudaSuccess) {
    if (cudaEventRecord(event, c10::cuda::getCurrentCUDAStream().stream()) == cudaSuccess)
      return event;
    (void)cudaEventDestroy(event);
  }
  (void)cudaGetLastError();  // (it is ours)
  return nullptr;
}

void OperatorEvents::clear() {
  for (const Around& each : events_) {
    if (each.begin) (void)cudaEventDestroy(each.begin);
    if (each.end) (void)cudaEventDestroy(each.end);
  }
  events_.clear();
}

bool OperatorEvents::over() const {
  if (events_.empty() || !events_.back().end) return true;
  const RelaxedCapture relaxed;
  if (cudaEventQuery(events_.back().end) != cudaErrorNotReady) return true;
  (void)cudaGetLastError();
  return false;
}

uint64_t OperatorEvents::gap_ns(size_t at) const {
  if (at + 1 >= size()) return 0;
  const uint64_t ns = between(events_[at].end, events_[at + 1].begin);
  return ns - std::min(ns, events_[at + 1].waited_ns);
}

uint64_t OperatorEvents::between(cudaEvent_t from, cudaEvent_t to) {
  float ms = 0;
  if (!from || !to) return 0;
  if (cudaEventElapsedTime(&ms, from, to) == cudaSuccess)
    return static_cast<uint64_t>(std::max(ms, 0.f) * 1e6f);  // (of two streams it may be less than 0)
  (void)cudaGetLastError();
  return 0;
}

}  // namespace firn::pytorch
