// As the handlers declare it.
#include <cstddef>

#include "firn/cuda_types.h"
#include "tests/allocator/preload/abi_facts.h"

AbiFacts own_facts() {
  return {
#define H(entry, parameters) {#entry, sizes_of(static_cast<CUresult(*) parameters>(nullptr))},
#include "allocator/preload/handled.inc"
#undef H
#define C(entry, parameters) {#entry, sizes_of(static_cast<CUresult(*) parameters>(nullptr))},
#include "allocator/preload/called.inc"
#undef C
#define V(expression) {#expression, std::to_string(expression)},
#include "tests/allocator/preload/abi_structures.inc"
#undef V
      {"pointer of an operand", std::to_string(offsetof(CUmemcpy3DOperand, ptr))},
      {"height of a copy", std::to_string(offsetof(CUDA_MEMCPY3D_BATCH_OP, height))},
      {"operand of a wait", std::to_string(offsetof(CUstreamBatchMemOpParams, address))},
  };
}
