// Software kernels as a module: what cuModuleLoad takes.
#include <cstddef>

#define KERNEL extern "C" __attribute__((visibility("default")))

extern "C" {
extern const unsigned scale_params[][2];
extern const unsigned sum_params[][2];
extern const unsigned count_calls_params[][2];
extern const unsigned nothing_params[][2];
}

/// values[i] *= factor, one element per thread of the grid.
KERNEL void scale(void** parameters, const unsigned grid[3], const unsigned block[3]) {
  auto* values = *static_cast<float**>(parameters[0]);
  const float factor = *static_cast<float*>(parameters[1]);
  const size_t count = size_t{grid[0]} * block[0];
  for (size_t i = 0; i < count; ++i) values[i] *= factor;
}
KERNEL const unsigned scale_params[][2] = {{0, 8}, {8, 4}, {0, 0}};

struct Pair {
  const float* from;
  size_t count;
};

/// *to = the sum over two stretches, whose pointers travel inside a structure.
KERNEL void sum(void** parameters, const unsigned[3], const unsigned[3]) {
  const auto& pairs = *static_cast<Pair(*)[2]>(parameters[1]);
  float total = 0;
  for (const Pair& pair : pairs)
    for (size_t i = 0; i < pair.count; ++i) total += pair.from[i];
  **static_cast<float**>(parameters[0]) = total;
}
KERNEL const unsigned sum_params[][2] = {{0, 8}, {8, 32}, {0, 0}};

KERNEL void nothing(void**, const unsigned[3], const unsigned[3]) {}
KERNEL const unsigned nothing_params[][2] = {{0, 0}};

/// Nothing says what its parameters are.
KERNEL void untold(void**, const unsigned[3], const unsigned[3]) {}

static int calls = 0;
KERNEL void count_calls(void** parameters, const unsigned[3], const unsigned[3]) {
  **static_cast<int**>(parameters[0]) = ++calls;
}
KERNEL const unsigned count_calls_params[][2] = {{0, 8}, {0, 0}};

extern "C" {
extern __attribute__((visibility("default"))) int variable[4];
int variable[4] = {1, 2, 3, 4};
}
