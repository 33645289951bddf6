// The sums of the store beside the hash's library alone, by Google Benchmark: over pieces of so
// many bytes, one after the other through more memory than caches hold ("memory"), and over a copy
// that was just made, as staging is after a copy from the device ("copy": with the copy's time).
#include <benchmark/benchmark.h>
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backing/store/sum.h"
#include "firn/store.h"

namespace {

using namespace firn;

constexpr size_t all_bytes = 256u << 20;

/// Staging as the store has it, filled.
std::byte* memory() {
  static const StagingMemory region = [] {
    Result<StagingMemory> made = StagingMemory::create(2 * all_bytes);
    if (!made) {
      std::fprintf(stderr, "sum_bench: %s\n", describe(made.error()).c_str());
      std::exit(1);
    }
    uint64_t word = 1;
    for (size_t i = 0; i + 8 <= 2 * all_bytes; i += 8) {
      word = word * 6364136223846793005u + 1442695040888963407u;
      std::memcpy(made->bytes().data() + i, &word, 8);
    }
    return std::move(*made);
  }();
  return region.bytes().data();
}

// As a request's transfers end, a megabyte each.
void sum_as_store(const std::byte* data, size_t bytes) {
  constexpr size_t request = 1u << 20;
  Summer summer;
  for (size_t end = 0; end < bytes;) {
    end = std::min(end + request, bytes);
    summer.sum_to(data, end);
  }
  benchmark::DoNotOptimize(summer.digest());
}
void sum_as_library(const std::byte* data, size_t bytes) {
  benchmark::DoNotOptimize(XXH3_128bits(data, bytes));
}

template <class Sum>
void in_place(benchmark::State& state, Sum&& sum) {
  const auto bytes = static_cast<size_t>(state.range(0));
  std::byte* data = memory();
  size_t at = 0;
  for (auto _ : state) {
    sum(data + at, bytes);
    at = at + 2 * bytes <= all_bytes ? at + bytes : 0;
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * state.range(0));
}
template <class Sum>
void on_copy(benchmark::State& state, Sum&& sum) {
  const auto bytes = static_cast<size_t>(state.range(0));
  std::byte *data = memory(), *copy = data + all_bytes;
  size_t at = 0;
  for (auto _ : state) {
    std::memcpy(copy + at, data + at, bytes);
    sum(copy + at, bytes);
    at = at + 2 * bytes <= all_bytes ? at + bytes : 0;
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * state.range(0));
}
void memory_store(benchmark::State& state) { in_place(state, sum_as_store); }
void memory_library(benchmark::State& state) { in_place(state, sum_as_library); }
void copy_store(benchmark::State& state) { on_copy(state, sum_as_store); }
void copy_library(benchmark::State& state) { on_copy(state, sum_as_library); }
#define AGAINST_SIZE(function) \
  BENCHMARK(function)->RangeMultiplier(8)->Range(1 << 20, 64 << 20)->ArgName("bytes")->UseRealTime()
AGAINST_SIZE(memory_store);
AGAINST_SIZE(memory_library);
AGAINST_SIZE(copy_store);
AGAINST_SIZE(copy_library);

}  // namespace

BENCHMARK_MAIN();
