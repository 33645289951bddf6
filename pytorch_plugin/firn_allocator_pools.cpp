// Private pools: torch's calls, and checkpoints of their state.
#include "pytorch_plugin/firn_allocator.h"
#include "pytorch_plugin/observer.h"

namespace firn::pytorch {

void FirnAllocator::beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                                        std::function<bool(cudaStream_t)> filter) {
  // A graph that is captured now may be replayed when memory is short.
  install_observer(false);
  pools_.begin(device, pool, std::move(filter));
}

void FirnAllocator::endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  pools_.end(device, pool);
}

void FirnAllocator::releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  pools_.release(engine_if_open(device), device, pool);
}

int FirnAllocator::getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) {
  return pools_.use_count(device, pool);
}

void FirnAllocator::createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                                       std::shared_ptr<native::CUDAAllocator> allocator) {
  pools_.add_use(device, pool, std::move(allocator));
}

void FirnAllocator::setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use) {
  pools_.set_use_on_oom(device, pool, use);
}

void FirnAllocator::setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) {
  pools_.set_no_split(device, pool);
}

bool FirnAllocator::checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                             const std::unordered_set<void*>& expected) {
  return pools_.live(device, pool) == expected;
}

std::shared_ptr<native::AllocatorState> FirnAllocator::getCheckpointState(
    c10::DeviceIndex device, c10::MempoolId_t pool) {
  return pools_.checkpoint(device, pool);
}

native::CheckpointDelta FirnAllocator::setCheckpointPoolState(
    c10::DeviceIndex device, std::shared_ptr<native::AllocatorState> state) {
  const auto* ours = dynamic_cast<const PoolState*>(state.get());
  TORCH_CHECK(ours, "setCheckpointPoolState: not a state of a Firn pool");
  Pools::Delta delta = pools_.restore(engine(device), device, *ours);
  native::CheckpointDelta out;
  out.ptrs_freed = std::move(delta.freed);
  for (void* block : delta.allocated)
    out.dataptrs_allocd.emplace_back(block, block, raw_deleter(),
                                     c10::Device(c10::kCUDA, device));
  return out;
}

}  // namespace firn::pytorch
