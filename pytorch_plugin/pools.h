// Private pools: memory that a CUDA graph replays into, or that torch.cuda.MemPool keeps apart. Its
// blocks stay on the device (their uses are not seen), and what is freed in a pool is reused by
// that pool only, on the same stream, until the pool is released. A pool may have an allocator of
// its own; its memory is not Firn's, and not in Firn's statistics.
//
// Owns: the blocks freed into pools. Locks: its own, held across engine calls on these rare paths,
// not across those of a pool's own allocator.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "allocator/engine.h"

namespace firn::pytorch {

using PoolId = c10::MempoolId_t;
using OwnAllocator = std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator>;

/// Which blocks of a pool were allocated: a checkpoint, to be gone back to.
struct PoolState final : c10::cuda::CUDACachingAllocator::AllocatorState {
  struct Allocated {
    void* block;
    size_t bytes;
  };
  PoolId id;
  std::vector<Allocated> live;
};

class Pools {
 public:
  /// False while there is neither a pool nor a block of one: the only test on the usual path.
  bool any() const { return any_.load(std::memory_order_acquire); }

  /// Allocations on streams that `filter` accepts go to the pool until end().
  void begin(int device, PoolId pool, std::function<bool(cudaStream_t)> filter);
  void end(int device, PoolId pool);
  void add_use(int device, PoolId pool, OwnAllocator allocator);
  /// What is free in the pool serves allocations outside it that would fail.
  void set_use_on_oom(int device, PoolId pool, bool use);
  /// Drops one use; after the last, what is free in the pool goes back.
  void release(Engine* engine, int device, PoolId pool);
  int use_count(int device, PoolId pool);
  std::unordered_set<void*> live(int device, PoolId pool);
  /// The pool that `pointer` belongs to, {0, 0} for none.
  PoolId pool_of(const void* pointer);

  /// The pool's block for an allocation on `stream`, or null when no pool wants it. Errors are the
  /// engine's.
  Result<void*> allocate(Engine& engine, int device, size_t bytes, cudaStream_t stream);
  /// A block that is free in a pool which lends, or null.
  void* borrow(Engine& engine, int device, size_t bytes, cudaStream_t stream);

  struct Freed {
    int device = 0;
    size_t bytes = 0;
    cudaStream_t stream = nullptr;
    PoolId pool;
    bool waits = false;  // for other streams
  };
  /// What free() would free: nothing for a block that is no pool's. Throws for one freed before.
  std::optional<Freed> to_free(const void* pointer);
  /// Keeps a pool's block, or gives it back. `engine`: null for memory of a pool's own allocator.
  void free(Engine* engine, void* pointer);
  /// True when the block is a pool's: its free waits for the stream's work.
  bool record_stream(const void* pointer, cudaStream_t stream);

  std::shared_ptr<PoolState> checkpoint(int device, PoolId pool);
  /// What was freed and what is allocated again, by address.
  struct Delta {
    std::vector<void*> freed, allocated;
  };
  Delta restore(Engine& engine, int device, const PoolState& state);

  struct OwnBlock {  // of a pool's own allocator, for snapshots
    Freed what;
    const void* address;
    size_t capacity;
    bool live;
  };
  std::vector<OwnBlock> own_blocks(int device);

 private:
  struct Pool {
    int device = 0;
    PoolId id;
    int uses = 0;
    bool released = false, use_on_oom = false;
    OwnAllocator allocator;
    std::unordered_set<void*> live;
    std::multimap<std::pair<cudaStream_t, size_t>, void*> free;  // by stream and capacity
    std::vector<void*> waiting;                                  // freed, and used by others
  };
  struct Member {
    std::shared_ptr<Pool> pool;
    cudaStream_t stream;
    size_t capacity, bytes;
    std::vector<cudaStream_t> recorded;
    std::vector<cudaEvent_t> events;  // behind the recorded streams' work, once it can be had
  };
  struct Filter {
    std::shared_ptr<Pool> pool;
    std::function<bool(cudaStream_t)> wants;
  };
  using Key = std::pair<int, PoolId>;

  std::shared_ptr<Pool> find(int device, PoolId pool) const;
  std::shared_ptr<Pool>& make(int device, PoolId pool);
  void* take_free(Engine& engine, Pool& pool, size_t bytes, cudaStream_t stream, bool any_size);
  Result<void*> add_block(Engine& engine, const std::shared_ptr<Pool>& pool, size_t bytes,
                          cudaStream_t stream);
  Result<void*> add_own(const std::shared_ptr<Pool>& pool, size_t bytes, cudaStream_t stream);
  void put_free(Pool& pool, void* block);
  void settle_waiting(Pool& pool);
  void give_free(Engine* engine, Pool& pool, std::vector<void*>& own);
  void settle();

  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<Pool>> pools_;
  std::vector<Filter> filters_;
  std::unordered_map<const void*, Member> members_;
};

}  // namespace firn::pytorch
