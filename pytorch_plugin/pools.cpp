#include "pytorch_plugin/pools.h"

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

void Pools::add_use(int device, PoolId pool) {
  std::lock_guard lock(mutex_);
  ++make(device, pool)->uses;
}

void Pools::give_free(Engine& engine, Pool& pool) {
  for (const auto& [key, block] : pool.free) {
    members_.erase(block);
    Result<void> freed = engine.unpin(block);
    if (freed) freed = engine.free(block);
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
  if (engine && !pool->free.empty()) (void)cudaDeviceSynchronize();
  std::lock_guard lock(mutex_);
  if (engine) give_free(*engine, *pool);
  settle();
}

int Pools::use_count(int device, PoolId pool) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Pool> found = find(device, pool);
  return found ? found->uses : 0;
}

std::unordered_set<void*> Pools::live(int device, PoolId pool) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Pool> found = find(device, pool);
  return found ? found->live : std::unordered_set<void*>{};
}

PoolId Pools::pool_of(const void* pointer) {
  if (!any()) return {0, 0};
  std::lock_guard lock(mutex_);
  auto found = members_.find(pointer);
  return found == members_.end() ? PoolId{0, 0} : found->second.pool->id;
}

Result<void*> Pools::allocate(Engine& engine, int device, size_t bytes, cudaStream_t stream) {
  std::unique_lock lock(mutex_);
  std::shared_ptr<Pool> pool;
  for (auto filter = filters_.rbegin(); filter != filters_.rend() && !pool; ++filter)
    if (filter->pool->device == device && filter->wants(stream)) pool = filter->pool;
  if (!pool) return static_cast<void*>(nullptr);
  // The smallest that fits, as long as no more than half of it is wasted.
  const size_t size = rounded(bytes);
  auto found = pool->free.lower_bound({stream, size});
  if (found != pool->free.end() && found->first.first == stream &&
      found->first.second / 2 <= size) {
    void* block = found->second;
    pool->free.erase(found);
    pool->live.insert(block);
    return block;
  }
  Result<void*> block = engine.allocate(size, stream);
  if (!block) return block.error();
  if (Result<void> pinned = engine.pin(*block, pin_reason); !pinned) {
    (void)engine.free(*block);
    return pinned.error();
  }
  pool->live.insert(*block);
  members_[*block] = {pool, stream, size};
  return *block;
}

bool Pools::free(Engine& engine, void* pointer) {
  std::lock_guard lock(mutex_);
  auto found = members_.find(pointer);
  if (found == members_.end()) return false;
  Member member = found->second;
  TORCH_CHECK(member.pool->live.erase(pointer) == 1, "invalid device pointer: ", pointer,
              " (freed before)");
  member.pool->free.insert({{member.stream, member.bytes}, pointer});
  if (member.pool->released) {
    give_free(engine, *member.pool);
    settle();
  }
  return true;
}

}  // namespace firn::pytorch
