// As <cuda.h> declares it, every version of every entry by its own name.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <cstddef>

#include "tests/allocator/preload/abi_facts.h"

AbiFacts real_facts() {
  return {
#define H(entry, parameters) {#entry, sizes_of(static_cast<decltype(&::entry)>(nullptr))},
#include "allocator/preload/handled.inc"
#undef H
#define C(entry, parameters) {#entry, sizes_of(static_cast<decltype(&::entry)>(nullptr))},
#include "allocator/preload/called.inc"
#undef C
#define V(expression) {#expression, std::to_string(expression)},
#include "tests/allocator/preload/abi_structures.inc"
#undef V
      {"pointer of an operand", std::to_string(offsetof(CUmemcpy3DOperand, op.ptr.ptr))},
      {"height of a copy", std::to_string(offsetof(CUDA_MEMCPY3D_BATCH_OP, extent.height))},
      {"operand of a wait",
       std::to_string(offsetof(CUstreamBatchMemOpParams, waitValue.address))},
  };
}
