// The facts of the ABI as Firn declares it.
#include <cstddef>

#include "backing/gpu/software/abi.h"
#include "cuda_abi_facts.h"

std::vector<AbiFact> own_facts() {
  return {
#define V(expression) {#expression, static_cast<long long>(expression)},
#define P(own, real) {#own, static_cast<long long>(own)},
#include "cuda_abi_facts.inc"
  };
}
