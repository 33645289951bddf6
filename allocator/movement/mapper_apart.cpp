// Mapping and unmapping without the engine's lock: frames are taken and spans marked under it, the
// driver's calls are made without it, and under it again the spans are the block's, or the frames
// are free.
#include <algorithm>
#include <utility>

#include "allocator/movement/mapper.h"
#include "firn/canary.h"

namespace firn {

Result<void> Mapper::provide(Lock& lock, const Shape& shape, const Reservation& room) {
  if (at_.health.dead()) return at_.health.error();
  if (at_.frames.granules_for(shape) > room.granules()) return {};
  Frames::Change change = at_.frames.begin_change(shape, at_.span_granules, room.granules());
  if (change.empty()) return {};
  ++mapping_apart_;
  {
    const UnlockedEngine unlocked(lock);
    at_.frames.carry_out(change);
  }
  --mapping_apart_;
  return at_.frames.end_change(std::move(change));
}

Result<void> Mapper::map_apart(Lock& lock, Mapping& mapping) {
  Block& block = *mapping.block;
  struct Run {
    uint64_t address;
    std::vector<Frame> frames;
    uint32_t end;  // the span behind it
  };
  std::vector<Run> runs;
  for (const Mapping::Part& part : mapping.parts) {
    const uint64_t address = address_of(block, block.spans[part.span]);
    if (runs.empty() || runs.back().end != part.span)
      runs.push_back({address, {}, part.span});
    runs.back().end = part.span + 1;
    runs.back().frames.insert(runs.back().frames.end(), part.frames.begin(), part.frames.end());
  }
  Calls calls;
  size_t done = 0;
  const std::vector<CUmemAccessDesc> access = access_;
  if (at_.health.dead()) {  // something may be mapped there still
    calls.result = CUDA_ERROR_UNKNOWN;
  } else {
    ++mapping_apart_;
    for (const Run& run : runs) apart_.add(run.frames);
    {
      const UnlockedEngine unlocked(lock);
      for (; done < runs.size(); ++done) {
        calls = call_map(runs[done].address, runs[done].frames, access);
        if (calls.result != CUDA_SUCCESS) break;
      }
    }
    for (const Run& run : runs) apart_.remove(run.frames);
    --mapping_apart_;
    for (size_t i = access.size(); i < access_.size() && calls.result == CUDA_SUCCESS; ++i)
      for (const Run& run : runs) {  // a peer that came meanwhile
        uint64_t bytes = 0;
        for (const Frame& frame : run.frames) bytes += frame.bytes();
        calls.result = at_.driver.mem_set_access(run.address, bytes, &access_[i], 1);
        calls.entry = "cuMemSetAccess for a peer";
        if (calls.result != CUDA_SUCCESS) break;
      }
  }
  for (const Mapping::Part& part : mapping.parts) {
    block.spans[part.span].coming = false;
    block.coming -= block.spans[part.span].pages;
  }
  for (size_t i = 0; i < done; ++i) maps_ += runs[i].frames.size();
  if (calls.result == CUDA_SUCCESS) return {};
  Error error = at_.health.dead() ? at_.health.error()
                                  : at_.health.failed(calls.entry, calls.result);
  if (done < runs.size() && calls.mapped > 0) {
    auto& frames = runs[done].frames;
    unmap(runs[done].address, {frames.begin(),
                               frames.begin() + static_cast<ptrdiff_t>(calls.mapped)});
  }
  for (size_t i = 0; i < done; ++i) unmap(runs[i].address, runs[i].frames);
  give_frames(mapping);
  return error;
}

void Mapper::give_up(Block& block, size_t begin, size_t end) {
  Unmapping unmapping{&block, static_cast<uint32_t>(begin), static_cast<uint32_t>(end), {}};
  for (size_t i = begin; i < end; ++i) {
    Span& span = block.spans[i];
    ++spans_given_up_;
    block.mapped -= span.pages;
    block.going += span.pages;
    if (!span.frames.front().host) block.device -= span.pages;
    for (const Frame& frame : span.frames) {
      if (frame.part != 0)
        at_.frames.let_go(frame);
      else if (!frame.host)
        going_granules_ += frame.granules;
      unmapping.frames.push_back(frame);
    }
    span.frames.clear();
    span.leaving = span.guarded = false;
    span.going = true;
    for (Piece& piece : pieces_of(block, span)) piece.on_device = piece.wanted_out = false;
  }
  // (The rest of it is on the device, if its part in host memory was among these.)
  if (block.mapped == block.device && !FIRN_CANARY(21))
    block.word.clear(word::zero_copy);
  unmappings_.push_back(std::move(unmapping));
}

bool Mapper::give_up(Block& block) {
  bool any = false;
  for (size_t begin = 0; begin < block.spans.size(); ++begin) {
    if (!block.spans[begin].mapped()) continue;
    size_t end = begin;
    while (end < block.spans.size() && block.spans[end].mapped()) ++end;
    give_up(block, begin, end);
    begin = end - 1;
    any = true;
  }
  return any;
}

/// Makes the driver's call for it, without the lock.
void Mapper::carry_out(Lock& lock, Unmapping unmapping) {
  Block& block = *unmapping.block;
  const uint64_t address = address_of(block, block.spans[unmapping.begin]);
  size_t bytes = 0;
  for (const Frame& frame : unmapping.frames) bytes += frame.bytes();
  CUresult result = CUDA_SUCCESS;
  if (!at_.health.dead()) {
    ++unmapping_apart_;
    apart_.add(unmapping.frames);
    {
      const UnlockedEngine unlocked(lock);
      result = call_unmap(address, bytes);
    }
    apart_.remove(unmapping.frames);
    --unmapping_apart_;
  }
  unmaps_ += unmapping.frames.size();
  if (result != CUDA_SUCCESS) at_.health.end("cuMemUnmap", result);
  for (const Frame& frame : unmapping.frames)
    if (!frame.host && frame.part == 0) going_granules_ -= frame.granules;
  at_.frames.give(unmapping.frames);
  for (uint32_t i = unmapping.begin; i < unmapping.end; ++i) {
    block.spans[i].going = false;
    block.going -= block.spans[i].pages;
  }
}

Block* Mapper::unmap_next(Lock& lock, uint64_t granules) {
  if (unmappings_.empty() || at_.frames.available() >= granules) return nullptr;
  Unmapping unmapping = std::move(unmappings_.front());
  unmappings_.pop_front();
  Block* block = unmapping.block;
  carry_out(lock, std::move(unmapping));
  return block;
}

Block* Mapper::unmap_next(Lock& lock, const Block& block) {
  const auto due =
      std::find_if(unmappings_.begin(), unmappings_.end(),
                   [&](const Unmapping& each) { return each.block == &block; });
  if (due == unmappings_.end()) return nullptr;
  Unmapping unmapping = std::move(*due);
  unmappings_.erase(due);
  Block* found = unmapping.block;
  carry_out(lock, std::move(unmapping));
  return found;
}

}  // namespace firn
