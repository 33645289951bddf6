// What PyTorch's CUDA allocator, whichever is installed, takes for a call, and what an operator
// that computes nothing takes. Loaded into Python by overhead.py. Times are of one thread, in
// nanoseconds a call.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

#define BENCH_API extern "C" __attribute__((visibility("default")))

namespace {

template <class Call>
double ns_each(int64_t times, Call&& call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < times; ++i) call();
  const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
  return taken.count() / static_cast<double>(times);
}

/// 512 B to 64 MiB, every doubling as often as every other.
size_t mixed_bytes(std::mt19937_64& random) {
  const unsigned doubling = static_cast<unsigned>(random() % 17);
  return (size_t{512} << doubling) + random() % (size_t{512} << doubling) / 512 * 512;
}

}  // namespace

/// A block of `bytes` allocated and freed, as a tensor does it.
BENCH_API double pair_ns(uint64_t bytes, int64_t times) {
  c10::Allocator* allocator = c10::cuda::CUDACachingAllocator::get();
  const auto pair = [&] { c10::DataPtr block = allocator->allocate(bytes); };
  pair();
  return ns_each(times, pair);
}

/// The same where `live` blocks of mixed sizes are alive: a random one is freed, and one of its
/// size is allocated. (Mixed small sizes: 10,000 of the others are no GPU's.)
BENCH_API double live_ns(int64_t live, uint64_t bytes_most, int64_t times) {
  c10::Allocator* allocator = c10::cuda::CUDACachingAllocator::get();
  std::mt19937_64 random(1);
  std::vector<size_t> sizes;
  std::vector<c10::DataPtr> blocks;
  for (int64_t i = 0; i < live; ++i) {
    sizes.push_back(std::min<size_t>(mixed_bytes(random), bytes_most));
    blocks.push_back(allocator->allocate(sizes.back()));
  }
  std::vector<uint32_t> order(static_cast<size_t>(times));
  for (uint32_t& place : order) place = static_cast<uint32_t>(random() % sizes.size());
  const uint32_t* at = order.data();
  const auto replace = [&] {
    const uint32_t place = *at++;
    blocks[place].clear();
    blocks[place] = allocator->allocate(sizes[place]);
  };
  return ns_each(times, replace);
}

/// tensor.view(): a call of the dispatcher that allocates nothing on the device.
BENCH_API double view_ns(int64_t times) {
  const at::Tensor tensor = at::empty({4, 4}, at::device(at::kCUDA));
  c10::InferenceMode without_autograd;
  return ns_each(times, [&] { at::Tensor same = tensor.view({16}); });
}
