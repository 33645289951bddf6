// PyTorch's CUDA allocator on Firn's engines: everything that torch can ask of one. (Not derived
// from torch's pluggable allocator, whose copy_data() is final and reads memory that may be away.)
//
// Owns: private pools, observers. Locks: one for those two; none on the way to an allocation, and
// none is held when a callback of PyTorch's (which may take the GIL) is called.
#pragma once

#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "allocator/runtime/runtime.h"
#include "pytorch_plugin/allocation_log.h"
#include "pytorch_plugin/pools.h"
#include "pytorch_plugin/torch_releases.h"

namespace firn::pytorch {

class FirnAllocator final : public CudaAllocatorOfAllReleases {
 public:
  /// `conf` is parsed and acted on when CUDA starts, in init().
  explicit FirnAllocator(std::string conf);

  // firn_allocator.cpp
  c10::DataPtr allocate(size_t bytes) override;
  void* raw_alloc(size_t bytes) override;
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* pointer) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void init(int device_count) override;
  bool initialized() override;
  void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) override;
  void* getBaseAllocation(void* pointer, size_t* bytes) override;
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                          cudaStream_t stream, bool p2p_enabled) override;
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex other) override;
  void copy_data(void* to, const void* from, size_t bytes) const override;
  std::string name() override { return "firn"; }
  Pools& pools() { return pools_; }
  /// That of storages whose memory is Firn's, or a pool's.
  static c10::DeleterFnPtr deleter_of_blocks();
  /// Whether the storage is such a one: it begins where its block does, and ends with it.
  static bool made(const c10::StorageImpl& storage) {
    return storage.data_ptr().get_deleter() == deleter_of_blocks();
  }

  // firn_allocator_limits.cpp
  double getMemoryFraction(c10::DeviceIndex device) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  void enable(bool value) override { enabled_ = value; }
  bool isEnabled() const override { return enabled_; }
  void emptyCache(c10::MempoolId_t pool) override;
  void cacheInfo(c10::DeviceIndex device, size_t* largest) override;
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override;
  /// Nothing to report: an allocation beyond the budget is out of memory, never rejected before.
  void attachOomRejectionObserver(OomRejectionObserver) override {}
  /// Empty: Firn has no segments that grow.
  std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex) override {
    return {};
  }

  // firn_allocator_ipc.cpp
  native::ShareableHandle shareIpcHandle(void* pointer) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;

  // firn_allocator_stats.cpp
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  native::SnapshotInfo snapshot(c10::MempoolId_t pool, bool include_traces) override;
  bool isHistoryEnabled() override { return log_.enabled(); }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* pointer) override;
  void recordHistory(bool enabled, native::CreateContextFn recorder, size_t entries_most,
                     native::RecordContext when, bool clear,
                     const std::vector<std::string>& skip) override;

  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& words) override;
  void pushCompileContext(std::string& words) override { log_.push_compile_context(words); }
  void popCompileContext() override { log_.pop_compile_context(); }
  bool supportsUserMetadata() override { return true; }
  void setUserMetadata(const std::string& words) override { log_.set_user_metadata(words); }
  std::string getUserMetadata() override { return log_.user_metadata(); }
  void annotateMemory(const void* pointer, const std::string& words) override;
  void attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) override;

  // firn_allocator_pools.cpp: private pools (CUDA graphs, torch.cuda.MemPool), see pools.h
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                          std::shared_ptr<native::CUDAAllocator> allocator) override;
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use) override;
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override;
  std::shared_ptr<native::AllocatorState> getCheckpointState(c10::DeviceIndex device,
                                                             c10::MempoolId_t pool) override;
  native::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device, std::shared_ptr<native::AllocatorState> state) override;

 private:
  void* take(size_t bytes, c10::DeviceIndex device, cudaStream_t stream,
             Told told = Told::unknown);
  void* try_again(Engine& engine, size_t bytes, c10::DeviceIndex device, cudaStream_t stream,
                  Told told);
  void give_back(void* pointer);
  void give_back_to_pool(void* pointer, const Pools::Freed& what);
  void note_free(const AllocationLog::Event& event, bool waits);
  /// A live block's bytes, as statistics count them.
  int64_t bytes_of(const Engine& engine, const void* pointer);
  bool ours(const void* pointer);
  void check_device(c10::DeviceIndex device) const;
  void add_segments(Engine& engine, c10::DeviceIndex device, c10::MempoolId_t pool,
                    std::vector<c10::CachingDeviceAllocator::SegmentInfo>& out);
  Engine& engine(c10::DeviceIndex device);
  Engine* engine_if_open(c10::DeviceIndex device) const;
  Engine& open_engine(c10::DeviceIndex device);
  void apply_fraction(Engine& engine, c10::DeviceIndex device);
  [[noreturn]] void out_of_memory(Engine& engine, size_t bytes, c10::DeviceIndex device,
                                  const Error& error);

  const std::string conf_;
  bool initialized_ = false;
  int device_count_ = 0;
  std::atomic<bool> enabled_{true};  // else memory comes from the driver and goes back to it
  std::array<std::atomic<double>, C10_COMPILE_TIME_MAX_GPUS> fraction_;
  std::array<std::atomic<uint64_t>, C10_COMPILE_TIME_MAX_GPUS> budget_bytes_{};  // as opened
  std::atomic<bool> launches_are_seen_{false};  // Firn is in front of the driver
  std::mutex mutex_;
  std::vector<native::OutOfMemoryObserver> observers_;
  Pools pools_;
  AllocationLog log_;
  std::vector<std::unique_ptr<EngineObserver>> engine_observers_;  // of those that are open
};

/// Makes FirnAllocator the process's CUDA allocator. Throws c10::Error when CUDA has started.
void install_allocator(const std::string& conf);
/// Whether the process ends: CUDA is not to be called any more.
bool exit_has_begun();
/// The installed one, or null.
FirnAllocator* installed_allocator();

}  // namespace firn::pytorch
