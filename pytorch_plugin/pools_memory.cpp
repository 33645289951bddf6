// Frees in pools, and when their memory can be used again; checkpoints; snapshots.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "pytorch_plugin/pools.h"
#include "pytorch_plugin/torch_stream.h"

namespace firn::pytorch {

void Pools::count_inactive(Engine* engine, Pool& pool) {
  for (const bool large : {false, true}) {
    const PoolSegments::Inactive now = pool.memory.inactive(large);
    PoolSegments::Inactive& told = pool.told[large];
    if (engine && (now.pieces != told.pieces || now.bytes != told.bytes))
      engine->count({PartEvent::Kind::inactive, large, nullptr, now.bytes - told.bytes, 0,
                     now.pieces - told.pieces});
    told = now;
  }
}

std::optional<Pools::Freed> Pools::to_free(const void* pointer) {
  {
    std::lock_guard lock(mutex_);
    auto found = blocks_.find(pointer);
    if (found != blocks_.end() && !found->second.waiting) {
      const Block& block = found->second;
      return Freed{block.pool->device, block.requested, block.stream, block.pool->id,
                   !block.recorded.empty()};
    }
    for (const auto& [key, pool] : pools_) pool->inputs.erase(pointer);
  }
  // The engine's block there is the pool's segment: not one that could be freed from outside.
  TORCH_CHECK(!segment_around(pointer), "invalid device pointer: ", pointer, " (freed before)");
  return std::nullopt;
}

void Pools::put_free(Engine* engine, Pool& pool, void* address) {
  auto found = blocks_.find(address);
  Block& block = found->second;
  for (cudaEvent_t event : block.events) (void)cudaEventDestroy(event);
  const bool large = pool.memory.around(address)->second.large;
  const auto bytes = static_cast<int64_t>(block.bytes);
  if (engine)
    engine->count({block.waiting ? PartEvent::Kind::waited : PartEvent::Kind::freed, large, address,
                   bytes, static_cast<int64_t>(block.requested)});
  blocks_.erase(found);
  pool.memory.give(address);
  count_inactive(engine, pool);
}

void Pools::free(Engine* engine, void* pointer) {
  std::shared_ptr<Pool> pool;
  Given given;
  {
    std::lock_guard lock(mutex_);
    Block& block = blocks_.at(pointer);
    pool = block.pool;
    if (!block.recorded.empty() && pool->released) {
      (void)cudaDeviceSynchronize();  // no capture goes on in a pool that was released
      block.recorded.clear();
    }
    if (block.recorded.empty()) {
      put_free(engine, *pool, pointer);
    } else {
      const bool large = pool->memory.around(pointer)->second.large;
      const auto bytes = static_cast<int64_t>(block.bytes);
      if (engine) {
        engine->count({PartEvent::Kind::waits, large, pointer, bytes});
        engine->count({PartEvent::Kind::freed, large, pointer, bytes,
                       static_cast<int64_t>(block.requested)});
      }
      block.waiting = true;
      pool->waiting.push_back(pointer);
    }
    if (pool->released) given = take_unused(*pool);
  }
  give_back(engine, pool->allocator, given);
}

bool Pools::record_stream(const void* pointer, cudaStream_t stream) {
  std::lock_guard lock(mutex_);
  auto found = blocks_.find(pointer);
  if (found == blocks_.end()) return false;
  Block& block = found->second;
  if (stream != block.stream &&
      std::find(block.recorded.begin(), block.recorded.end(), stream) == block.recorded.end())
    block.recorded.push_back(stream);
  return true;
}

void Pools::settle(Engine& engine, int device) {
  if (!any()) return;
  std::lock_guard lock(mutex_);
  for (const auto& [key, pool] : pools_)
    if (pool->device == device) settle_waiting(engine, *pool);
}

/// Frees blocks that waited for other streams. Events for those streams' work are recorded here,
/// once none of these streams is being captured: memory that a capture uses is reused only after
/// it.
void Pools::settle_waiting(Engine& engine, Pool& pool) {
  auto capturing = [](cudaStream_t stream) {
    return capture_status(stream) != cudaStreamCaptureStatusNone;
  };
  // Another stream's capture may forbid event queries, though it does not matter here.
  std::optional<c10::cuda::CUDAStreamCaptureModeGuard> relaxed;
  if (!pool.waiting.empty()) relaxed.emplace(cudaStreamCaptureModeRelaxed);
  for (size_t i = 0; i < pool.waiting.size();) {
    Block& block = blocks_.at(pool.waiting[i]);
    bool later = capturing(block.stream);
    for (cudaStream_t stream : block.recorded) later |= capturing(stream);
    if (!later && block.events.empty())
      for (cudaStream_t stream : block.recorded) {
        cudaEvent_t event = nullptr;
        C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        block.events.push_back(event);
        C10_CUDA_CHECK(cudaEventRecord(event, stream));
      }
    for (size_t k = 0; k < block.events.size() && !later; ++k) {
      const cudaError_t over = cudaEventQuery(block.events[k]);
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
    put_free(&engine, pool, pool.waiting[i]);
    pool.waiting.erase(pool.waiting.begin() + static_cast<ptrdiff_t>(i));
  }
}

// --- checkpoints, snapshots ----------------------------------------------------------------------

std::shared_ptr<PoolState> Pools::checkpoint(int device, PoolId id) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Pool> pool = known(device, id);
  for (const auto& [address, block] : blocks_)
    TORCH_CHECK(block.pool != pool || block.recorded.empty(),
                "Checkpointing a block that other streams use");
  auto state = std::make_shared<PoolState>();
  state->id = id;
  state->segments = pool->memory.all();
  return state;
}

Pools::Delta Pools::restore(Engine& engine, int device, const PoolState& state) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Pool> pool = known(device, state.id);
  settle_waiting(engine, *pool);
  TORCH_CHECK(pool->waiting.empty(),
              "setCheckpointPoolState: blocks of the pool wait for other streams");
  for (const auto& [base, segment] : state.segments) {
    auto now = pool->memory.all().find(base);
    TORCH_CHECK(now != pool->memory.all().end() && now->second.bytes == segment.bytes,
                "setCheckpointPoolState: ", reinterpret_cast<void*>(base),
                " is no longer the pool's");
  }
  Delta delta;
  for (const auto& [address, block] : blocks_)
    if (block.pool == pool) delta.freed.push_back(const_cast<void*>(address));
  for (void* block : delta.freed) put_free(&engine, *pool, block);
  for (const auto& [base, segment] : state.segments) {
    pool->memory.cut_like(base, segment);
    for (const auto& [offset, piece] : segment.pieces) {
      if (!piece.used) continue;
      auto* address = reinterpret_cast<void*>(base + offset);
      note_block(engine, pool, address, piece, static_cast<cudaStream_t>(segment.stream));
      delta.allocated.push_back(address);
    }
  }
  count_inactive(&engine, *pool);
  return delta;
}

std::vector<Pools::SegmentOf> Pools::segments(int device) {
  std::vector<SegmentOf> out;
  if (!any()) return out;
  std::lock_guard lock(mutex_);
  for (const auto& [base, pool] : segments_)
    if (pool->device == device)
      out.push_back({device, pool->id, pool->allocator != nullptr, reinterpret_cast<void*>(base),
                     pool->memory.all().at(base),
                     {pool->waiting.begin(), pool->waiting.end()}});
  return out;
}

}  // namespace firn::pytorch
