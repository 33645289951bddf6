// In: room made, the same address mapped again, bytes from host memory or from the store (verified
// there), copied to the device. The block is resident once every piece's copy is enqueued; streams
// that use it wait for the copy's event.
#include <algorithm>

#include <fmt/format.h>

#include "allocator/check.h"
#include "allocator/engine_impl.h"

namespace firn {

/// `anyway`: to host memory when the budget has no room.
Result<void> EngineImpl::begin_fault(Lock& lock, Block& block, bool anyway) {
  transit(block, Event::fault);
  block.setting_up = true;
  for (int attempt = 0;; ++attempt) {
    Result<Reservation> room = make_room(lock, block.granules, &block);
    if (block.state() == State::draining) {  // freed while we waited
      block.setting_up = false;
      finish_drain(block);
      return {};
    }
    Result<void> mapped =
        room ? map_fault(block, std::move(*room), false) : Result<void>(room.error());
    if (!room && anyway && room.error().code == Code::out_of_memory) {
      Result<std::vector<Frame>> frames = frames_.take_host(block.granules);
      mapped = frames ? map_frames(block, std::move(*frames), false) : Result<void>(frames.error());
      if (mapped) {
        block.word.fetch_or(word::zero_copy, std::memory_order_acq_rel);
        counted_.zero_copy_bytes += block.mapped_bytes();
        trouble("an operator's tensors do not fit the budget together: some were used in host "
                "memory, slowly. " + room.error().text);
      }
    }
    if (!mapped && mapped.error().detail == CUDA_ERROR_OUT_OF_MEMORY && attempt < 8) continue;
    block.setting_up = false;
    if (!mapped) {
      transit(block, Event::unfault);
      settle_away(block);
      return mapped.error();
    }
    advance_fault(block);
    return {};
  }
}

/// Takes the frames and maps them; on failure nothing has changed.
Result<void> EngineImpl::map_fault(Block& block, Reservation room, bool prefetched) {
  Result<std::vector<Frame>> frames = frames_.take(std::move(room));
  if (!frames) return frames.error();
  return map_frames(block, std::move(*frames), prefetched);
}

Result<void> EngineImpl::map_frames(Block& block, std::vector<Frame> frames, bool prefetched) {
  block.frames = std::move(frames);
  if (Result<void> mapped = map(block); !mapped) {
    frames_.give(block.frames);
    return mapped.error();
  }
  block.prefetched = prefetched;
  faulting_.push_back(&block);
  busy_.store(true, std::memory_order_relaxed);
  ++counted_.faults;
  trace(prefetched ? "prefetch" : "fault", block);
  return {};
}

bool EngineImpl::copy_in(Block& block, uint32_t index) {
  Piece& piece = block.pieces[index];
  CUresult result = driver_.memcpy_htod_async(block.address + piece.offset, piece.host->data,
                                              piece.bytes, in_stream_);
  if (result != CUDA_SUCCESS) {
    block.fault_error = driver_.error("cuMemcpyHtoDAsync", result).text;
    fail_fault(block);
    return false;
  }
  Use use = streams_.now(in_);
  add_use(block, use);
  piece.copying_in = true;
  host_.ref(piece.host);
  copies_in_.push_back({&block, block.generation, block.version, index, piece.host, use});
  return true;
}

void EngineImpl::advance_fault(Block& block) {
  if (block.setting_up || block.state() != State::faulting) return;
  bool all = true, issued = false;
  for (uint32_t i = 0; i < block.pieces.size(); ++i) {
    Piece& piece = block.pieces[i];
    if (piece.copying_in) continue;
    if (piece.host_valid) {
      bool forwarded = piece.read_tries == 0;
      if (!copy_in(block, i)) return;
      issued = true;
      (block.prefetched ? counted_.prefetched_bytes : counted_.faulted_bytes) += piece.bytes;
      if (forwarded) counted_.forwarded_bytes += piece.bytes;
      piece.read_tries = 0;
      continue;
    }
    all = false;
    if (!piece.reading) (void)start_read(block, i);
    if (block.state() != State::faulting) return;
  }
  if (issued) (void)streams_.close(streams_.now(in_));
  if (!all) return;
  for (Piece& piece : block.pieces) piece.copying_in = false;
  // The last copy in on the copy stream; everything before it is over when it is.
  block.arrival = {};
  for (Use use : block.more_uses)
    if (use.stream() == in_) block.arrival = use;
  if (block.arrival) block.word.fetch_or(word::unsettled, std::memory_order_acq_rel);
  block.age.store(tick_.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
  std::erase(faulting_, &block);
  transit(block, Event::arrived);
  trace("arrived", block);
  clock_.notify();
}

bool EngineImpl::start_read(Block& block, uint32_t index) {
  Piece& piece = block.pieces[index];
  FIRN_CHECK(piece.slot_valid, "block %llx piece %u has no copy", (unsigned long long)block.address,
             index);
  Staging* staging = staging_for(piece.bytes, 0);
  // Host memory is full of bytes that have nowhere else to go, and nothing in flight will free any:
  // what is wanted now comes first, a piece beyond the budget.
  if (!staging && host_stuck()) staging = host_.acquire_beyond(piece.bytes);
  if (!staging) {
    staging_wanted_ = true;
    return false;
  }
  piece.host = staging;
  piece.reading = true;
  ++piece.read_tries;
  IoRequest* request = request_for(block, index, piece.slot);
  Result<void> begun = store_->read(queue_, piece.slot, {staging->data, staging->bytes},
                                    reinterpret_cast<uint64_t>(request));
  if (begun) return true;
  StoreCompletion failed;
  failed.kind = StoreCompletion::Kind::read;
  failed.error = begun.error();
  requests_.erase(request);
  read_done(*request, failed);
  host_.unref(request->staging);
  delete request;
  return false;
}

void EngineImpl::read_done(IoRequest& request, const StoreCompletion& completion) {
  Block& block = *request.block;
  if (block.generation != request.generation || block.version != request.version) return;
  Piece& piece = block.pieces[request.piece];
  piece.reading = false;
  piece.request = nullptr;
  if (completion.error.code == Code::ok) {
    piece.host_valid = true;
    clean_host_.push_back({&block, block.generation, block.version, request.piece});
    return;
  }
  host_.unref(piece.host);
  piece.host = nullptr;
  // The store itself has re-read what did not match its sum.
  if (completion.error.code != Code::corrupt && piece.read_tries < read_tries_most) return;
  if (block.state() == State::faulting) lose(block, completion.error);
}

void EngineImpl::lose(Block& block, const Error& error) {
  block.fault_error = error.text;
  ++counted_.lost_blocks;
  std::fprintf(stderr, "firn: device %d: block %#llx (%zu bytes) is LOST: %s\n", options_.device,
               (unsigned long long)block.address, block.requested, describe(error).c_str());
  for (Use use : std::vector<Use>(block.more_uses)) (void)streams_.wait(use);
  drop_copies(block);
  unmap(block.address, block.frames);
  frames_.give(block.frames);
  std::erase(faulting_, &block);
  transit(block, Event::read_failed, word::unsettled | word::zero_copy);
  clock_.notify();
}

/// A copy in was refused: back to where the bytes are; whoever wants the block tries again.
void EngineImpl::fail_fault(Block& block) {
  ++block.fault_failures;
  trouble("a copy to the device was refused, tried again: " + block.fault_error);
  for (Use use : std::vector<Use>(block.more_uses)) (void)streams_.wait(use);
  for (Piece& piece : block.pieces) piece.copying_in = false;
  unmap(block.address, block.frames);
  frames_.give(block.frames);
  std::erase(faulting_, &block);
  transit(block, Event::unfault, word::zero_copy);
  settle_away(block);
}

/// A block freed while its reads were in flight: nobody waits for it, but its frames are mapped
/// until the copies into them are over.
void EngineImpl::finish_drain(Block& block) {
  if (block.setting_up) return;
  if (!uses_over(block)) {
    close_uses(block);
    return;
  }
  if (!block.frames.empty()) {
    unmap(block.address, block.frames);
    frames_.give(block.frames);
  }
  std::erase(draining_, &block);
  transit(block, Event::drained, life_flags);
  drop_descriptor(block);
}

/// Starts hinted prefetches as far as there is room without waiting for it.
bool EngineImpl::run_prefetches(Lock& lock) {
  (void)lock;
  bool any = false;
  while (!prefetches_.empty()) {
    PieceRef ref = prefetches_.front().first;
    Block& block = *ref.block;
    State state = block.state();
    if (block.generation != ref.generation ||
        (state != State::hosted && state != State::spilled)) {
      prefetches_.pop_front();
      continue;
    }
    Reservation room = frames_.reserve(block.granules);
    if (room.granules() != block.granules) {
      park_ready(false);
      reclaim_parked(block.granules);
      room = frames_.reserve(block.granules);
    }
    if (room.granules() != block.granules) {
      uint64_t coming = frames_.available() + leaving_granules();
      if (coming < block.granules) evict(block.granules - coming);
      break;  // a later pump goes on
    }
    prefetches_.pop_front();
    transit(block, Event::fault);
    if (Result<void> mapped = map_fault(block, std::move(room), true); !mapped) {
      transit(block, Event::unfault);
      settle_away(block);
      break;
    }
    advance_fault(block);
    any = true;
  }
  return any;
}

}  // namespace firn
