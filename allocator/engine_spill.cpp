// Out: device to host memory, frames unmapped, host memory to the store. A piece's bytes are in at
// least one of {device, host, store} at every moment; the frames go only after every piece has a
// valid copy elsewhere and every use of the block is over.
#include <algorithm>

#include <fmt/format.h>

#include "allocator/check.h"
#include "allocator/config.h"
#include "allocator/engine_impl.h"

namespace firn {

void EngineImpl::make_pieces(Block& block) {
  size_t bytes = (block.requested + store_alignment - 1) / store_alignment * store_alignment;
  size_t have = 0;
  for (const Piece& piece : block.pieces) {
    if (piece.host || piece.slot) return;  // of this life, still of use
    have += piece.bytes;
  }
  if (have == bytes) return;
  block.pieces.clear();
  for (uint64_t offset = 0; offset < bytes; offset += options_.piece_bytes) {
    Piece piece;
    piece.offset = offset;
    piece.bytes = std::min<size_t>(options_.piece_bytes, bytes - offset);
    block.pieces.push_back(piece);
  }
}

namespace {
bool clean(std::span<const Piece> pieces) {
  return std::all_of(pieces.begin(), pieces.end(), [](const Piece& piece) {
    return piece.host_valid || piece.slot_valid;
  });
}
}  // namespace

/// To spilling, if nobody holds or pins the block. `leave`: at least `granules` of it, from the tail,
/// are unmapped in the end; otherwise its bytes are only made valid elsewhere.
bool EngineImpl::start_spill(Block& block, bool leave, uint64_t granules) {
  if (leave && !block.leave && block.state() == State::spilling) keep(block);  // more than cleaning
  uint64_t w = block.word.load(std::memory_order_acquire);
  do {
    if (!AgeOrder::may_leave(block, w)) return false;
    FIRN_CHECK(next_state(word::state(w), Event::spill) == static_cast<int>(State::spilling),
               "block %llx", (unsigned long long)block.address);
  } while (!block.word.compare_exchange_weak(
      w, word::with_state(w | word::copies, State::spilling), std::memory_order_acq_rel));
  make_pieces(block);
  block.leave = leave;
  block.uses_ordered = false;
  uint64_t left = granules;
  for (size_t i = block.spans.size(); i-- > 0 && left > 0;) {
    Span& span = block.spans[i];
    if (!span.mapped() || (!leave && clean(pieces_of(block, span)))) continue;
    span.leaving = leave;
    left -= std::min<uint64_t>(left, span.granules);
    for (Piece& piece : pieces_of(block, span)) {
      piece.wanted_out = true;
      if (leave && (piece.host_valid || piece.slot_valid))
        counted_.clean_dropped_bytes += piece.bytes;
    }
  }
  spilling_.push_back(&block);
  busy_.store(true, std::memory_order_relaxed);
  trace("spill", block);
  advance_spill(block);
  return block.state() == State::spilling;
}

bool EngineImpl::copy_out(Block& block, uint32_t index) {
  Piece& piece = block.pieces[index];
  // A reserve stays for reads: what comes in must not wait for what goes out.
  uint64_t reserve = std::min(host_.budget() / 4, 2 * options_.piece_bytes);
  Staging* staging = staging_for(piece.bytes, reserve);
  if (!staging) {
    staging_wanted_ = true;
    if (host_stuck()) {
      stuck_ = true;
      trouble(fmt::format("host memory for spilled blocks is full ({} of firn_host) and {}: "
                          "eviction stops",
                          format_size(host_.used()),
                          store_ ? "the store takes no more (firn_dir)" : "no firn_dir is set"));
      keep(block);
    }
    return false;
  }
  Error error;
  if (!block.uses_ordered) {
    std::vector<Use> uses = block.more_uses;
    uses.push_back(Use{block.use.load(std::memory_order_acquire)});
    uses.push_back(block.arrival);
    for (Use use : uses)
      if (Result<void> ordered = streams_.order(out_, use); !ordered) error = ordered.error();
    block.uses_ordered = error.code == Code::ok;
  }
  if (error.code == Code::ok) {
    CUresult result = driver_.memcpy_dtoh_async(staging->data, block.address + piece.offset,
                                                piece.bytes, out_stream_);
    if (result != CUDA_SUCCESS) error = driver_.error("cuMemcpyDtoHAsync", result);
  }
  if (error.code != Code::ok) {
    host_.unref(staging);
    trouble("a block stays on the device: " + error.text);
    block.age.store(tick_.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
    keep(block);
    return false;
  }
  const bool waited = !programs_uses_over(block);
  bandwidths_.begin(lifetimes::Channel::host_out, clock_.now_ns());
  Use use = streams_.now(out_);
  add_use(block, use);
  piece.host = staging;
  piece.copying_out = true;
  host_.ref(staging);
  copies_out_.push_back({&block, block.generation, block.version, index, staging, use, waited});
  return true;
}

void EngineImpl::advance_spill(Block& block) {
  bool issued = false;
  for (uint32_t i = 0; i < block.pieces.size(); ++i) {
    Piece& piece = block.pieces[i];
    if (!piece.wanted_out || piece.host_valid || piece.slot_valid || piece.copying_out) continue;
    if (!copy_out(block, i)) break;
    issued = true;
  }
  if (issued) (void)streams_.close(streams_.now(out_));
}

/// Nothing in sight will free host memory.
bool EngineImpl::host_stuck() const {
  return (!store_ || store_full_) && requests_.empty() && copies_in_.empty() &&
         copies_out_.empty();
}

/// Unmaps what may go. spilling -> hosted once all that was to leave has left, or back to resident
/// when the bytes were only to be made valid elsewhere.
bool EngineImpl::finish_spill(Block& block) {
  bool waiting = false;
  for (Span& span : block.spans) {
    bool valid = true;
    for (const Piece& piece : pieces_of(block, span))
      if (piece.wanted_out)
        valid &= !piece.copying_out && (piece.host_valid || piece.slot_valid);
    waiting |= !valid;
    if (!valid || !span.leaving) continue;
    // Its own copies out are over; of other pieces' there may be some in flight.
    if (!programs_uses_over(block)) {
      close_uses(block);
      return false;
    }
    unmap_span(block, span);
  }
  if (waiting) return false;
  keep(block);
  return true;
}

void EngineImpl::finish_spills() {
  for (size_t i = 0; i < spilling_.size();) {
    Block* leaving = spilling_[i];
    finish_spill(*leaving);
    if (i < spilling_.size() && spilling_[i] == leaving) ++i;
  }
}

/// Ends a spill: everything that was to leave has left, or it was touched, or failed. Resident when
/// nothing was unmapped; hosted when something was.
void EngineImpl::keep(Block& block) {
  for (Span& span : block.spans) span.leaving = false;
  for (Piece& piece : block.pieces) piece.wanted_out = false;
  std::erase(spilling_, &block);
  if (block.mapped == block.granules) {
    transit(block, Event::keep);
    return;
  }
  block.arrival = {};  // over, or nothing would have been unmapped
  transit(block, Event::copied_out,
          word::unsettled | (block.mapped == block.device ? word::zero_copy : 0));
  trace("copied_out", block);
  settle_away(block);
}

void EngineImpl::settle_away(Block& block) {
  if (block.state() != State::hosted) return;
  for (const Piece& piece : block.pieces)
    if (!piece.slot_valid) return;
  transit(block, Event::written);
  trace("written", block);
}

Staging* EngineImpl::staging_for(size_t bytes, uint64_t reserve) {
  for (;;) {
    if (Staging* staging = host_.acquire(bytes, reserve)) return staging;
    if (plan_.valid && drop_useless_host(0)) continue;
    if (drop_clean_host()) continue;
    // Made ahead, on their way to the store: not to be made twice.
    if (plan_.valid && store_ && !store_full_) return nullptr;
    if (!drop_resident_host()) return nullptr;
  }
}

/// Frees the host copy of the piece that was written first, if it is valid in the store too.
bool EngineImpl::drop_clean_host() {
  for (size_t tries = clean_host_.size(); tries > 0; --tries) {
    PieceRef ref = clean_host_.front();
    clean_host_.pop_front();
    if (ref.block->generation != ref.generation || ref.block->version != ref.version) continue;
    Piece& piece = ref.block->pieces[ref.piece];
    if (!piece.host || !piece.host_valid || !piece.slot_valid) continue;
    if (piece.host->refs > 1 ||  // a copy or a write is still going through it, or will
        (ref.block->state() == State::faulting && !piece.on_device)) {
      clean_host_.push_back(ref);
      continue;
    }
    host_.unref(piece.host);
    piece.host = nullptr;
    piece.host_valid = false;
    return true;
  }
  return false;
}

/// Frees the host copy that is used last of those valid in the store too, if that is later than
/// `wanted_at`; one whose bytes are on the device until then first.
bool EngineImpl::drop_useless_host(uint64_t wanted_at) {
  std::erase_if(clean_host_, [](const PieceRef& ref) {
    if (ref.block->generation != ref.generation || ref.block->version != ref.version) return true;
    const Piece& piece = ref.block->pieces[ref.piece];
    return !piece.host || !piece.host_valid || !piece.slot_valid;
  });
  auto best = clean_host_.end();
  uint64_t best_at = wanted_at;
  for (auto it = clean_host_.begin(); it != clean_host_.end() && best_at != UINT64_MAX; ++it) {
    const Piece& piece = it->block->pieces[it->piece];
    // What is on the device until its next use does not come from host memory then.
    const uint64_t next_use = it->block->next_use;
    const uint64_t at = piece.on_device && next_use <= plan_.window ? UINT64_MAX : next_use;
    if (piece.host->refs > 1 || at <= best_at ||
        (it->block->state() == State::faulting && !piece.on_device))
      continue;
    best = it;
    best_at = at;
  }
  if (best == clean_host_.end()) return false;
  Piece& piece = best->block->pieces[best->piece];
  host_.unref(piece.host);
  piece.host = nullptr;
  piece.host_valid = false;
  clean_host_.erase(best);
  return true;
}

/// Frees a host copy whose bytes are on the device as well.
bool EngineImpl::drop_resident_host() {
  for (auto it = unwritten_.begin(); it != unwritten_.end(); ++it) {
    Block& block = *it->block;
    if (block.generation != it->generation || block.version != it->version) continue;
    Piece& piece = block.pieces[it->piece];
    if (block.state() != State::resident || !piece.host_valid || piece.slot ||
        piece.host->refs > 1)
      continue;
    host_.unref(piece.host);
    piece.host = nullptr;
    piece.host_valid = false;
    unwritten_.erase(it);
    return true;
  }
  return false;
}

void EngineImpl::drop_piece(Piece& piece) {
  if (piece.request && store_->cancel(queue_, reinterpret_cast<uint64_t>(piece.request))) {
    if (piece.writing) writing_bytes_ -= piece.request->staging->bytes;
    bandwidths_.end(piece.writing ? lifetimes::Channel::store_write
                                  : lifetimes::Channel::store_read,
                    0, clock_.now_ns());
    requests_.erase(piece.request);
    host_.unref(piece.request->staging);
    delete piece.request;
  }
  piece.request = nullptr;
  piece.writing = piece.reading = piece.copying_out = false;
  piece.read_tries = 0;
  if (piece.host) host_.unref(piece.host);
  piece.host = nullptr;
  piece.host_valid = false;
  if (piece.slot) {
    store_->discard(piece.slot);
    store_full_ = false;
  }
  piece.slot = {};
  piece.slot_valid = false;
}

/// The device's bytes are about to change, or nobody wants them any more.
void EngineImpl::drop_copies(Block& block) {
  ++block.version;
  for (Piece& piece : block.pieces) drop_piece(piece);
  block.word.fetch_and(~word::copies, std::memory_order_acq_rel);
  stuck_ = false;
}

bool EngineImpl::reap_copies() {
  bool any = false;
  while (!copies_out_.empty()) {
    CopyInFlight copy = copies_out_.front();
    if (!streams_.over(copy.use)) {
      (void)streams_.close(copy.use);
      break;
    }
    copies_out_.pop_front();
    any = true;
    bandwidths_.end(lifetimes::Channel::host_out, copy.waited ? 0 : copy.staging->bytes,
                    clock_.now_ns());
    if (copy.block->generation == copy.generation && copy.block->version == copy.version) {
      Piece& piece = copy.block->pieces[copy.piece];
      piece.copying_out = false;
      piece.host_valid = true;
      counted_.spilled_bytes += piece.bytes;
      (copy.block->to_store ? greedy_.store_bound : unwritten_)
          .push_back({copy.block, copy.generation, copy.version, copy.piece});
    }
    host_.unref(copy.staging);
  }
  while (!copies_in_.empty()) {
    CopyInFlight copy = copies_in_.front();
    if (!streams_.over(copy.use)) {
      (void)streams_.close(copy.use);
      break;
    }
    copies_in_.pop_front();
    any = true;
    bandwidths_.end(lifetimes::Channel::host_in, copy.staging->bytes, clock_.now_ns());
    host_.unref(copy.staging);
  }
  return any;
}

IoRequest* EngineImpl::request_for(Block& block, uint32_t index, Slot slot) {
  Piece& piece = block.pieces[index];
  auto* request = new IoRequest{&block, block.generation, block.version, index, piece.host, slot,
                                piece.reading};
  host_.ref(piece.host);
  requests_.insert(request);
  piece.request = request;
  return request;
}

/// Is host memory only what transfers pass through, and no place to keep much?
bool EngineImpl::host_is_passage() const {
  return host_.budget() <= frames_.budget_granules() * granule_bytes / 2;
}

/// Does what leaves in a period exceed host memory? Then the store is written from the start.
bool EngineImpl::host_too_small() const {
  return plan_.excess * granule_bytes > (host_is_passage() ? 0 : host_.budget() / 4 * 3);
}

/// Writes hosted pieces to the store, the coldest first, once host memory is half full or wanted.
bool EngineImpl::write_back() {
  bool any = false;
  uint64_t in_flight_most = std::max<uint64_t>(host_.budget() / 4, options_.piece_bytes);
  if (store_full_) {  // what was bound for it stays, to be dropped as other copies are
    unwritten_.insert(unwritten_.end(), greedy_.store_bound.begin(), greedy_.store_bound.end());
    greedy_.store_bound.clear();
  }
  while (!store_full_ && writing_bytes_ < in_flight_most) {
    std::deque<PieceRef>* from = due_to_write();
    if (!from) break;
    PieceRef ref = from->front();
    from->pop_front();
    if (ref.block->generation != ref.generation || ref.block->version != ref.version) continue;
    Piece& piece = ref.block->pieces[ref.piece];
    if (!piece.host_valid || piece.slot || piece.writing) continue;
    if (!plan_.valid && ref.block->state() == State::resident && ref.block->leave &&
        piece.host->refs == 1) {
      // It left and came back: in use again, its bytes are on the device. Not worth a write.
      host_.unref(piece.host);
      piece.host = nullptr;
      piece.host_valid = false;
      continue;
    }
    Result<Slot> slot = store_->reserve(piece.host->bytes);
    if (!slot) {
      store_full_ = true;
      from->push_front(ref);
      trouble("spilled blocks stay in host memory: " + slot.error().text);
      break;
    }
    piece.slot = *slot;
    piece.writing = true;
    IoRequest* request = request_for(*ref.block, ref.piece, *slot);
    writing_bytes_ += piece.host->bytes;
    Result<void> begun = store_->write(queue_, *slot, {piece.host->data, piece.host->bytes},
                                       reinterpret_cast<uint64_t>(request));
    if (!begun) {
      StoreCompletion failed;
      failed.error = begun.error();
      requests_.erase(request);
      written(*request, failed);
      host_.unref(request->staging);
      delete request;
      break;
    }
    bandwidths_.begin(lifetimes::Channel::store_write, clock_.now_ns());
    any = true;
  }
  return any;
}

void EngineImpl::written(IoRequest& request, const StoreCompletion& completion) {
  writing_bytes_ -= request.staging->bytes;
  Block& block = *request.block;
  if (block.generation != request.generation || block.version != request.version) return;
  Piece& piece = block.pieces[request.piece];
  piece.writing = false;
  piece.request = nullptr;
  PieceRef ref{&block, block.generation, block.version, request.piece};
  if (completion.error.code == Code::ok) {
    write_failures_ = 0;
    piece.slot_valid = true;
    if (block.to_store && block.state() != State::faulting) {  // as the plan has it
      host_.unref(piece.host);
      piece.host = nullptr;
      piece.host_valid = false;
    } else {
      clean_host_.push_back(ref);
    }
    stuck_ = false;
    settle_away(block);
    return;
  }
  store_->discard(piece.slot);
  piece.slot = {};
  unwritten_.push_front(ref);
  trouble("a write to the store failed, the bytes stay in host memory: " + completion.error.text);
  if (completion.error.code == Code::no_space || ++write_failures_ >= 16) store_full_ = true;
}

/// Makes the oldest blocks' bytes valid elsewhere ahead of need, without unmapping them: when room
/// is needed they are dropped without I/O.
bool EngineImpl::clean_ahead() {
  uint64_t tick = tick_.load(std::memory_order_relaxed);
  if (!pressed_ || stuck_ || options_.adversarial || !spilling_.empty() || waiting_ > 0 ||
      tick < ahead_tick_ + live_.size() / 8 + 1)
    return false;
  ahead_tick_ = tick;
  ahead_.reset();
  uint64_t granules = 0, target = std::max<uint64_t>(frames_.budget_granules() / 16, 1);
  bool any = false;
  while (granules < target) {
    Block* block = ahead_.next(live_, tick);
    if (!block) break;
    granules += block->granules;
    bool clean = !block->pieces.empty();
    for (const Piece& piece : block->pieces) clean &= piece.host_valid || piece.slot_valid;
    if (clean || !uses_over(*block)) continue;
    any |= start_spill(*block, false);
    if (host_.used() > host_.budget() * 3 / 4) break;
  }
  return any;
}

}  // namespace firn
