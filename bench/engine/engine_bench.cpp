// What the engine's hot paths take, by Google Benchmark: allocating and freeing against sizes, live
// blocks and threads, each with a stream of its own; and touching and releasing resident blocks. On
// the software GPU's virtual clock: only the engine's own instructions are in the figures.
//
//   FIRN_TEST_GPU=build/backing/gpu/software/libcuda.so.1 build/bench/engine/engine_bench
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "allocator/base/huge_pages.h"
#include "allocator/blocks/block.h"
#include "bench/engine/bench_machine.h"

namespace {

using namespace firn;
using bench::machine;
using bench::must;
using simulate::Machine;

void pair(benchmark::State& state) {
  static std::unique_ptr<Machine> shared;
  static std::vector<CUstream> streams;
  if (state.thread_index() == 0) {
    shared = machine();
    streams.clear();
    for (int i = 0; i < state.threads(); ++i) streams.push_back(must(shared->make_stream()));
  }
  const auto bytes = static_cast<size_t>(state.range(0));
  // (The first iteration is a barrier behind what thread 0 made.)
  Engine* engine = nullptr;
  CUstream stream = nullptr;
  for (auto _ : state) {
    if (!engine) {
      engine = &shared->engine();
      stream = streams[static_cast<size_t>(state.thread_index())];
    }
    void* block = must(engine->allocate(bytes, stream));
    if (!engine->free(block)) std::exit(1);
  }
  if (state.thread_index() == 0) shared.reset();  // (There is one software GPU in a process.)
}
BENCHMARK(pair)->RangeMultiplier(8)->Range(512, 64 << 20)->ArgName("bytes")->UseRealTime();
BENCHMARK(pair)->Arg(64 << 10)->Arg(4 << 20)->ArgName("bytes")->ThreadRange(2, 8)->UseRealTime();

/// A block allocated and freed while so many others live.
void pair_beside(benchmark::State& state) {
  const auto sim = machine();
  Engine& engine = sim->engine();
  std::mt19937_64 random(1);
  for (int64_t i = 0; i < state.range(0); ++i)
    must(engine.allocate(512 + random() % 8 * 512, nullptr));
  for (auto _ : state)
    if (!engine.free(must(engine.allocate(64 << 10, nullptr)))) std::exit(1);
}
BENCHMARK(pair_beside)->RangeMultiplier(10)->Range(10, 1'000'000)->ArgName("live");

/// Random indices among so many, more than caches remember where there are many.
std::vector<uint32_t> random_indices(size_t live) {
  std::mt19937_64 random(2);
  std::vector<uint32_t> order(std::max<size_t>(live, 1 << 16));
  for (uint32_t& index : order) index = static_cast<uint32_t>(random() % live);
  return order;
}

/// A random one of many live blocks is freed, and one of its size is allocated.
void among_live(benchmark::State& state) {
  const auto sim = machine();
  Engine& engine = sim->engine();
  std::mt19937_64 random(1);
  std::vector<size_t> sizes;
  std::vector<void*> blocks;
  for (int64_t i = 0; i < state.range(0); ++i) {
    sizes.push_back(512 + random() % 8 * 512);
    blocks.push_back(must(engine.allocate(sizes.back(), nullptr)));
  }
  const std::vector<uint32_t> order = random_indices(sizes.size());
  size_t at = 0;
  for (auto _ : state) {
    const uint32_t index = order[at++ % order.size()];
    if (!engine.free(blocks[index])) std::exit(1);
    blocks[index] = must(engine.allocate(sizes[index], nullptr));
  }
}
BENCHMARK(among_live)->RangeMultiplier(10)->Range(10, 1'000'000)->ArgName("live");

/// What no look-up of a random block can do without, in among_live()'s order and nothing else: the
/// program's own notes of it (an address and a size), from the address to a number, from that to a
/// descriptor, which is written. Each waits for the one before; on huge pages.
void look_ups(benchmark::State& state) {
  const auto live = static_cast<size_t>(state.range(0));
  constexpr size_t units_each = 5;  // of 512 B, on average
  const size_t units_bytes = live * units_each * sizeof(uint32_t);
  auto* units = static_cast<uint32_t*>(take_huge(units_bytes));
  auto* descriptors = static_cast<Block*>(take_huge(live * sizeof(Block)));
  if (!units || !descriptors) std::exit(1);
  std::vector<size_t> sizes(live, 512), blocks;
  for (size_t i = 0; i < live; ++i) {
    units[i * units_each] = static_cast<uint32_t>(i);
    std::construct_at(&descriptors[i]);
    blocks.push_back(i * units_each);
  }
  const std::vector<uint32_t> order = random_indices(live);
  size_t at = 0;
  uint64_t before = 0;
  for (auto _ : state) {
    // (The next look-up begins when this one is over: sizes are even.)
    const uint32_t index = order[(at++ + before % 2) % order.size()];
    before = descriptors[units[blocks[index]]].use.fetch_add(sizes[index]);
  }
  benchmark::DoNotOptimize(before);
  std::destroy_n(descriptors, live);
  give_huge(descriptors, live * sizeof(Block));
  give_huge(units, units_bytes);
}
BENCHMARK(look_ups)->RangeMultiplier(10)->Range(10, 1'000'000)->ArgName("live");

/// Touch and release of a resident block, one of so many.
void touch_one(benchmark::State& state, size_t bytes, bool watched) {
  const auto sim = machine(watched);
  Engine& engine = sim->engine();
  std::vector<void*> blocks;
  for (int64_t i = 0; i < state.range(0); ++i)
    blocks.push_back(must(engine.allocate(bytes, nullptr)));
  for (void* block : blocks) {
    Result<Hold> hold = engine.touch(block, nullptr, Access::write);
    if (!hold) std::exit(1);
    engine.release(*hold, nullptr);
  }
  size_t at = 0;
  for (auto _ : state) {
    at = at + 1 == blocks.size() ? 0 : at + 1;
    Result<Hold> hold = engine.touch(blocks[at], nullptr, Access::read);
    benchmark::DoNotOptimize(hold);
    engine.release(*hold, nullptr);
  }
}
void touch(benchmark::State& state) { touch_one(state, 2u << 20, false); }
BENCHMARK(touch)->RangeMultiplier(10)->Range(1, 10'000)->ArgName("blocks");

/// A small block's, by its segment: counted once operators are watched.
void touch_small(benchmark::State& state) { touch_one(state, 4u << 10, true); }
BENCHMARK(touch_small)->RangeMultiplier(10)->Range(1, 10'000)->ArgName("blocks");

/// All blocks of a launch at once.
void touch_many(benchmark::State& state) {
  const auto sim = machine();
  Engine& engine = sim->engine();
  std::vector<uint64_t> words;
  for (int64_t i = 0; i < state.range(0); ++i)
    words.push_back(reinterpret_cast<uint64_t>(must(engine.allocate(2u << 20, nullptr))));
  std::vector<Hold> holds(words.size());
  size_t held = 0;
  (void)engine.touch_many(words, Access::write, holds.data(), held);
  engine.release_many({holds.data(), held}, nullptr);
  for (auto _ : state) {
    held = 0;
    benchmark::DoNotOptimize(engine.touch_many(words, Access::write, holds.data(), held));
    engine.release_many({holds.data(), held}, nullptr);
  }
}
BENCHMARK(touch_many)->Arg(4)->Arg(10)->Arg(100)->ArgName("blocks");

}  // namespace

BENCHMARK_MAIN();
