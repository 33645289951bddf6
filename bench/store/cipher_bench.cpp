// The cost of encryption beside the sum that is taken anyhow: GB/s on one core.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "backing/store/cipher.h"

namespace {

firn::Cipher& cipher() {
  static auto made = firn::Cipher::create();
  if (!made) std::abort();
  return **made;
}

void encrypt(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  std::vector<std::byte> plain(bytes, std::byte{7}), to(bytes);
  for (auto _ : state) benchmark::DoNotOptimize(cipher().encrypt(plain, to.data()));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void decrypt(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  std::vector<std::byte> plain(bytes, std::byte{7}), to(bytes), back(bytes);
  auto seal = cipher().encrypt(plain, to.data());
  if (!seal) std::abort();
  for (auto _ : state) {
    std::memcpy(back.data(), to.data(), bytes);  // (in place: counted with it)
    if (!cipher().decrypt(back, *seal)) std::abort();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void sum(benchmark::State& state) {
  std::vector<std::byte> plain(static_cast<size_t>(state.range(0)), std::byte{7});
  for (auto _ : state) benchmark::DoNotOptimize(firn::sum_of(plain.data(), plain.size()));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

}  // namespace

BENCHMARK(encrypt)->RangeMultiplier(8)->Range(64 << 10, 32 << 20)->ArgName("bytes");
BENCHMARK(decrypt)->RangeMultiplier(8)->Range(64 << 10, 32 << 20)->ArgName("bytes");
BENCHMARK(sum)->RangeMultiplier(8)->Range(64 << 10, 32 << 20)->ArgName("bytes");
BENCHMARK_MAIN();
