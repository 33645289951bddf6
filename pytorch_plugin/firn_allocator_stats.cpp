// torch.cuda.memory_stats(), snapshots, the allocation log.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <map>
#include <unordered_set>

#include "pytorch_plugin/firn_allocator.h"

namespace firn::pytorch {

namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::SegmentInfo;

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

/// torch's tools add up sizes to find addresses: gaps between blocks are listed as free.
void add_gap(SegmentInfo& segment, size_t end) {
  size_t next = segment.address;
  for (const auto& block : segment.blocks) next += block.size;
  if (next >= end) return;
  c10::CachingDeviceAllocator::BlockInfo gap;
  gap.size = end - next;
  segment.blocks.push_back(std::move(gap));
}

/// The next block by address.
void add_block(SegmentInfo& segment, size_t address,
               c10::CachingDeviceAllocator::BlockInfo&& block) {
  add_gap(segment, address);
  if (block.allocated) {
    segment.allocated_size += block.size;
    segment.requested_size += block.requested_size;
  }
  if (block.active) segment.active_size += block.size;
  segment.blocks.push_back(std::move(block));
}

}  // namespace

c10::CachingDeviceAllocator::DeviceStats FirnAllocator::getDeviceStats(c10::DeviceIndex device) {
  check_device(device);
  c10::CachingDeviceAllocator::DeviceStats out;
  out.max_split_size =
      static_cast<int64_t>(c10::CachingAllocator::AcceleratorAllocatorConfig::max_split_size());
  Engine* engine = engine_if_open(device);
  if (!engine) return out;
  PoolTallies tallies = engine->tallies();
  if (tallies.active[0].current != tallies.allocation[0].current) {
    engine->pump();  // blocks that wait for other streams may have waited long enough
    pools_.settle(*engine, device);
    tallies = engine->tallies();
  }
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

void FirnAllocator::check_device(c10::DeviceIndex device) const {
  TORCH_CHECK(device >= 0 && device < device_count_, "Allocator not initialized for device ",
              static_cast<int>(device), ": did you call init?");
}

void FirnAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  check_device(device);
  if (Engine* engine = engine_if_open(device)) engine->reset_totals();
}

void FirnAllocator::resetPeakStats(c10::DeviceIndex device) {
  check_device(device);
  if (Engine* engine = engine_if_open(device)) engine->reset_peaks();
}

/// A large block is a segment of its own; small ones are listed under the segment they share, and
/// so are a pool's, and those in planned places.
void FirnAllocator::add_segments(Engine& engine, c10::DeviceIndex device, c10::MempoolId_t pool,
                                 std::vector<SegmentInfo>& out) {
  const bool all = pool == c10::MempoolId_t{0, 0};
  std::map<size_t, SegmentInfo> segments;
  auto segment_at = [&](size_t base, size_t bytes, void* stream, bool large) -> SegmentInfo& {
    SegmentInfo& segment = segments[base];
    segment.device = device;
    segment.address = base;
    segment.stream = static_cast<cudaStream_t>(stream);
    segment.is_large = large;
    segment.total_size = bytes;
    return segment;
  };
  // Before the engine's: a segment that a pool gives back meanwhile is then seen once.
  const std::vector<Pools::SegmentOf> pooled = pools_.segments(device);
  std::unordered_set<const void*> of_pools;
  for (const Pools::SegmentOf& each : pooled) {
    of_pools.insert(each.address);
    if (!all && each.pool != pool) continue;
    const auto base = reinterpret_cast<size_t>(each.address);
    SegmentInfo& segment =
        segment_at(base, each.what.bytes, each.what.stream, each.what.large);
    segment.owner_private_pool_id = each.pool;
    if (each.what.pieces.size() == 1)
      segment.context_when_allocated = log_.context_of_segment(each.address);
    for (const auto& [offset, piece] : each.what.pieces) {
      auto* address = reinterpret_cast<void*>(base + offset);
      c10::CachingDeviceAllocator::BlockInfo info;
      info.size = piece.bytes;
      info.requested_size = piece.requested;
      info.active = piece.used;
      info.allocated = piece.used && !each.waiting.count(address);
      if (info.active) info.context_when_allocated = log_.context_of(address);
      add_block(segment, base + offset, std::move(info));
    }
  }
  std::vector<BlockInfo> blocks;
  if (all) blocks = engine.blocks();
  std::sort(blocks.begin(), blocks.end(),
            [](const BlockInfo& a, const BlockInfo& b) { return a.base < b.base; });
  for (const BlockInfo& block : blocks) {
    if (of_pools.count(block.base)) continue;
    const auto address = reinterpret_cast<size_t>(block.base);
    const auto shared = reinterpret_cast<size_t>(block.segment);
    SegmentInfo& segment =
        block.small ? segment_at(address / segment_bytes * segment_bytes, segment_bytes,
                                 block.stream, false)
        : shared    ? segment_at(shared, block.segment_bytes, block.stream, true)
                    : segment_at(address, block.capacity, block.stream, true);
    // As natively, a segment that is cut does not say who asked for it first.
    if (!block.small && !shared)
      segment.context_when_allocated = log_.context_of_segment(block.base);
    c10::CachingDeviceAllocator::BlockInfo info;
    info.size = block.bytes;
    info.requested_size = block.requested_bytes;
    info.allocated = block.live;
    info.active = block.live || block.waiting;
    info.context_when_allocated = log_.context_of(block.base);
    add_block(segment, address, std::move(info));
  }
  for (auto& [base, segment] : segments) {
    add_gap(segment, base + segment.total_size);
    out.push_back(std::move(segment));
  }
}

native::SnapshotInfo FirnAllocator::snapshot(c10::MempoolId_t pool, bool include_traces) {
  native::SnapshotInfo out;
  out.config_metadata = config_info();
  for (int device = 0; device < device_count_; ++device) {
    const auto index = static_cast<c10::DeviceIndex>(device);
    Engine* engine = engine_if_open(index);
    if (!engine) continue;
    engine->pump();
    pools_.settle(*engine, index);
    log_.settle();
    add_segments(*engine, index, pool, out.segments);
  }
  out.external_annotations = log_.annotations();
  using Traces = std::vector<std::vector<AllocationLog::TraceEntry>>;
  out.device_traces = include_traces ? log_.traces(device_count_) : Traces(device_count_);
  // As torch does: a snapshot is in the log that the next one shows.
  for (int device = 0; device < device_count_ && log_.noting(); ++device)
    if (Engine* engine = engine_if_open(static_cast<c10::DeviceIndex>(device)))
      log_.note({AllocationLog::TraceEntry::SNAPSHOT, device, nullptr,
                 static_cast<size_t>(engine->tallies().active_bytes[0].current), nullptr,
                 pool});
  return out;
}

/// Where the block around `pointer` was allocated, as far as the log has it.
std::shared_ptr<c10::GatheredContext> FirnAllocator::getContextForPointer(const void* pointer) {
  Runtime* runtime = Runtime::get();
  Engine* engine = runtime ? runtime->around(pointer) : nullptr;
  std::optional<BlockInfo> block = engine ? engine->find(pointer) : std::nullopt;
  return block ? log_.context_of(block->base) : nullptr;
}

void FirnAllocator::recordAnnotation(
    const std::vector<std::pair<std::string, std::string>>& words) {
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  log_.annotate(device, words);
}

/// For torch 2.14 and later, which have a name for such entries.
void FirnAllocator::annotateMemory([[maybe_unused]] const void* pointer,
                                   [[maybe_unused]] const std::string& words) {
#if FIRN_TORCH_AT_LEAST(2, 14)
  Runtime* runtime = Runtime::get();
  Engine* engine = runtime && log_.enabled() ? runtime->around(pointer) : nullptr;
  std::optional<BlockInfo> block = engine ? engine->find(pointer) : std::nullopt;
  if (!block) return;
  const size_t in_pool = pools_.any() ? pools_.requested_bytes(pointer) : 0;
  log_.annotate_block({AllocationLog::TraceEntry::ANNOTATE, engine->stats().device, pointer,
                       in_pool ? in_pool : block->requested_bytes, block->stream,
                       pools_.pool_of(pointer)},
                      words);
#endif
}

void FirnAllocator::attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) {
  if (Runtime* runtime = Runtime::get())
    runtime->note_unseen("an allocator trace tracker: it hears only of private pools' segments "
                         "(NCCL copies from others instead of registering them)");
  log_.add_tracker(std::move(tracker));
}

void FirnAllocator::recordHistory(bool enabled, native::CreateContextFn recorder,
                                  size_t entries_most, native::RecordContext when, bool clear,
                                  const std::vector<std::string>& skip) {
  TORCH_CHECK(when == native::RecordContext::NEVER || recorder, "stack traces need a recorder");
  log_.set(enabled, recorder, entries_most, when, clear, skip);
}

}  // namespace firn::pytorch
