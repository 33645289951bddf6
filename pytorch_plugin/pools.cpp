// The registry of pools, their allocations, and their ends. pools_memory.cpp: their frees and
// checkpoints.
#include "pytorch_plugin/pools.h"

#include <c10/cuda/CUDAException.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>

#include "pytorch_plugin/torch_stream.h"

namespace firn::pytorch {

namespace {
constexpr const char* pin_reason = "CUDA graph or MemPool: replays are not seen";
constexpr const char* input_reason = "used by a CUDA graph: replays are not seen";
}  // namespace

std::shared_ptr<Pools::Pool> Pools::find(int device, PoolId pool) const {
  auto found = pools_.find({device, pool});
  return found == pools_.end() ? nullptr : found->second;
}

std::shared_ptr<Pools::Pool> Pools::known(int device, PoolId pool) const {
  std::shared_ptr<Pool> found = find(device, pool);
  TORCH_CHECK(found, "Could not find pool of id on device ", device);
  return found;
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

void Pools::settle_any() {
  any_.store(!pools_.empty() || !segments_.empty(), std::memory_order_release);
}

void Pools::begin(int device, PoolId pool, std::function<bool(cudaStream_t)> filter) {
  std::lock_guard lock(mutex_);
  // As torch does: the first capture into a pool is its first use.
  std::shared_ptr<Pool>& made = make(device, pool);
  ++made->uses;
  for (const Filter& other : filters_)
    TORCH_CHECK(other.pool != made, "beginAllocateToPool: already recording to mempool_id");
  filters_.push_back({made, std::move(filter)});
  recording_.store(true, std::memory_order_relaxed);
}

void Pools::end(int device, PoolId pool) {
  std::lock_guard lock(mutex_);
  auto found = std::find_if(filters_.begin(), filters_.end(), [&](const Filter& filter) {
    return filter.pool->device == device && filter.pool->id == pool;
  });
  TORCH_CHECK(found != filters_.end(), "endAllocateToPool: not currently recording to mempool_id");
  filters_.erase(found);
  recording_.store(!filters_.empty(), std::memory_order_relaxed);
}

Result<void> Pools::used_in_capture(Engine& engine, int device, const void* base,
                                    cudaStream_t stream) {
  if (capture_status(stream) != cudaStreamCaptureStatusActive) return {};
  std::lock_guard lock(mutex_);
  if (blocks_.count(base)) return {};  // a pool's own, which is pinned
  for (auto filter = filters_.rbegin(); filter != filters_.rend(); ++filter) {
    if (filter->pool->device != device || !filter->wants(stream)) continue;
    if (!filter->pool->inputs.insert(base).second) return {};
    Result<void> pinned = engine.pin(base, input_reason);
    if (!pinned) filter->pool->inputs.erase(base);
    return pinned;
  }
  return {};
}

void Pools::add_use(int device, PoolId pool, OwnAllocator allocator) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Pool>& made = make(device, pool);
  ++made->uses;
  if (allocator) made->allocator = std::move(allocator);
}

void Pools::set_use_on_oom(int device, PoolId pool, bool use) {
  std::lock_guard lock(mutex_);
  known(device, pool)->use_on_oom = use;
}

void Pools::set_no_split(int device, PoolId pool) {
  std::lock_guard lock(mutex_);
  known(device, pool)->no_split = true;
}

/// Removes the segments without a block in use from the pool. Under the lock.
Pools::Given Pools::take_unused(Pool& pool) {
  Given given;
  for (const auto& [base, segment] : pool.memory.take_unused()) {
    segments_.erase(base);
    given.push_back({false, pool.device, pool.id, pool.allocator != nullptr,
                     reinterpret_cast<void*>(base), segment.bytes, segment.stream});
  }
  settle_any();
  return given;
}

/// Without the lock.
void Pools::give_back(Engine* engine, const OwnAllocator& allocator, const Given& given) {
  for (const SegmentEvent& segment : given) {
    if (on_segment_) on_segment_(segment);
    if (allocator) {
      if (engine)
        engine->count({PartEvent::Kind::foreign_given,
                       segment.bytes > PoolSegments::small_segment, segment.address,
                       static_cast<int64_t>(segment.bytes)});
      allocator->raw_delete(segment.address);
      continue;
    }
    if (!engine) continue;
    if (Result<void> freed = engine->free(segment.address); !freed)
      std::fprintf(stderr, "firn: pool: %s\n", describe(freed.error()).c_str());
  }
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
  if (engine && !pool->memory.all().empty()) (void)cudaDeviceSynchronize();
  Given given;
  {
    std::lock_guard lock(mutex_);
    for (void* block : std::exchange(pool->waiting, {})) put_free(engine, *pool, block);
    for (const void* input : std::exchange(pool->inputs, {}))
      if (engine) (void)engine->unpin(input);
    given = take_unused(*pool);
  }
  give_back(engine, pool->allocator, given);
}

int Pools::use_count(int device, PoolId pool) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Pool> found = find(device, pool);
  return found ? found->uses : 0;
}

std::unordered_set<void*> Pools::live(int device, PoolId id) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Pool> pool = known(device, id);
  std::unordered_set<void*> out;
  for (const auto& [address, block] : blocks_)
    if (block.pool == pool && !block.waiting) out.insert(const_cast<void*>(address));
  return out;
}

PoolId Pools::pool_of(const void* pointer) {
  if (!any()) return {0, 0};
  std::lock_guard lock(mutex_);
  auto found = blocks_.find(pointer);
  return found == blocks_.end() ? PoolId{0, 0} : found->second.pool->id;
}

size_t Pools::block_bytes(const void* pointer) {
  std::lock_guard lock(mutex_);
  auto found = blocks_.find(pointer);
  return found == blocks_.end() ? 0 : found->second.bytes;
}

size_t Pools::requested_bytes(const void* pointer) {
  std::lock_guard lock(mutex_);
  auto found = blocks_.find(pointer);
  return found == blocks_.end() ? 0 : found->second.requested;
}

std::optional<std::pair<void*, size_t>> Pools::segment_around(const void* pointer) {
  if (!any()) return std::nullopt;
  std::lock_guard lock(mutex_);
  const auto address = reinterpret_cast<PoolSegments::Address>(pointer);
  auto at = segments_.upper_bound(address);
  if (at == segments_.begin()) return std::nullopt;
  --at;
  const PoolSegments& memory = at->second->memory;
  auto segment = memory.around(pointer);
  if (segment == memory.all().end()) return std::nullopt;
  return std::pair{reinterpret_cast<void*>(segment->first), segment->second.bytes};
}

// --- allocation ----------------------------------------------------------------------------------

Result<void*> Pools::allocate(Engine& engine, int device, size_t bytes, cudaStream_t stream) {
  std::shared_ptr<Pool> pool;
  SegmentEvent made;
  void* block = nullptr;
  {
    std::lock_guard lock(mutex_);
    for (auto filter = filters_.rbegin(); filter != filters_.rend() && !pool; ++filter)
      if (filter->pool->device == device && filter->wants(stream)) pool = filter->pool;
    if (!pool) return static_cast<void*>(nullptr);
    settle_waiting(engine, *pool);
    block = take(engine, pool, bytes, stream);
    if (!block && !pool->allocator) {
      if (Result<void*> added = add_segment(engine, pool, bytes, stream, made); !added)
        return added;
      block = take(engine, pool, bytes, stream);
    }
  }
  while (!block) {  // (another thread may have taken what was added)
    const size_t size = PoolSegments::segment_bytes(bytes);
    void* address = pool->allocator->raw_alloc_with_stream(size, stream);
    if (!address)
      return make_error(Code::out_of_memory, 0, "the MemPool's own allocator refused memory");
    const bool large = PoolSegments::is_large(bytes);
    engine.count({PartEvent::Kind::foreign_made, size > PoolSegments::small_segment, address,
                  static_cast<int64_t>(size)});
    std::lock_guard lock(mutex_);
    pool->memory.add(address, size, stream, large);
    segments_[reinterpret_cast<PoolSegments::Address>(address)] = pool;
    made = {true, device, pool->id, true, address, size, stream};
    block = take(engine, pool, bytes, stream);
  }
  if (made.made && on_segment_) on_segment_(made);
  return block;
}

void* Pools::borrow(Engine& engine, int device, size_t bytes, cudaStream_t stream) {
  std::lock_guard lock(mutex_);
  for (const auto& [key, pool] : pools_) {
    if (!pool->use_on_oom || pool->device != device) continue;
    settle_waiting(engine, *pool);
    if (void* block = take(engine, pool, bytes, stream)) return block;
  }
  return nullptr;
}

void* Pools::take(Engine& engine, const std::shared_ptr<Pool>& pool, size_t bytes,
                  cudaStream_t stream) {
  void* address = pool->memory.take(bytes, stream, pool->no_split);
  if (!address) return nullptr;
  note_block(engine, pool, address, *pool->memory.used(address), stream);
  count_inactive(&engine, *pool);
  return address;
}

/// A piece came into use.
void Pools::note_block(Engine& engine, const std::shared_ptr<Pool>& pool, void* address,
                       const PoolSegments::Piece& piece, cudaStream_t stream) {
  const size_t bytes = piece.bytes;
  blocks_[address] = {pool, stream, bytes, piece.requested};
  engine.count({PartEvent::Kind::allocated, pool->memory.around(address)->second.large, address,
                static_cast<int64_t>(bytes), static_cast<int64_t>(piece.requested)});
}

Result<void*> Pools::add_segment(Engine& engine, const std::shared_ptr<Pool>& pool, size_t bytes,
                                 cudaStream_t stream, SegmentEvent& made) {
  const bool large = PoolSegments::is_large(bytes);
  constexpr size_t granule = PoolSegments::granule;
  size_t size = PoolSegments::segment_bytes(bytes);
  Result<void*> address = engine.allocate_segment(size, stream, !large, pin_reason);
  // Where memory is short, only the bytes asked for.
  const size_t least = (PoolSegments::rounded(bytes) + granule - 1) / granule * granule;
  if (!address && address.error().code == Code::out_of_memory && least < size) {
    size = least;
    address = engine.allocate_segment(size, stream, !large, pin_reason);
  }
  if (!address) return address;
  pool->memory.add(*address, size, stream, large);
  segments_[reinterpret_cast<PoolSegments::Address>(*address)] = pool;
  made = {true, pool->device, pool->id, false, *address, size, stream};
  return address;
}

}  // namespace firn::pytorch
