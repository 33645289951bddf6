// Mapping without the engine's lock: frames are taken and spans claimed under it, the driver's
// calls are made without it, and under it again the spans are the block's, or the frames go back if
// the block has been freed meanwhile. While spans of a block are claimed no other thread maps them,
// and the block's addresses and descriptor stay: Block::coming.
#include <algorithm>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/engine/hot.h"

namespace firn {

/// Takes frames for unmapped spans from the head on, for which the room is enough, and claims them,
/// for carry_out(). On failure nothing has changed.
Result<Mapping> EngineImpl::claim_fault(Block& block, uint64_t pages, Reservation room) {
  const Shape part{0, static_cast<uint32_t>(pages / granule_pages), 0};
  Result<std::vector<Frame>> frames =
      frames_.take(std::move(room), block.shape.shared() ? block.shape : part, span_granules_);
  if (!frames) return frames.error();
  return claim(block, std::move(*frames), pages);
}

/// Makes the frames for a shape that `room` is reserved for, without the lock: everything may have
/// changed when this returns. Does nothing if the shape needs more by now: the caller checks again.
/// Errors: the driver's.
Result<void> EngineImpl::provide(Lock& lock, const Shape& shape, const Reservation& room) {
  if (health_.dead()) return health_.error();
  if (frames_.granules_for(shape) > room.granules()) return {};
  Frames::Change change = frames_.begin_change(shape, span_granules_, room.granules());
  if (change.empty()) return {};
  ++mapping_apart_;
  lock.unlock();
  frames_.carry_out(change);
  lock.lock();
  --mapping_apart_;
  return frames_.end_change(std::move(change));
}

/// The same ahead of need, where there is room: carry_out_mappings() maps it.
bool EngineImpl::claim_ahead(Block& block, uint64_t pages) {
  if (!may_map_ahead()) return false;
  Result<Mapping> mapping =
      claim_fault(block, pages, frames_.reserve(granules_for(block, pages)));
  if (!mapping) return false;
  mapping->prefetched = true;
  mappings_.push_back(std::move(*mapping));
  return true;
}

/// The frames are as many as the spans need, the largest first and as long as a span; only the last
/// span is shorter.
Mapping EngineImpl::claim(Block& block, std::vector<Frame> frames, uint64_t pages) {
  Mapping mapping;
  mapping.block = &block;
  mapping.generation = block.generation;
  auto next = frames.begin();
  for (uint32_t i = 0; i < block.spans.size() && pages > 0; ++i) {
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

/// Makes the driver's calls for it, without the lock. The block is unchanged, except by others;
/// after an error, which is the driver's, the frames have gone back.
Result<void> EngineImpl::map_apart(Lock& lock, Mapping& mapping) {
  Block& block = *mapping.block;
  struct Run {
    uint64_t address;
    std::vector<Frame> frames;
    uint32_t end;  // the span behind it
  };
  std::vector<Run> runs;
  for (const Mapping::Part& part : mapping.parts) {
    const uint64_t address = block.base() + block.spans[part.span].begin * page_bytes;
    if (runs.empty() || runs.back().end != part.span)
      runs.push_back({address, {}, part.span});
    runs.back().end = part.span + 1;
    runs.back().frames.insert(runs.back().frames.end(), part.frames.begin(), part.frames.end());
  }
  MapCalls calls;
  size_t done = 0;
  const std::vector<CUmemAccessDesc> access = access_;
  if (health_.dead()) {  // something may be mapped there still
    calls.result = CUDA_ERROR_UNKNOWN;
  } else {
    ++mapping_apart_;
    for (const Run& run : runs) apart_.add(run.frames);
    lock.unlock();
    for (; done < runs.size(); ++done) {
      calls = call_map(runs[done].address, runs[done].frames, access);
      if (calls.result != CUDA_SUCCESS) break;
    }
    lock.lock();
    for (const Run& run : runs) apart_.remove(run.frames);
    --mapping_apart_;
    for (size_t i = access.size(); i < access_.size() && calls.result == CUDA_SUCCESS; ++i)
      for (const Run& run : runs) {  // a peer that came meanwhile
        uint64_t bytes = 0;
        for (const Frame& frame : run.frames) bytes += frame.bytes();
        calls.result = driver_.mem_set_access(run.address, bytes, &access_[i], 1);
        calls.entry = "cuMemSetAccess for a peer";
        if (calls.result != CUDA_SUCCESS) break;
      }
  }
  for (const Mapping::Part& part : mapping.parts) {
    block.spans[part.span].coming = false;
    block.coming -= block.spans[part.span].pages;
  }
  for (size_t i = 0; i < done; ++i) counted_.maps += runs[i].frames.size();
  if (calls.result == CUDA_SUCCESS) return {};
  Error error = health_.dead() ? health_.error() : health_.failed(calls.entry, calls.result);
  if (done < runs.size() && calls.mapped > 0) {
    auto& frames = runs[done].frames;
    unmap_at(runs[done].address, {frames.begin(),
                                  frames.begin() + static_cast<ptrdiff_t>(calls.mapped)});
  }
  for (size_t i = 0; i < done; ++i) unmap_at(runs[i].address, runs[i].frames);
  give_parts(mapping);
  return error;
}

void EngineImpl::give_parts(Mapping& mapping) {
  for (Mapping::Part& part : mapping.parts) frames_.give(part.frames);
  mapping.parts.clear();
}

/// The spans are the block's.
void EngineImpl::install(Mapping& mapping) {
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

/// Maps what was claimed of a block that is away, and begins to bring its bytes; or gives the
/// frames back, if the block was freed meanwhile.
Result<void> EngineImpl::carry_out(Lock& lock, Mapping& mapping) {
  Block& block = *mapping.block;
  const auto wanted = [&] {
    if (block.generation != mapping.generation) return false;
    if (block.state() == State::spilling) keep(block);
    const State state = block.state();
    return state == State::hosted || state == State::spilled || state == State::faulting;
  };
  Result<void> mapped;
  if (wanted()) {
    mapped = map_apart(lock, mapping);
    if (mapped && wanted()) {
      install(mapping);
      begin_arriving(block, mapping.prefetched);
      advance_fault(block);
    } else if (mapped) {
      for (const Mapping::Part& part : mapping.parts)
        unmap_at(block.base() + block.spans[part.span].begin * page_bytes, part.frames);
      give_parts(mapping);
    }
  } else {
    drop_claim(mapping);
  }
  end_dropped(block);
  return mapped;
}

/// Gives up a claim: nothing of it was mapped, or will be.
void EngineImpl::drop_claim(Mapping& mapping) {
  for (const Mapping::Part& part : mapping.parts) {
    Span& span = mapping.block->spans[part.span];
    span.coming = false;
    mapping.block->coming -= span.pages;
  }
  give_parts(mapping);
}

/// Gives up the claims of the block that no thread has begun to map.
void EngineImpl::drop_claims(Block& block) {
  for (size_t i = mappings_.size(); i-- > 0;) {
    if (mappings_[i].block != &block) continue;
    drop_claim(mappings_[i]);
    mappings_.erase(mappings_.begin() + static_cast<ptrdiff_t>(i));
  }
}

/// Maps what was claimed so far, without the lock meanwhile. False: nothing was mapped.
bool EngineImpl::carry_out_mappings(Lock& lock) {
  bool any = false;
  while (!mappings_.empty()) {
    Mapping mapping = std::move(mappings_.front());
    mappings_.pop_front();
    bool fine = true;
    if (!mapping.birth) {
      fine = static_cast<bool>(carry_out(lock, mapping));
    } else {
      const uint64_t pages = mapping.block->pages;
      births_apart_ += pages;
      const Result<Block*> block = finish_block(lock, mapping);
      births_apart_ -= pages;
      fine = static_cast<bool>(block);
      if (fine) make_ready_now(**block);
    }
    if (!fine) map_refused_ns_ = clock_.now_ns();
    any |= fine;
  }
  return any;
}

/// False for a while after a refusal of the driver's: not ahead of need again and again.
bool EngineImpl::may_map_ahead() {
  if (map_refused_ns_ && clock_.now_ns() - *map_refused_ns_ > poll_ns) map_refused_ns_.reset();
  return !map_refused_ns_;
}

/// Gives up blocks that no allocation has asked for yet: memory is short.
void EngineImpl::drop_births() {
  std::erase_if(mappings_, [this](Mapping& mapping) {
    if (!mapping.birth) return false;
    drop_claim(mapping);
    forget_block(*mapping.block);
    return true;
  });
}

/// Before the end: no claim is mapped any more.
void EngineImpl::drop_mappings() {
  drop_births();
  for (Mapping& mapping : mappings_) drop_claim(mapping);
  mappings_.clear();
}

}  // namespace firn
