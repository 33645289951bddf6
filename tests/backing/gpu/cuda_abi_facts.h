// What cuda_abi_facts.inc evaluates to, by expression.
#pragma once

#include <string>
#include <vector>

struct AbiFact {
  std::string words;
  long long value;
};
std::vector<AbiFact> own_facts();
std::vector<AbiFact> real_facts();  // with <cuda.h>
