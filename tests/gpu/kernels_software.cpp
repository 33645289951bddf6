// The kernels for the software GPU: NAME and NAME_params of a shared object. Each runs as one host
// function over all elements.
#include <sched.h>

#include <chrono>

#include "tests/gpu/kernels.h"

#define KERNEL extern "C" __attribute__((visibility("default")))
#define LAYOUT(name, ...)                                                                        \
  extern "C" __attribute__((visibility("default"))) const unsigned name##_params[][2];           \
  const unsigned name##_params[][2] = {__VA_ARGS__, {0, 0}};
#define ARGUMENTS void **parameters, const unsigned*, const unsigned*

namespace {
using Count = unsigned long long;
template <class T>
const T& take(void** parameters, int index) {
  return *static_cast<const T*>(parameters[index]);
}
}  // namespace

extern "C" {
extern __attribute__((visibility("default"))) const Word* firn_global;
const Word* firn_global = nullptr;
}

LAYOUT(fill, {0, 8}, {8, 8}, {16, 4})
KERNEL void fill(ARGUMENTS) {
  Word* to = take<Word*>(parameters, 0);
  for (Count i = 0; i < take<Count>(parameters, 1); ++i)
    to[i] = scramble(take<Word>(parameters, 2) + static_cast<Word>(i));
}

LAYOUT(mix, {0, 8}, {8, 8}, {16, 8}, {24, 8}, {32, 4})
KERNEL void mix(ARGUMENTS) {
  Word* to = take<Word*>(parameters, 0);
  const Word *a = take<const Word*>(parameters, 1), *b = take<const Word*>(parameters, 2);
  const Count count = take<Count>(parameters, 3);
  const Word salt = take<Word>(parameters, 4);
  for (Count i = 0; i < count; ++i) to[i] = mixed(to[i], a[i], b[i], salt);
}

LAYOUT(products, {0, 8}, {8, 8}, {16, 8}, {24, 4}, {32, 8})
KERNEL void products(ARGUMENTS) {
  Word* const* to = take<Word* const*>(parameters, 0);
  const Word* const* a = take<const Word* const*>(parameters, 1);
  const Word* const* b = take<const Word* const*>(parameters, 2);
  const Count count = take<Count>(parameters, 4);
  for (unsigned entry = 0; entry < take<unsigned>(parameters, 3); ++entry)
    for (Count i = 0; i < count; ++i) {
      Word sum = to[entry][i];
      if (i < matrix_side * matrix_side)
        for (unsigned k = 0; k < matrix_side; ++k)
          sum += a[entry][i / matrix_side * matrix_side + k] *
                 b[entry][k * matrix_side + i % matrix_side];
      to[entry][i] = mixed(sum, a[entry][i], b[entry][i], entry);
    }
}

LAYOUT(gather, {0, sizeof(Sources)}, {sizeof(Sources), 8})
KERNEL void gather(ARGUMENTS) {
  const Sources& sources = take<Sources>(parameters, 0);
  for (Count i = 0; i < take<Count>(parameters, 1); ++i) {
    Word sum = sources.out[i];
    for (int k = 0; k < inputs_most; ++k)
      sum += sources.weight * static_cast<Word>(k + 1) * sources.in[k][i];
    sources.out[i] = scramble(sum + sources.salt);
  }
}

LAYOUT(layers, {0, 8}, {8, 4})
KERNEL void layers(ARGUMENTS) {
  const Word salt = take<Word>(parameters, 1);
  for (const Layer* layer = take<const Layer*>(parameters, 0); layer; layer = layer->below)
    for (Count i = 0; i < layer->count; ++i)
      layer->out[i] = mixed(layer->out[i], layer->in[i], salt, static_cast<Word>(i));
}

LAYOUT(put_link, {0, 8}, {8, 8}, {16, 4})
KERNEL void put_link(ARGUMENTS) {
  Link* node = take<Link*>(parameters, 0);
  node->next = take<Link*>(parameters, 1);
  node->value = take<Word>(parameters, 2);
}

LAYOUT(walk, {0, 8}, {8, 8}, {16, 4})
KERNEL void walk(ARGUMENTS) {
  Word sum = take<Word>(parameters, 2);
  for (Link* at = take<Link*>(parameters, 0); at; at = at->next) {
    sum = scramble(sum + at->value);
    at->value += sum;
  }
  Word* out = take<Word*>(parameters, 1);
  out[0] = scramble(out[0] + sum);
}

// (On a GPU, tensor maps are for the copies of sm_90 alone: this kernel is the software GPU's.)
LAYOUT(through_map, {0, 128}, {128, 4})
KERNEL void through_map(ARGUMENTS) {
  const auto* map = static_cast<const unsigned long long*>(parameters[0]);
  Word* to = reinterpret_cast<Word*>(map[2] ? ~map[0] : map[0]);
  for (Count i = 0; i < map[1]; ++i) to[i] = scramble(to[i] + take<Word>(parameters, 1));
}

LAYOUT(ten, {0, 8}, {8, 8}, {16, 8}, {24, 8}, {32, 8}, {40, 8}, {48, 8}, {56, 8}, {64, 8}, {72, 8})
KERNEL void ten(ARGUMENTS) { (void)parameters; }

LAYOUT(from_global, {0, 8}, {8, 8}, {16, 4})
KERNEL void from_global(ARGUMENTS) {
  Word* to = take<Word*>(parameters, 0);
  for (Count i = 0; i < take<Count>(parameters, 1); ++i)
    to[i] = mixed(to[i], firn_global[i], take<Word>(parameters, 2), 1);
}

LAYOUT(verify, {0, 8}, {8, 8}, {16, 4}, {24, 8})
KERNEL void verify(ARGUMENTS) {
  const Word* from = take<const Word*>(parameters, 0);
  Word found = 0;
  for (Count i = 0; i < take<Count>(parameters, 1); ++i)
    found += from[i] != scramble(take<Word>(parameters, 2) + static_cast<Word>(i));
  if (found) __atomic_fetch_add(take<Word*>(parameters, 3), found, __ATOMIC_RELAXED);
}

LAYOUT(wait_for, {0, 8})
KERNEL void wait_for(ARGUMENTS) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::milliseconds(1500);
  while (__atomic_load_n(take<const Word*>(parameters, 0), __ATOMIC_ACQUIRE) == 0 &&
         Clock::now() < end)
    (void)::sched_yield();
}

#ifdef FIRN_KERNELS_SAY
// What an image for a GPU says of some of them, in its own form: see allocator/preload/images.h. Of
// `mix` by the newer attribute; of the others nothing.
#define SECTION(kernel, content) \
  __asm__(".pushsection .nv.info." kernel ", \"\", @progbits\n" content ".popsection\n")
SECTION("fill", ".byte 3, 0x19, 20, 0\n"
  ".byte 4, 0x17, 12, 0\n .long 0\n .short 2, 16\n .long 0x0011f000\n"
  ".byte 4, 0x17, 12, 0\n .long 0\n .short 1, 8\n .long 0x0021f000\n"
  ".byte 4, 0x17, 12, 0\n .long 0\n .short 0, 0\n .long 0x0021f000\n");
SECTION("mix", ".byte 3, 0x19, 36, 0\n"
  ".byte 4, 0x45, 12, 0\n .long 0\n .short 4, 32\n .long 4\n"
  ".byte 4, 0x45, 12, 0\n .long 0\n .short 3, 24\n .long 8\n"
  ".byte 4, 0x45, 12, 0\n .long 0\n .short 2, 16\n .long 8\n"
  ".byte 4, 0x45, 12, 0\n .long 0\n .short 1, 8\n .long 8\n"
  ".byte 4, 0x45, 12, 0\n .long 0\n .short 0, 0\n .long 8\n");
#endif
