// The kernels for a GPU: nvcc -cubin or -ptx makes the module that the programs load.
#include "kernels.h"

#define EACH(count)                                                                      \
  for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; \
       i < (count); i += (unsigned long long)gridDim.x * blockDim.x)

extern "C" {
__device__ const Word* firn_global;

__global__ void fill(Word* to, unsigned long long count, Word seed) {
  EACH(count) to[i] = scramble(seed + (Word)i);
}
__global__ void mix(Word* to, const Word* a, const Word* b, unsigned long long count, Word salt) {
  EACH(count) to[i] = mixed(to[i], a[i], b[i], salt);
}
// A product of small matrices for each entry of the tables, then all of the block is stirred.
__global__ void products(Word* const* to, const Word* const* a, const Word* const* b,
                         unsigned entries, unsigned long long count) {
  for (unsigned entry = 0; entry < entries; ++entry) {
    Word* c = to[entry];
    EACH(count) {
      Word sum = c[i];
      if (i < matrix_side * matrix_side)
        for (unsigned k = 0; k < matrix_side; ++k)
          sum += a[entry][i / matrix_side * matrix_side + k] *
                 b[entry][k * matrix_side + i % matrix_side];
      c[i] = mixed(sum, a[entry][i], b[entry][i], entry);
    }
  }
}
__global__ void gather(Sources sources, unsigned long long count) {
  EACH(count) {
    Word sum = sources.out[i];
    for (int k = 0; k < inputs_most; ++k) sum += sources.weight * (k + 1) * sources.in[k][i];
    sources.out[i] = scramble(sum + sources.salt);
  }
}
__global__ void layers(const Layer* layer, Word salt) {
  for (; layer; layer = layer->below)
    EACH(layer->count) layer->out[i] = mixed(layer->out[i], layer->in[i], salt, (Word)i);
}
__global__ void put_link(Link* node, Link* next, Word value) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    node->next = next;
    node->value = value;
  }
}
__global__ void walk(Link* head, Word* out, Word salt) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    Word sum = salt;
    for (Link* at = head; at; at = at->next) {
      sum = scramble(sum + at->value);
      at->value += sum;
    }
    out[0] = scramble(out[0] + sum);
  }
}
__global__ void ten(Word*, Word*, Word*, Word*, Word*, Word*, Word*, Word*, Word*, Word*) {}
__global__ void from_global(Word* to, unsigned long long count, Word salt) {
  EACH(count) to[i] = mixed(to[i], firn_global[i], salt, 1);
}
// How many words are not those that fill() wrote, added to *wrong.
__global__ void verify(const Word* from, unsigned long long count, Word seed, Word* wrong) {
  Word found = 0;
  EACH(count) found += from[i] != scramble(seed + (Word)i);
  if (found) atomicAdd(wrong, found);
}
// Until *flag, which the host writes, is not 0; but not for ever.
__global__ void wait_for(const volatile Word* flag) {
  if (blockIdx.x || threadIdx.x) return;
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (*flag == 0 && now - begin < 1500000000ull);
}
}
