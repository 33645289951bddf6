// Unmapping without the engine's lock: under it spans are given up, and the driver's call is made
// without it; under it again their frames are free. Until then no thread maps those spans, and the
// block's addresses and descriptor stay: Block::going.
#include <algorithm>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/engine/hot.h"
#include "firn/canary.h"

namespace firn {

/// Gives up mapped spans, [begin, end), whose uses are over.
void EngineImpl::unmap_run(Block& block, size_t begin, size_t end) {
  Unmapping unmapping{&block, static_cast<uint32_t>(begin), static_cast<uint32_t>(end), {}};
  for (size_t i = begin; i < end; ++i) {
    Span& span = block.spans[i];
    ++unmapped_;
    block.mapped -= span.pages;
    block.going += span.pages;
    if (!span.frames.front().host) block.device -= span.pages;
    for (const Frame& frame : span.frames) {
      if (frame.part != 0)
        frames_.let_go(frame);
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
  busy_.store(true, std::memory_order_relaxed);
}

/// Gives up all mapped spans; neighbours in one go.
void EngineImpl::unmap_spans(Block& block) {
  for (size_t begin = 0; begin < block.spans.size(); ++begin) {
    if (!block.spans[begin].mapped()) continue;
    size_t end = begin;
    while (end < block.spans.size() && block.spans[end].mapped()) ++end;
    unmap_run(block, begin, end);
    begin = end - 1;
  }
}

/// Makes the driver's call for it, without the lock.
void EngineImpl::carry_out(Lock& lock, Unmapping unmapping) {
  Block& block = *unmapping.block;
  const uint64_t address = block.base() + block.spans[unmapping.begin].begin * page_bytes;
  size_t bytes = 0;
  for (const Frame& frame : unmapping.frames) bytes += frame.bytes();
  CUresult result = CUDA_SUCCESS;
  if (!health_.dead()) {
    ++unmapping_apart_;
    apart_.add(unmapping.frames);
    lock.unlock();
    result = call_unmap(address, bytes);
    lock.lock();
    apart_.remove(unmapping.frames);
    --unmapping_apart_;
  }
  counted_.unmaps += unmapping.frames.size();
  if (result != CUDA_SUCCESS) health_.end("cuMemUnmap", result);
  for (const Frame& frame : unmapping.frames)
    if (!frame.host && frame.part == 0) going_granules_ -= frame.granules;
  frames_.give(unmapping.frames);
  for (uint32_t i = unmapping.begin; i < unmapping.end; ++i) {
    block.spans[i].going = false;
    block.going -= block.spans[i].pages;
  }
  end_dropped(block);
}

/// Unmaps spans that were given up, the oldest first, until so many granules are available. False:
/// nothing was due.
bool EngineImpl::carry_out_unmappings(Lock& lock, uint64_t granules) {
  bool any = false;
  while (!unmappings_.empty() && frames_.available() < granules) {
    Unmapping unmapping = std::move(unmappings_.front());
    unmappings_.pop_front();
    carry_out(lock, std::move(unmapping));
    any = true;
  }
  return any;
}

/// The same for one block, whose spans are wanted again. False: other threads have them in hand.
bool EngineImpl::carry_out_unmappings(Lock& lock, const Block& block) {
  bool any = false;
  const auto due = [&] {
    return std::find_if(unmappings_.begin(), unmappings_.end(),
                        [&](const Unmapping& each) { return each.block == &block; });
  };
  for (auto next = due(); next != unmappings_.end(); next = due()) {
    Unmapping unmapping = std::move(*next);
    unmappings_.erase(next);
    carry_out(lock, std::move(unmapping));
    any = true;
  }
  return any;
}

/// Drops the descriptor, if that has waited for calls under way.
void EngineImpl::end_dropped(Block& block) {
  if (block.coming == 0 && block.going == 0 && std::exchange(block.dropped, false))
    drop_descriptor(block);
}

/// Pages available once everything on its way out has left.
uint64_t EngineImpl::pages_soon() const {
  return (frames_.available() + going_granules()) * granule_pages + leaving_pages();
}

/// Granules to come: of spans given up and not yet unmapped, and of frames being given back.
uint64_t EngineImpl::going_granules() const {
  return going_granules_ + frames_.shared().going() + frames_.returning();
}

}  // namespace firn
