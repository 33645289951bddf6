// Private pools: memory that a CUDA graph replays into, or that torch.cuda.MemPool keeps apart. Its
// blocks stay on the device (their uses are not seen), and what is freed in a pool is reused by
// that pool only, on the same stream, until the pool is released.
//
// Owns: the blocks freed into pools. Locks: its own, held across engine calls on these rare paths.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "allocator/engine.h"

namespace firn::pytorch {

using PoolId = c10::MempoolId_t;

class Pools {
 public:
  /// False while there is neither a pool nor a block of one: the only test on the usual path.
  bool any() const { return any_.load(std::memory_order_acquire); }

  /// Allocations on streams that `filter` accepts go to the pool until end().
  void begin(int device, PoolId pool, std::function<bool(cudaStream_t)> filter);
  void end(int device, PoolId pool);
  void add_use(int device, PoolId pool);
  /// Drops one use; after the last, what is free in the pool goes back to the engine.
  void release(Engine* engine, int device, PoolId pool);
  int use_count(int device, PoolId pool);
  std::unordered_set<void*> live(int device, PoolId pool);
  /// The pool that `pointer` belongs to, {0, 0} for none.
  PoolId pool_of(const void* pointer);

  /// The pool's block for an allocation on `stream`, or null when no pool wants it. Errors are the
  /// engine's.
  Result<void*> allocate(Engine& engine, int device, size_t bytes, cudaStream_t stream);
  /// True when the block was a pool's: it is kept or given back.
  bool free(Engine& engine, void* pointer);

 private:
  struct Pool {
    int device = 0;
    PoolId id;
    int uses = 0;
    bool released = false;
    std::unordered_set<void*> live;
    std::multimap<std::pair<cudaStream_t, size_t>, void*> free;  // by stream and rounded size
  };
  struct Member {
    std::shared_ptr<Pool> pool;
    cudaStream_t stream;
    size_t bytes;
  };
  struct Filter {
    std::shared_ptr<Pool> pool;
    std::function<bool(cudaStream_t)> wants;
  };
  using Key = std::pair<int, PoolId>;

  std::shared_ptr<Pool> find(int device, PoolId pool) const;
  std::shared_ptr<Pool>& make(int device, PoolId pool);
  void give_free(Engine& engine, Pool& pool);
  void settle();

  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<Pool>> pools_;
  std::vector<Filter> filters_;
  std::unordered_map<const void*, Member> members_;
};

}  // namespace firn::pytorch
