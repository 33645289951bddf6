// torch.cuda.memory_stats(), snapshots, history.
#include <map>

#include "pytorch_plugin/firn_allocator.h"

namespace firn::pytorch {

namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;

StatArray convert(const Tally (&tallies)[3]) {
  StatArray out;
  for (size_t i = 0; i < out.size(); ++i) {
    out[i].current = tallies[i].current;
    out[i].peak = tallies[i].peak;
    out[i].allocated = tallies[i].allocated;
    out[i].freed = tallies[i].freed;
  }
  return out;
}

native::AllocatorConfigInfo config_info() {
  using Settings = c10::CachingAllocator::AcceleratorAllocatorConfig;
  using Cuda = native::CUDAAllocatorConfig;
  native::AllocatorConfigInfo info{};
  info.garbage_collection_threshold = Settings::garbage_collection_threshold();
  info.max_split_size = Settings::max_split_size();
  info.pinned_num_register_threads = Cuda::pinned_num_register_threads();
  info.expandable_segments = Settings::use_expandable_segments();
  info.release_lock_on_malloc = Cuda::release_lock_on_cudamalloc();
  info.pinned_use_host_register = Cuda::pinned_use_cuda_host_register();
  info.graph_capture_record_stream_reuse = Cuda::graph_capture_record_stream_reuse();
  info.last_allocator_settings = Settings::last_allocator_settings();
  info.roundup_power2_divisions = Settings::roundup_power2_divisions();
  return info;
}

constexpr size_t segment_bytes = 2u << 20;  // small blocks share segments of this size

}  // namespace

c10::CachingDeviceAllocator::DeviceStats FirnAllocator::getDeviceStats(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < device_count_, "Allocator not initialized for device ",
              static_cast<int>(device), ": did you call init?");
  c10::CachingDeviceAllocator::DeviceStats out;
  out.max_split_size =
      static_cast<int64_t>(c10::CachingAllocator::AcceleratorAllocatorConfig::max_split_size());
  Engine* engine = engine_if_open(device);
  if (!engine) return out;
  const PoolTallies tallies = engine->tallies();
  const EngineStats stats = engine->stats();
  out.allocation = convert(tallies.allocation);
  out.segment = convert(tallies.segment);
  out.active = convert(tallies.active);
  out.inactive_split = convert(tallies.inactive_split);
  out.allocated_bytes = convert(tallies.allocated_bytes);
  out.reserved_bytes = convert(tallies.reserved_bytes);
  out.active_bytes = convert(tallies.active_bytes);
  out.inactive_split_bytes = convert(tallies.inactive_split_bytes);
  out.requested_bytes = convert(tallies.requested_bytes);
  out.num_alloc_retries = static_cast<int64_t>(stats.retry_count);
  out.num_ooms = static_cast<int64_t>(stats.oom_count);
  out.num_device_alloc = tallies.segment[0].allocated;
  out.num_device_free = tallies.segment[0].freed;
  return out;
}

void FirnAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  if (Engine* engine = engine_if_open(device)) engine->reset_totals();
}

void FirnAllocator::resetPeakStats(c10::DeviceIndex device) {
  if (Engine* engine = engine_if_open(device)) engine->reset_peaks();
}

/// A large block is a segment of its own; small ones are listed under the segment they share.
native::SnapshotInfo FirnAllocator::snapshot(c10::MempoolId_t pool, bool include_traces) {
  native::SnapshotInfo out;
  out.config_metadata = config_info();
  const bool all = pool.first == 0 && pool.second == 0;
  for (int device = 0; device < device_count_; ++device) {
    Engine* engine = engine_if_open(static_cast<c10::DeviceIndex>(device));
    if (!engine) continue;
    std::map<size_t, c10::CachingDeviceAllocator::SegmentInfo> segments;
    std::map<size_t, size_t> block_address;
    std::vector<BlockInfo> blocks = engine->blocks();
    std::sort(blocks.begin(), blocks.end(),
              [](const BlockInfo& a, const BlockInfo& b) { return a.base < b.base; });
    for (const BlockInfo& block : blocks) {
      const auto address = reinterpret_cast<size_t>(block.base);
      const PoolId owner = pools_.pool_of(block.base);
      if (!all && owner != pool) continue;
      const size_t base = block.small ? address / segment_bytes * segment_bytes : address;
      auto& segment = segments[base];
      segment.device = static_cast<c10::DeviceIndex>(device);
      segment.address = base;
      segment.stream = block.stream;
      segment.is_large = !block.small;
      segment.owner_private_pool_id = owner;
      segment.total_size = block.small ? segment_bytes : block.bytes;
      c10::CachingDeviceAllocator::BlockInfo info;
      info.size = block.bytes;
      info.requested_size = block.live ? block.requested_bytes : 0;
      info.allocated = info.active = block.live;
      info.context_when_allocated = history_.context_of(block.base);
      // torch's tools add up sizes to find addresses: name what lies between as free.
      size_t& next = block_address.try_emplace(base, base).first->second;
      if (next < address) {
        c10::CachingDeviceAllocator::BlockInfo gap;
        gap.size = address - next;
        segment.blocks.push_back(gap);
      }
      next = address + block.bytes;
      if (block.live) {
        segment.allocated_size += block.bytes;
        segment.active_size += block.bytes;
        segment.requested_size += block.requested_bytes;
      }
      segment.blocks.push_back(std::move(info));
    }
    for (auto& [base, segment] : segments) {
      if (const size_t end = base + segment.total_size, next = block_address[base]; next < end) {
        c10::CachingDeviceAllocator::BlockInfo gap;
        gap.size = end - next;
        segment.blocks.push_back(gap);
      }
      out.segments.push_back(std::move(segment));
    }
  }
  out.device_traces = include_traces ? history_.traces(device_count_)
                                     : std::vector<std::vector<History::Entry>>(device_count_);
  return out;
}

void FirnAllocator::recordHistory(bool enabled, native::CreateContextFn recorder,
                                  size_t entries_most, native::RecordContext when, bool clear,
                                  const std::vector<std::string>& skip) {
  TORCH_CHECK(when == native::RecordContext::NEVER || recorder, "no recorder of stack traces");
  history_.set(enabled, recorder, entries_most, when, clear, skip);
}

}  // namespace firn::pytorch
