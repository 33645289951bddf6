// The facts of the ABI as the real <cuda.h> declares it; and the driver table's signatures, which
// must be those of the real entries (checked by compiling).
#include <cstddef>
#include <type_traits>

#include "cuda_abi_facts.h"
#include "firn/driver.h"

#ifndef FIRN_CUDA_HEADERS
#error "compile with FIRN_CUDA_HEADERS"
#endif

#define FIRN_SAME(member, symbol, parameters)                                   \
  static_assert(std::is_same_v<decltype(firn::Driver::member), decltype(&symbol)>, \
                "the driver table's " #member " differs from <cuda.h>'s");
FIRN_DRIVER_ENTRIES(FIRN_SAME)

std::vector<AbiFact> real_facts() {
  return {
#define V(expression) {#expression, static_cast<long long>(expression)},
#define P(own, real) {#real, static_cast<long long>(real)},
#include "cuda_abi_facts.inc"
  };
}
