// Telling torch's own streams, which live as long as the process, from a program's.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include "allocator/engine.h"

namespace firn::pytorch {

/// The stream's handle. torch.cuda.ExternalStream: the engine is told that it may be destroyed.
/// (torch gives its own streams odd numbers, the default stream 0; of others the number is the
/// handle. Handles up to 2 are the driver's own.)
inline CUstream tell_stream(Engine& engine, c10::cuda::CUDAStream stream) {
  const c10::StreamId id = stream.id();
  if (id > 2 && id % 2 == 0) [[unlikely]]
    engine.may_end(stream.stream());
  return stream.stream();
}

}  // namespace firn::pytorch
