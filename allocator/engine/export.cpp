// Memory that other processes map too (exported_memory.h).
#include <fmt/format.h>

#include "allocator/engine/engine_impl.h"

namespace firn {

Result<std::shared_ptr<const ExportedMemory>> EngineImpl::export_memory(const void* pointer,
                                                                        const char* reason) {
  Block* block = live_at(pointer, false);
  if (!block)
    return make_error(Code::invalid_argument, 0,
                      fmt::format("cannot export {}: it is outside Firn's live blocks", pointer));
  if (Result<void> pinned = give_address(pointer, reason); !pinned) return pinned.error();
  Entered context(*this);
  if (Result<void> usable = can_use(context); !usable) return usable.error();
  Lock lock(mutex_);
  std::vector<std::pair<CUmemGenericAllocationHandle, uint64_t>> frames;
  const auto add = [&](const std::vector<Frame>& of) {
    for (const Frame& frame : of) frames.emplace_back(frame.handle, frame.bytes());
  };
  uint64_t base = block->base();
  if (block->pages == 0) {
    const Segment& segment = segment_of(*block);
    base = segment.address;
    const Block* whole = segment.whole.load(std::memory_order_relaxed);
    const std::vector<Frame>& of = whole ? whole->spans.front().frames : segment.frames;
    if (of.empty() || of.front().host)
      return make_error(Code::out_of_memory, 0,
                        fmt::format("cannot export {}: its segment does not fit on the device now "
                                    "(firn_budget)", pointer));
    add(of);
  } else if (block->place_bytes != 0) {
    const auto& mapped = placed_.region_of(block->stream)->frames();
    auto frame = std::prev(mapped.upper_bound(block->address));
    base = frame->first;
    for (; frame != mapped.end() && frame->first < block->address + block->place_bytes; ++frame)
      frames.emplace_back(frame->second.frame.handle, frame->second.frame.bytes());
  } else {
    for (const Span& span : block->spans) {
      if (!span.mapped() || span.frames.front().host)
        return make_error(Code::out_of_memory, 0,
                          fmt::format("cannot export {}: its block does not fit on the device now "
                                      "(firn_budget)", pointer));
      add(span.frames);
    }
  }
  const uint64_t key = block->place_bytes != 0 ? block->address : base;
  auto& known = exported_[key];  // (of small blocks: their segment's)
  if (!known) {
    Result<std::shared_ptr<const ExportedMemory>> made =
        ExportedMemory::make(driver_, base, frames);
    if (!made) {
      exported_.erase(key);
      return made.error();
    }
    known = *made;
  }
  block->exported = true;
  // Its end takes the slow way: it is zeroed first.
  block->word.set(word::recorded);
  return known;
}

/// Zeroes a block: another process may have written there, and the memory's next owner may hand it
/// to a third. All uses of the block are over (a failing driver would refuse to order behind them);
/// this is one more.
void EngineImpl::wipe(Block& block) {
  if (health_.dead()) return;  // its memory is not used again
  const uint64_t bytes = block.pages != 0 ? block.mapped_bytes() : size_t{block.bytes};
  CUresult result = CUDA_ERROR_UNKNOWN;
  for (int attempt = 0; attempt < 3 && result != CUDA_SUCCESS; ++attempt)
    result = driver_.memset_d8_async(block.address, 0, bytes, transfers_.in_stream());
  if (result != CUDA_SUCCESS)
    trouble(fmt::format("block {:#x}, which another process could write, cannot be zeroed: {}",
                        block.address, driver_.error("cuMemsetD8Async", result).text));
  uses_.add(block, streams_.now(transfers_.in()));
}

}  // namespace firn
