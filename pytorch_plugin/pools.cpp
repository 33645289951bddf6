#include "pytorch_plugin/pools.h"

#include <c10/cuda/CUDAException.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>

namespace firn::pytorch {

namespace {

constexpr size_t rounding_bytes = 512;
constexpr const char* pin_reason = "CUDA graph or MemPool: replays are not seen";

size_t rounded(size_t bytes) {
  return (bytes + rounding_bytes - 1) / rounding_bytes * rounding_bytes;
}

}  // namespace

std::shared_ptr<Pools::Pool> Pools::find(int device, PoolId pool) const {
  auto found = pools_.find({device, pool});
  return found == pools_.end() ? nullptr : found->second;
}

std::shared_ptr<Pools::Pool>& Pools::make(int device, PoolId pool) {
  std::shared_ptr<Pool>& made = pools_[{device, pool}];
  if (!made) {
    made = std::make_shared<Pool>();
    made->device = device;
    made->id = pool;
  }
  any_.store(true, std::memory_order_release);
  return made;
}

void Pools::settle() {
  any_.store(!pools_.empty() || !members_.empty(), std::memory_order_release);
}

void Pools::begin(int device, PoolId pool, std::function<bool(cudaStream_t)> filter) {
  std::lock_guard lock(mutex_);
  // As torch does: the first capture into a pool is its first use.
  std::shared_ptr<Pool>& made = make(device, pool);
  ++made->uses;
  for (const Filter& other : filters_)
    TORCH_CHECK(other.pool != made, "beginAllocateToPool: already recording to mempool_id");
  filters_.push_back({made, std::move(filter)});
}

void Pools::end(int device, PoolId pool) {
  std::lock_guard lock(mutex_);
  auto found = std::find_if(filters_.begin(), filters_.end(), [&](const Filter& filter) {
    return filter.pool->device == device && filter.pool->id == pool;
  });
  TORCH_CHECK(found != filters_.end(), "endAllocateToPool: not currently recording to mempool_id");
  filters_.erase(found);
}

void Pools::add_use(int device, PoolId pool, OwnAllocator allocator) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Pool>& made = make(device, pool);
  ++made->uses;
  if (allocator) made->allocator = std::move(allocator);
}

void Pools::set_use_on_oom(int device, PoolId pool, bool use) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Pool> found = find(device, pool);
  TORCH_CHECK(found, "Could not find pool of id on device ", device);
  found->use_on_oom = use;
}

/// Gives the pool's free blocks back to the engine; those of its own allocator go to `own`, to be
/// deleted without the lock.
void Pools::give_free(Engine* engine, Pool& pool, std::vector<void*>& own) {
  for (const auto& [key, block] : pool.free) {
    members_.erase(block);
    if (pool.allocator) {
      own.push_back(block);
      continue;
    }
    if (!engine) continue;
    Result<void> freed = engine->unpin(block);
    if (freed) freed = engine->free(block);
    if (!freed) std::fprintf(stderr, "firn: pool: %s\n", describe(freed.error()).c_str());
  }
  pool.free.clear();
}

void Pools::release(Engine* engine, int device, PoolId id) {
  std::shared_ptr<Pool> pool;
  {
    std::lock_guard lock(mutex_);
    pool = find(device, id);
    TORCH_CHECK(pool, "releasePool: no pool of this id on device ", device);
    if (--pool->uses > 0) return;
    pool->released = true;
    pools_.erase({device, id});
  }
  // A replay may still be running on any stream.
  if (engine && (!pool->free.empty() || !pool->waiting.empty())) (void)cudaDeviceSynchronize();
  std::vector<void*> own;
  {
    std::lock_guard lock(mutex_);
    for (void* block : pool->waiting) put_free(*pool, block);
    pool->waiting.clear();
    give_free(engine, *pool, own);
    settle();
  }
  for (void* block : own) pool->allocator->raw_delete(block);
}

int Pools::use_count(int device, PoolId pool) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Pool> found = find(device, pool);
  return found ? found->uses : 0;
}

std::unordered_set<void*> Pools::live(int device, PoolId pool) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Pool> found = find(device, pool);
  TORCH_CHECK(found, "Could not find pool of id on device ", device);
  return found->live;
}

PoolId Pools::pool_of(const void* pointer) {
  if (!any()) return {0, 0};
  std::lock_guard lock(mutex_);
  auto found = members_.find(pointer);
  return found == members_.end() ? PoolId{0, 0} : found->second.pool->id;
}

// --- allocation ----------------------------------------------------------------------------------

Result<void*> Pools::allocate(Engine& engine, int device, size_t bytes, cudaStream_t stream) {
  std::shared_ptr<Pool> pool;
  {
    std::lock_guard lock(mutex_);
    for (auto filter = filters_.rbegin(); filter != filters_.rend() && !pool; ++filter)
      if (filter->pool->device == device && filter->wants(stream)) pool = filter->pool;
    if (!pool) return static_cast<void*>(nullptr);
    settle_waiting(*pool);
    if (void* block = take_free(engine, *pool, bytes, stream, false)) return block;
    if (!pool->allocator) return add_block(engine, pool, bytes, stream);
  }
  return add_own(pool, bytes, stream);
}

void* Pools::borrow(Engine& engine, int device, size_t bytes, cudaStream_t stream) {
  std::lock_guard lock(mutex_);
  for (const auto& [key, pool] : pools_) {
    if (!pool->use_on_oom || pool->device != device) continue;
    settle_waiting(*pool);
    if (void* block = take_free(engine, *pool, bytes, stream, true)) return block;
  }
  return nullptr;
}

/// The smallest free block that fits, as long as no more than half of it is wasted.
void* Pools::take_free(Engine& engine, Pool& pool, size_t bytes, cudaStream_t stream,
                       bool any_size) {
  const size_t size = rounded(bytes);
  auto found = pool.free.lower_bound({stream, size});
  if (found == pool.free.end() || found->first.first != stream) return nullptr;
  if (!any_size && found->first.second / 2 > size) return nullptr;
  void* block = found->second;
  pool.free.erase(found);
  pool.live.insert(block);
  members_[block].bytes = bytes;
  if (!pool.allocator) engine.set_used(block, bytes);
  return block;
}

Result<void*> Pools::add_block(Engine& engine, const std::shared_ptr<Pool>& pool, size_t bytes,
                               cudaStream_t stream) {
  Result<void*> block = engine.allocate(bytes, stream);
  if (!block) return block.error();
  std::optional<BlockInfo> info = engine.find(*block);
  if (Result<void> pinned = engine.pin(*block, pin_reason); !pinned || !info) {
    (void)engine.free(*block);
    return pinned.error();
  }
  pool->live.insert(*block);
  members_[*block] = {pool, stream, info->capacity, bytes, {}, {}};
  return *block;
}

Result<void*> Pools::add_own(const std::shared_ptr<Pool>& pool, size_t bytes,
                             cudaStream_t stream) {
  const size_t size = rounded(bytes);
  void* block = pool->allocator->raw_alloc_with_stream(size, stream);
  if (!block) return make_error(Code::out_of_memory, 0, "the MemPool's own allocator gave nothing");
  std::lock_guard lock(mutex_);
  pool->live.insert(block);
  members_[block] = {pool, stream, size, bytes, {}, {}};
  return block;
}

// --- freeing -------------------------------------------------------------------------------------

std::optional<Pools::Freed> Pools::to_free(const void* pointer) {
  std::lock_guard lock(mutex_);
  auto found = members_.find(pointer);
  if (found == members_.end()) return std::nullopt;
  const Member& member = found->second;
  TORCH_CHECK(member.pool->live.count(const_cast<void*>(pointer)) == 1,
              "invalid device pointer: ", pointer, " (freed before)");
  return Freed{member.pool->device, member.bytes, member.stream, member.pool->id,
               !member.recorded.empty()};
}

void Pools::put_free(Pool& pool, void* block) {
  Member& member = members_.at(block);
  for (cudaEvent_t event : member.events) (void)cudaEventDestroy(event);
  member.events.clear();
  member.recorded.clear();
  pool.free.insert({{member.stream, member.capacity}, block});
}

void Pools::free(Engine* engine, void* pointer) {
  std::vector<void*> own;
  OwnAllocator allocator;
  {
    std::lock_guard lock(mutex_);
    Member& member = members_.at(pointer);
    std::shared_ptr<Pool> pool = member.pool;
    pool->live.erase(pointer);
    if (engine && !pool->allocator) engine->set_idle(pointer);
    if (!member.recorded.empty() && pool->released) {
      (void)cudaDeviceSynchronize();  // no capture goes on in a pool that was released
      member.recorded.clear();
    }
    if (member.recorded.empty())
      put_free(*pool, pointer);
    else
      pool->waiting.push_back(pointer);
    if (pool->released) {
      give_free(engine, *pool, own);
      allocator = pool->allocator;
      settle();
    }
  }
  for (void* block : own) allocator->raw_delete(block);
}

bool Pools::record_stream(const void* pointer, cudaStream_t stream) {
  std::lock_guard lock(mutex_);
  auto found = members_.find(pointer);
  if (found == members_.end()) return false;
  Member& member = found->second;
  if (stream != member.stream &&
      std::find(member.recorded.begin(), member.recorded.end(), stream) == member.recorded.end())
    member.recorded.push_back(stream);
  return true;
}

/// Frees what waited for other streams. Their work is behind events that are recorded here, as soon
/// as no stream concerned is being captured: what a capture uses may be reused after it only.
void Pools::settle_waiting(Pool& pool) {
  auto capturing = [](cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream, &status) != cudaSuccess ||
           status != cudaStreamCaptureStatusNone;
  };
  for (size_t i = 0; i < pool.waiting.size();) {
    Member& member = members_.at(pool.waiting[i]);
    bool later = capturing(member.stream);
    for (cudaStream_t stream : member.recorded) later |= capturing(stream);
    if (!later && member.events.empty())
      for (cudaStream_t stream : member.recorded) {
        cudaEvent_t event = nullptr;
        C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        member.events.push_back(event);
        C10_CUDA_CHECK(cudaEventRecord(event, stream));
      }
    for (size_t k = 0; k < member.events.size() && !later; ++k) {
      const cudaError_t over = cudaEventQuery(member.events[k]);
      if (over == cudaErrorNotReady)
        (void)cudaGetLastError();  // not an error
      else
        C10_CUDA_CHECK(over);
      later = over != cudaSuccess;
    }
    if (later) {
      ++i;
      continue;
    }
    put_free(pool, pool.waiting[i]);
    pool.waiting.erase(pool.waiting.begin() + static_cast<ptrdiff_t>(i));
  }
}

// --- checkpoints, snapshots ----------------------------------------------------------------------

std::shared_ptr<PoolState> Pools::checkpoint(int device, PoolId id) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Pool> pool = find(device, id);
  TORCH_CHECK(pool, "Could not find pool of id on device ", device);
  TORCH_CHECK(!pool->allocator, "firn: checkpoints of a pool with an allocator of its own");
  auto state = std::make_shared<PoolState>();
  state->id = id;
  for (void* block : pool->live) {
    const Member& member = members_.at(block);
    TORCH_CHECK(member.recorded.empty(), "Checkpointing a block that other streams use");
    state->live.push_back({block, member.bytes});
  }
  return state;
}

Pools::Delta Pools::restore(Engine& engine, int device, const PoolState& state) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Pool> pool = find(device, state.id);
  TORCH_CHECK(pool, "Could not find pool of id on device ", device);
  settle_waiting(*pool);
  for (const PoolState::Allocated& each : state.live) {
    auto found = members_.find(each.block);
    TORCH_CHECK(found != members_.end() && found->second.pool == pool &&
                    std::find(pool->waiting.begin(), pool->waiting.end(), each.block) ==
                        pool->waiting.end(),
                "setCheckpointPoolState: ", each.block, " is no longer the pool's");
  }
  Delta delta;
  for (void* block : pool->live) {
    engine.set_idle(block);
    put_free(*pool, block);
    delta.freed.push_back(block);
  }
  pool->live.clear();
  for (const PoolState::Allocated& each : state.live) {
    Member& member = members_.at(each.block);
    auto range = pool->free.equal_range({member.stream, member.capacity});
    for (auto at = range.first; at != range.second; ++at)
      if (at->second == each.block) {
        pool->free.erase(at);
        break;
      }
    pool->live.insert(each.block);
    member.bytes = each.bytes;
    engine.set_used(each.block, each.bytes);
    delta.allocated.push_back(each.block);
  }
  return delta;
}

std::vector<Pools::OwnBlock> Pools::own_blocks(int device) {
  std::vector<OwnBlock> out;
  if (!any()) return out;
  std::lock_guard lock(mutex_);
  for (const auto& [address, member] : members_)
    if (member.pool->allocator && member.pool->device == device)
      out.push_back({{device, member.bytes, member.stream, member.pool->id, false}, address,
                     member.capacity,
                     member.pool->live.count(const_cast<void*>(address)) == 1});
  return out;
}

}  // namespace firn::pytorch
