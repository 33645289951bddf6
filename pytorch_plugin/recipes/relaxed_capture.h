// Calls that another thread's capture would forbid, though they do not concern it: waits and
// queries of streams that nobody captures. (CUDAStreamCaptureModeGuard throws behind an earlier
// kernel's error, which is the program's to find.)
// Owns: the thread's capture mode, until its end.
#pragma once

#include <cuda_runtime_api.h>

namespace firn::pytorch {

class RelaxedCapture {
 public:
  RelaxedCapture() {
    if (cudaThreadExchangeStreamCaptureMode(&mode_) != cudaSuccess) (void)cudaGetLastError();
  }
  ~RelaxedCapture() {
    if (cudaThreadExchangeStreamCaptureMode(&mode_) != cudaSuccess) (void)cudaGetLastError();
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace firn::pytorch
