// Private pools: memory that a CUDA graph replays into, or that torch.cuda.MemPool keeps apart. A
// pool's memory stays on the device (its uses are not seen). It comes in segments, cut and joined
// as natively (pool_segments.h); memory freed in a pool is reused by that pool only, on the same
// stream, until the pool is released. A pool may have an allocator of its own; its memory is not
// Firn's, but is handed out and counted in the same way.
//
// Owns: the pools' segments. Locks: its own, held across engine calls on these rare paths, not
// across calls of a pool's own allocator or of the callback for segments.
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
#include <utility>
#include <vector>

#include "allocator/engine/engine.h"
#include "pytorch_plugin/pool_segments.h"

namespace firn::pytorch {

using PoolId = c10::MempoolId_t;
using OwnAllocator = std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator>;

/// How a pool's segments were cut, and what was in use: a checkpoint, to be gone back to.
struct PoolState final : c10::cuda::CUDACachingAllocator::AllocatorState {
  PoolId id;
  PoolSegments::Segments segments;
};

class Pools {
 public:
  /// False while there is neither a pool nor a block of one: the only test on the usual path.
  bool any() const { return any_.load(std::memory_order_acquire); }

  /// Allocations on streams that `filter` accepts go to the pool until end().
  void begin(int device, PoolId pool, std::function<bool(cudaStream_t)> filter);
  void end(int device, PoolId pool);
  void add_use(int device, PoolId pool, OwnAllocator allocator);
  /// A capture into a pool reads or writes the block at `base` on `stream`: a replay will do so
  /// unseen, so the block is pinned until the pool is released or the block is freed.
  Result<void> used_in_capture(Engine& engine, int device, const void* base,
                               cudaStream_t stream);
  /// Is anything allocated to a pool now, as in every capture?
  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  /// Free memory of the pool serves allocations outside it that would fail.
  void set_use_on_oom(int device, PoolId pool, bool use);
  /// Its segments are not cut.
  void set_no_split(int device, PoolId pool);
  /// Drops one use; after the last, segments without a block in use go back.
  void release(Engine* engine, int device, PoolId pool);
  int use_count(int device, PoolId pool);
  std::unordered_set<void*> live(int device, PoolId pool);
  /// The pool that the block at `pointer` belongs to, {0, 0} for none.
  PoolId pool_of(const void* pointer);
  /// The bytes that statistics count for the pool's block at `pointer`; 0 for none.
  size_t block_bytes(const void* pointer);
  /// The bytes that were asked for; 0 where it is not a pool's block.
  size_t requested_bytes(const void* pointer);
  /// The segment around `pointer`: its address and bytes.
  std::optional<std::pair<void*, size_t>> segment_around(const void* pointer);

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
  /// The block that free() would free; nothing if it is not a pool's. Throws for one freed before.
  std::optional<Freed> to_free(const void* pointer);
  /// `engine`: null where there is none any more.
  void free(Engine* engine, void* pointer);
  /// True when the block is a pool's: its free waits for the stream's work.
  bool record_stream(const void* pointer, cudaStream_t stream);
  /// Takes back what has waited long enough.
  void settle(Engine& engine, int device);

  std::shared_ptr<PoolState> checkpoint(int device, PoolId pool);
  /// The addresses freed, and those allocated again.
  struct Delta {
    std::vector<void*> freed, allocated;
  };
  Delta restore(Engine& engine, int device, const PoolState& state);

  struct SegmentOf {
    int device = 0;
    PoolId pool;
    bool foreign = false;  // of a pool's own allocator
    void* address = nullptr;
    PoolSegments::Segment what;
    std::unordered_set<void*> waiting;  // pieces that were freed, and that other streams use
  };
  std::vector<SegmentOf> segments(int device);

  /// A pool has taken a segment, or is about to give one back. Called without the lock.
  struct SegmentEvent {
    bool made = false;
    int device = 0;
    PoolId pool;
    bool foreign = false;
    void* address = nullptr;
    size_t bytes = 0;
    void* stream = nullptr;
  };
  void on_segment(std::function<void(const SegmentEvent&)> callback) {
    on_segment_ = std::move(callback);
  }

 private:
  struct Pool {
    int device = 0;
    PoolId id;
    int uses = 0;
    bool released = false, use_on_oom = false, no_split = false;
    OwnAllocator allocator;
    PoolSegments memory;
    PoolSegments::Inactive told[2];  // as in the engine's statistics
    std::vector<void*> waiting;      // freed, and used by others
    std::unordered_set<const void*> inputs;  // blocks outside, pinned for its graphs
  };
  struct Block {  // in use, or waiting
    std::shared_ptr<Pool> pool;
    cudaStream_t stream;
    size_t bytes, requested;
    bool waiting = false;
    std::vector<cudaStream_t> recorded = {};
    std::vector<cudaEvent_t> events = {};  // behind the recorded streams' work, once recorded
  };
  struct Filter {
    std::shared_ptr<Pool> pool;
    std::function<bool(cudaStream_t)> wants;
  };
  using Key = std::pair<int, PoolId>;
  using Given = std::vector<SegmentEvent>;

  std::shared_ptr<Pool> find(int device, PoolId pool) const;
  std::shared_ptr<Pool> known(int device, PoolId pool) const;
  std::shared_ptr<Pool>& make(int device, PoolId pool);
  void* take(Engine& engine, const std::shared_ptr<Pool>& pool, size_t bytes, cudaStream_t stream);
  Result<void*> add_segment(Engine& engine, const std::shared_ptr<Pool>& pool, size_t bytes,
                            cudaStream_t stream, SegmentEvent& made);
  void note_block(Engine& engine, const std::shared_ptr<Pool>& pool, void* address,
                  const PoolSegments::Piece& piece, cudaStream_t stream);
  void put_free(Engine* engine, Pool& pool, void* block);
  void settle_waiting(Engine& engine, Pool& pool);
  void count_inactive(Engine* engine, Pool& pool);
  Given take_unused(Pool& pool);
  void give_back(Engine* engine, const OwnAllocator& allocator, const Given& given);
  void settle_any();

  std::atomic<bool> any_{false}, recording_{false};
  std::function<void(const SegmentEvent&)> on_segment_;  // set before there are pools
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<Pool>> pools_;
  std::vector<Filter> filters_;
  std::unordered_map<const void*, Block> blocks_;
  std::map<PoolSegments::Address, std::shared_ptr<Pool>> segments_;  // of all pools
};

}  // namespace firn::pytorch
