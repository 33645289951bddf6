// Distinguishes torch's own streams, which live as long as the process, from a program's; and asks
// whether a stream is captured.
#pragma once

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "allocator/engine/engine.h"

namespace firn::pytorch {

/// Is it torch's own, or the driver's? torch gives its own streams odd numbers, the default stream
/// 0; of others the number is the handle. Handles up to 2 are the driver's own.
inline bool keeps_handle(c10::StreamId id) { return id <= 2 || id % 2 != 0; }

/// The stream's handle. Tells the engine that a torch.cuda.ExternalStream may be destroyed.
inline CUstream tell_stream(Engine& engine, c10::cuda::CUDAStream stream) {
  if (!keeps_handle(stream.id())) [[unlikely]]
    engine.may_end(stream.stream());
  return stream.stream();
}

/// If the driver refuses to say (for the default stream, while others capture a blocking one), the
/// capture is a spoilt one. Clears the runtime's error, which is not the program's.
inline cudaStreamCaptureStatus capture_status(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t asked = cudaStreamIsCapturing(stream, &status);
  if (asked == cudaErrorStreamCaptureImplicit) (void)cudaGetLastError();
  return asked == cudaSuccess ? status : cudaStreamCaptureStatusInvalidated;
}

}  // namespace firn::pytorch
