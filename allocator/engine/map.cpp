// Mapping: a large block's addresses are split into spans of at most a large frame, and each is
// mapped and unmapped as one. Failing driver calls leave nothing half done.
#include <algorithm>

#include "allocator/base/check.h"
#include "allocator/engine/engine_impl.h"

namespace firn {

/// The calls alone: no lock is needed. Frames mapped before one failed stay mapped.
EngineImpl::MapCalls EngineImpl::call_map(uint64_t address, const std::vector<Frame>& frames,
                                          const std::vector<CUmemAccessDesc>& access) const {
  MapCalls calls;
  uint64_t at = address;
  calls.entry = "cuMemMap";
  for (const Frame& frame : frames) {
    calls.result = driver_.mem_map(at, frame.bytes(), 0, frame.handle, 0);
    if (calls.result != CUDA_SUCCESS) return calls;
    ++calls.mapped;
    at += frame.bytes();
  }
  calls.entry = "cuMemSetAccess";
  const CopyGate::Closed closed(transfers_.gate());
  calls.result = driver_.mem_set_access(address, at - address, access.data(), access.size());
  return calls;
}

/// Maps frames side by side from `address` on, and opens them to the device.
Result<void> EngineImpl::map_at(uint64_t address, const std::vector<Frame>& frames) {
  if (health_.dead()) return health_.error();  // something may be mapped there still
  const MapCalls calls = call_map(address, frames, access_);
  counted_.maps += calls.mapped;
  if (calls.result == CUDA_SUCCESS) return {};
  const Error error = health_.failed(calls.entry, calls.result);
  unmap_at(address, {frames.begin(), frames.begin() + static_cast<ptrdiff_t>(calls.mapped)});
  return error;
}

/// Unmaps what lies side by side from `address` on, in one call. A dead device's mappings are left
/// to the end of its context.
void EngineImpl::unmap_at(uint64_t address, const std::vector<Frame>& frames) {
  counted_.unmaps += frames.size();
  size_t bytes = 0;
  for (const Frame& frame : frames) bytes += frame.bytes();
  if (bytes == 0 || health_.dead()) return;
  const CUresult result = call_unmap(address, bytes);
  if (result != CUDA_SUCCESS) health_.end("cuMemUnmap", result);
}

/// The call alone, as call_map(): a refusal is retried, unless it is permanent.
CUresult EngineImpl::call_unmap(uint64_t address, size_t bytes) const {
  for (int attempt = 0;; ++attempt) {
    const CUresult result = driver_.mem_unmap(address, bytes);
    if (result == CUDA_SUCCESS || attempt == 2 || DeviceHealth::stays(result)) return result;
  }
}

CUmemAccessDesc EngineImpl::access_of(int device) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

Result<void> EngineImpl::allow_peer(int device) {
  Entered context(*this);
  if (Result<void> usable = can_use(context); !usable) return usable;
  Lock lock(mutex_);
  for (const CUmemAccessDesc& known : access_)
    if (known.location.id == device) return {};
  const CUmemAccessDesc access = access_of(device);
  auto open = [&](uint64_t address, uint64_t bytes) -> Result<void> {
    CUresult result = driver_.mem_set_access(address, bytes, &access, 1);
    if (result == CUDA_SUCCESS) return {};
    return driver_.error("cuMemSetAccess for a peer", result);
  };
  for (const Block* block : live_)
    for (const Span& span : block->spans)
      if (span.mapped())
        if (Result<void> opened = open(block->base() + span.begin * page_bytes,
                                       block->shape.shared() ? block->granules() * granule_bytes
                                                             : span.pages * page_bytes);
            !opened)
          return opened;
  for (uint32_t i = 0; i < segment_count_; ++i)
    if (const Segment& segment = *segments_[i].load(); !segment.frames.empty())
      if (Result<void> opened = open(segment.address, granule_bytes); !opened) return opened;
  for (const auto& region : region_owner_)
    for (const auto& [address, mapped] : region->frames())
      if (Result<void> opened = open(address, mapped.frame.bytes()); !opened) return opened;
  access_.push_back(access);
  return {};
}

void EngineImpl::make_spans(Block& block) {
  block.spans.clear();
  block.mapped = block.device = 0;
  const uint32_t each = block.shape.shared() ? block.pages : span_granules_ * granule_pages;
  for (uint32_t begin = 0; begin < block.pages; begin += each) {
    Span span;
    span.begin = begin;
    span.pages = std::min(each, block.pages - begin);
    block.spans.push_back(std::move(span));
  }
}

std::span<Piece> EngineImpl::pieces_of(Block& block, const Span& span) const {
  size_t each = options_.piece_bytes;
  size_t first = std::min(span.begin * page_bytes / each, block.pieces.size());
  size_t last = std::min(((span.begin + span.pages) * page_bytes + each - 1) / each,
                         block.pieces.size());
  return {block.pieces.data() + first, last - first};
}

}  // namespace firn
