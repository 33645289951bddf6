// The driver's calls, access, claims, and the figures; without the lock: mapper_apart.cpp.
#include "allocator/movement/mapper.h"

#include <utility>

#include "allocator/base/relaxed.h"
#include "firn/check.h"

namespace firn {

namespace {
CUmemAccessDesc access_of(int device) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}
}  // namespace

Mapper::Mapper(Neighbours neighbours) : at_(neighbours) {
  access_.push_back(access_of(at_.device));
}

/// The calls alone: no lock is needed. Frames mapped before one failed stay mapped.
Mapper::Calls Mapper::call_map(uint64_t address, const std::vector<Frame>& frames,
                               const std::vector<CUmemAccessDesc>& access) const {
  Calls calls;
  uint64_t at = address;
  calls.entry = "cuMemMap";
  for (const Frame& frame : frames) {
    calls.result = at_.driver.mem_map(at, frame.bytes(), 0, frame.handle, 0);
    if (calls.result != CUDA_SUCCESS) return calls;
    ++calls.mapped;
    at += frame.bytes();
  }
  calls.entry = "cuMemSetAccess";
  const CopyGate::Closed closed(at_.gate);
  calls.result = at_.driver.mem_set_access(address, at - address, access.data(), access.size());
  return calls;
}

/// The call alone, as call_map(): a refusal is retried, unless it is permanent.
CUresult Mapper::call_unmap(uint64_t address, size_t bytes) const {
  for (int attempt = 0;; ++attempt) {
    const CUresult result = at_.driver.mem_unmap(address, bytes);
    if (result == CUDA_SUCCESS || attempt == 2 || DeviceHealth::stays(result)) return result;
  }
}

Result<void> Mapper::map(uint64_t address, const std::vector<Frame>& frames) {
  if (at_.health.dead()) return at_.health.error();  // something may be mapped there still
  const Calls calls = call_map(address, frames, access_);
  maps_ += calls.mapped;
  if (calls.result == CUDA_SUCCESS) return {};
  const Error error = at_.health.failed(calls.entry, calls.result);
  unmap(address, {frames.begin(), frames.begin() + static_cast<ptrdiff_t>(calls.mapped)});
  return error;
}

void Mapper::unmap(uint64_t address, const std::vector<Frame>& frames) {
  unmaps_ += frames.size();
  size_t bytes = 0;
  for (const Frame& frame : frames) bytes += frame.bytes();
  if (bytes == 0 || at_.health.dead()) return;
  const CUresult result = call_unmap(address, bytes);
  if (result != CUDA_SUCCESS) at_.health.end("cuMemUnmap", result);
}

Result<void> Mapper::add_peer(int device, const std::function<Result<void>(const Open&)>& walk) {
  for (const CUmemAccessDesc& known : access_)
    if (known.location.id == device) return {};
  const CUmemAccessDesc access = access_of(device);
  const Open open = [&](uint64_t address, uint64_t bytes) -> Result<void> {
    const CUresult result = at_.driver.mem_set_access(address, bytes, &access, 1);
    if (result == CUDA_SUCCESS) return {};
    return at_.driver.error("cuMemSetAccess for a peer", result);
  };
  if (Result<void> opened = walk(open); !opened) return opened;
  access_.push_back(access);
  return {};
}

Result<void> Mapper::set_access(const Block& block, const Span& span, CUmemAccess_flags flags) {
  std::vector<CUmemAccessDesc> access = access_;
  for (CUmemAccessDesc& each : access) each.flags = flags;
  CUresult result = CUDA_SUCCESS;
  for (int attempt = 0; attempt < 3; ++attempt) {
    result = at_.driver.mem_set_access(address_of(block, span), bytes_at(block, span),
                                       access.data(), access.size());
    if (result == CUDA_SUCCESS) return {};
  }
  return at_.driver.error("cuMemSetAccess", result);
}

Result<Mapping> Mapper::claim(Block& block, uint64_t pages, Reservation room, uint32_t first) {
  const Shape part{0, static_cast<uint32_t>(pages / granule_pages), 0};
  Result<std::vector<Frame>> frames = at_.frames.take(
      std::move(room), block.shape.shared() ? block.shape : part, at_.span_granules);
  if (!frames) return frames.error();
  return claim(block, std::move(*frames), pages, first);
}

Mapping Mapper::claim(Block& block, std::vector<Frame> frames, uint64_t pages, uint32_t first) {
  Mapping mapping;
  mapping.block = &block;
  mapping.generation = block.generation;
  auto next = frames.begin();
  for (uint32_t i = first; i < block.spans.size() && pages > 0; ++i) {
    Span& span = block.spans[i];
    if (span.mapped() || span.coming || span.going) continue;
    FIRN_CHECK(span.pages <= pages, "%u pages wanted, %llu left", span.pages,
               (unsigned long long)pages);
    pages -= span.pages;
    span.coming = true;
    block.coming += span.pages;
    Mapping::Part part{i, {}};
    for (uint64_t filled = 0; filled < span.pages; ++next) {
      FIRN_CHECK(next != frames.end(), "frames end in a span of %u", span.pages);
      filled += next->pages();
      part.frames.push_back(*next);
      FIRN_CHECK(filled <= span.pages || next->host, "a frame across spans");
    }
    mapping.parts.push_back(std::move(part));
  }
  FIRN_CHECK(pages == 0 && next == frames.end(), "%llu pages too many",
             (unsigned long long)pages);
  return mapping;
}

void Mapper::give_frames(Mapping& mapping) {
  for (Mapping::Part& part : mapping.parts) at_.frames.give(part.frames);
  mapping.parts.clear();
}

void Mapper::install(Mapping& mapping) {
  Block& block = *mapping.block;
  for (Mapping::Part& part : mapping.parts) {
    Span& span = block.spans[part.span];
    span.frames = std::move(part.frames);
    block.mapped += span.pages;
    if (span.frames.front().host)
      block.word.set(word::zero_copy);
    else
      block.device += span.pages;
  }
}

void Mapper::undo(Mapping& mapping) {
  const Block& block = *mapping.block;
  for (const Mapping::Part& part : mapping.parts)
    unmap(address_of(block, block.spans[part.span]), part.frames);
  give_frames(mapping);
}

void Mapper::drop(Mapping& mapping) {
  for (const Mapping::Part& part : mapping.parts) {
    Span& span = mapping.block->spans[part.span];
    span.coming = false;
    mapping.block->coming -= span.pages;
  }
  give_frames(mapping);
}

std::optional<Mapping> Mapper::next() {
  if (mappings_.empty()) return std::nullopt;
  std::optional<Mapping> mapping(std::move(mappings_.front()));
  mappings_.pop_front();
  return mapping;
}

void Mapper::drop_claims(const Block& block) {
  for (size_t i = mappings_.size(); i-- > 0;) {
    if (mappings_[i].block != &block) continue;
    drop(mappings_[i]);
    mappings_.erase(mappings_.begin() + static_cast<ptrdiff_t>(i));
  }
}

void Mapper::drop_claims() {
  for (Mapping& mapping : mappings_) drop(mapping);
  mappings_.clear();
}

Block* Mapper::drop_birth() {
  for (auto at = mappings_.begin(); at != mappings_.end(); ++at) {
    if (!at->birth) continue;
    Block* block = at->block;
    drop(*at);
    mappings_.erase(at);
    return block;
  }
  return nullptr;
}

/// False for a while after a refusal of the driver's: not ahead of need again and again.
bool Mapper::may_map_ahead() {
  if (refused_ns_ && at_.clock.now_ns() - *refused_ns_ > at_.pause_ns) refused_ns_.reset();
  return !refused_ns_;
}

uint64_t Mapper::going_granules() const {
  return going_granules_ + at_.frames.shared().going() + at_.frames.returning();
}

uint64_t Mapper::claimed_bytes() const {
  uint64_t bytes = 0;
  for (const Mapping& mapping : mappings_)
    for (const Mapping::Part& part : mapping.parts)
      if (!mapping.birth) bytes += mapping.block->spans[part.span].pages * page_bytes;
  return bytes;
}

FrameCount Mapper::in_hand() const {
  FrameCount count = apart_;
  for (const Mapping& mapping : mappings_)
    for (const Mapping::Part& part : mapping.parts) count.add(part.frames);
  for (const Unmapping& unmapping : unmappings_) count.add(unmapping.frames);
  return count;
}

}  // namespace firn
