// The part of the CUDA driver's documented ABI that the handlers' parameters need, beyond
// firn/cuda_abi.h. Owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "allocator/preload/abi_types.h"
#include "firn/cuda_abi.h"

extern "C" {

typedef struct CUuuid_st {
  char bytes[16];
} CUuuid;

}  // extern "C"
