// What the kernels do to each element, for the GPU and for the software GPU alike: integers, so
// that every bit is the same. And the structures that travel between host and device.
#pragma once

#ifdef __CUDACC__
#define EVERYWHERE __host__ __device__ inline
#else
#define EVERYWHERE inline
#endif

typedef unsigned int Word;

EVERYWHERE Word scramble(Word x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}
EVERYWHERE Word mixed(Word to, Word a, Word b, Word salt) {
  return scramble(to + 3 * a + 5 * b + salt);
}

enum { inputs_most = 4, matrix_side = 48 };

/// Passed by value: addresses among other things.
struct Sources {
  Word weight;
  const Word* in[inputs_most];
  Word* out;
  Word salt;
};

/// On the device: addresses within a structure, one of which leads to another such structure.
struct Layer {
  Word* out;
  const Word* in;
  const Layer* below;
  unsigned long long count;
};

/// At the begin of a large block: a list that only the device knows.
struct Link {
  Link* next;
  Word value;
};
