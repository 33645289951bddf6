// What PyTorch's CUDA allocator and others beside it take for a call, in one process: the one that
// was installed first (PyTorch's own, or its cudaMallocAsync), the one installed over it (Firn),
// and RMM's pool (rmm_pool.cpp, where it could be built). Loaded into Python by call_times.py.
// Times are in nanoseconds a call; which allocator is asked is the first argument.
#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#define BENCH_API extern "C" __attribute__((visibility("default")))

namespace {

enum Which { peer_allocator, firn_allocator, rmm_pool };

c10::cuda::CUDACachingAllocator::CUDAAllocator* torch_allocators[2];
void* (*rmm_take)(size_t bytes, void* stream);
void (*rmm_give)(void* pointer, size_t bytes, void* stream);
const char* (*rmm_begin)(size_t bytes);

std::string failure;

/// A thread's streams, in the order in which they are asked for. 0: the default stream.
class Streams {
 public:
  explicit Streams(size_t count) : streams_{c10::cuda::getDefaultCUDAStream()} {
    while (streams_.size() < count) streams_.push_back(c10::cuda::getStreamFromPool());
  }
  /// Of this thread.
  void use(size_t index) {
    if (index == current_) return;
    c10::cuda::setCurrentCUDAStream(streams_[index]);
    current_ = index;
  }
  void* handle() const { return streams_[current_].stream(); }

 private:
  std::vector<c10::cuda::CUDAStream> streams_;
  size_t current_ = 0;
};

/// As a tensor does it: on the thread's current stream.
struct OfTorch {
  using Block = c10::DataPtr;
  c10::Allocator* allocator;
  Block take(size_t bytes, const Streams&) const { return allocator->allocate(bytes); }
};

struct OfRmm {
  class Block {
   public:
    Block() = default;
    Block(size_t bytes, void* stream)
        : pointer_(rmm_take(bytes, stream)), bytes_(bytes), stream_(stream) {}
    Block(Block&& other) noexcept { *this = std::move(other); }
    Block& operator=(Block&& other) noexcept {
      clear();
      pointer_ = std::exchange(other.pointer_, nullptr);
      bytes_ = other.bytes_;
      stream_ = other.stream_;
      return *this;
    }
    ~Block() { clear(); }
    void clear() {
      if (pointer_) rmm_give(pointer_, bytes_, stream_);
      pointer_ = nullptr;
    }

   private:
    void* pointer_ = nullptr;
    size_t bytes_ = 0;
    void* stream_ = nullptr;
  };
  Block take(size_t bytes, const Streams& streams) const { return {bytes, streams.handle()}; }
};

template <class Measure>
double with(int which, Measure&& measure) {
  try {
    return which == rmm_pool ? measure(OfRmm{}) : measure(OfTorch{torch_allocators[which]});
  } catch (const std::exception& error) {
    failure = error.what();
    return -1;
  }
}

template <class Call>
double ns_each(int64_t times, Call&& call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < times; ++i) call(i);
  const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
  return taken.count() / static_cast<double>(times);
}

/// 512 B to 64 MiB, every doubling as often as every other.
size_t mixed_bytes(std::mt19937_64& random) {
  const unsigned doubling = static_cast<unsigned>(random() % 17);
  return (size_t{512} << doubling) + random() % (size_t{512} << doubling) / 512 * 512;
}

}  // namespace

/// What went wrong where a time is below zero.
BENCH_API const char* calls_failure() { return failure.c_str(); }

/// Before Firn is installed.
BENCH_API void calls_note_peer() {
  torch_allocators[peer_allocator] = c10::cuda::CUDACachingAllocator::get();
}
/// And after, once CUDA has begun. The peer has not been told of the devices: Firn was, instead.
BENCH_API void calls_begin(int devices) {
  torch_allocators[firn_allocator] = c10::cuda::CUDACachingAllocator::get();
  if (torch_allocators[peer_allocator] != torch_allocators[firn_allocator])
    torch_allocators[peer_allocator]->init(devices);
}
/// RMM's pool over so many bytes; null, or why it cannot be.
BENCH_API const char* calls_begin_rmm(const char* library, uint64_t bytes) {
  void* handle = ::dlopen(library, RTLD_NOW);
  if (!handle) return ::dlerror();
  rmm_begin = reinterpret_cast<decltype(rmm_begin)>(::dlsym(handle, "rmm_begin"));
  rmm_take = reinterpret_cast<decltype(rmm_take)>(::dlsym(handle, "rmm_take"));
  rmm_give = reinterpret_cast<decltype(rmm_give)>(::dlsym(handle, "rmm_give"));
  return rmm_begin && rmm_take && rmm_give ? rmm_begin(bytes) : "it has not what it should have";
}

/// What is cached goes back to the driver.
BENCH_API void calls_empty_cache(int which) {
  if (which != rmm_pool) torch_allocators[which]->emptyCache();
}

/// A block of `bytes` allocated and freed, on each of so many streams in turn.
BENCH_API double pair_ns(int which, uint64_t bytes, int64_t streams_count, int64_t times) {
  return with(which, [&](auto allocator) {
    Streams streams(static_cast<size_t>(streams_count));
    const auto pair = [&](int64_t i) {
      streams.use(static_cast<size_t>(i % streams_count));
      auto block = allocator.take(bytes, streams);
    };
    for (int64_t i = 0; i < streams_count; ++i) pair(i);
    const double ns = ns_each(times, pair);
    streams.use(0);
    return ns;
  });
}

/// The same by several threads at once, each with a stream of its own: of one thread's call.
BENCH_API double threads_ns(int which, uint64_t bytes, int64_t threads, int64_t times) {
  return with(which, [&](auto allocator) {
    std::vector<double> taken(static_cast<size_t>(threads));
    std::barrier together(threads);
    std::vector<std::thread> running;
    for (double& mine : taken)
      running.emplace_back([&] {
        Streams streams(2);
        streams.use(1);
        const auto pair = [&](int64_t) { auto block = allocator.take(bytes, streams); };
        pair(0);
        together.arrive_and_wait();
        mine = ns_each(times, pair);
      });
    for (std::thread& each : running) each.join();
    double sum = 0;
    for (double each : taken) sum += each;
    return sum / static_cast<double>(threads);
  });
}

/// While `live` blocks of mixed sizes are alive: a random one is freed, and one of its size is
/// allocated (`among`), or one block is allocated and freed beside them.
BENCH_API double live_ns(int which, int64_t live, uint64_t bytes_most, bool among, int64_t times) {
  return with(which, [&](auto allocator) {
    Streams streams(1);
    std::mt19937_64 random(1);
    std::vector<size_t> sizes;
    std::vector<typename decltype(allocator)::Block> blocks;
    for (int64_t i = 0; i < live; ++i) {
      sizes.push_back(std::min<size_t>(mixed_bytes(random), bytes_most));
      blocks.push_back(allocator.take(sizes.back(), streams));
    }
    if (!among)
      return ns_each(times, [&](int64_t) { auto block = allocator.take(64 << 10, streams); });
    std::vector<uint32_t> order(static_cast<size_t>(times));
    for (uint32_t& index : order) index = static_cast<uint32_t>(random() % sizes.size());
    return ns_each(times, [&](int64_t i) {
      const uint32_t index = order[static_cast<size_t>(i)];
      blocks[index].clear();
      blocks[index] = allocator.take(sizes[index], streams);
    });
  });
}

/// Repeats a program's events: event i allocates `bytes[i]` for the handle `handles[i]`
/// on stream `streams[i]`, or, where they are none, frees what is there. Nanoseconds of an event.
BENCH_API double replay_ns(int which, const uint32_t* handles, const uint64_t* bytes,
                           const uint32_t* on, int64_t events, int64_t handles_count,
                           int64_t streams_count, int64_t rounds) {
  return with(which, [&](auto allocator) {
    Streams streams(static_cast<size_t>(streams_count));
    std::vector<typename decltype(allocator)::Block> blocks(static_cast<size_t>(handles_count));
    const auto play = [&](int64_t i) {
      auto& block = blocks[handles[i]];
      if (bytes[i] == 0) {
        block.clear();
        return;
      }
      streams.use(on[i]);
      block = allocator.take(bytes[i], streams);
    };
    double ns = 0;
    for (int64_t round = 0; round <= rounds; ++round) {
      const double each = ns_each(events, play);
      if (round > 0) ns += each / static_cast<double>(rounds);  // the first fills caches
    }
    blocks.clear();
    streams.use(0);
    return ns;
  });
}
