// The way out: device to host memory, frames unmapped (on to the store: write.cpp). A piece's bytes
// are in at least one of {device, host, store} at every moment; the frames go only after every
// piece has a valid copy elsewhere and every use of the block is over.
#include <algorithm>

#include <fmt/format.h>

#include "allocator/base/check.h"
#include "allocator/base/sizes.h"
#include "allocator/engine/baseline.h"
#include "allocator/engine/hot.h"
#include "firn/canary.h"

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
    if (FIRN_CANARY(14) && piece.bytes > page_bytes) piece.bytes -= piece.bytes % page_bytes;
    block.pieces.push_back(piece);
  }
}

namespace {
bool clean(std::span<const Piece> pieces) {
  return std::all_of(pieces.begin(), pieces.end(), [](const Piece& piece) {
    return piece.elsewhere();
  });
}
}  // namespace

/// Begins to spill a block that is neither held nor pinned. `leave`: at least `pages` of it, from
/// the tail, are unmapped in the end; otherwise its bytes are only made valid elsewhere.
bool EngineImpl::start_spill(Block& block, bool leave, uint64_t pages) {
  if (health_.dead() || block.coming > 0) return false;
  uint64_t w = block.word.load();
  // (A part mapped to host memory is not on the device.)
  if (leave && spilling_stopped_ && !FIRN_CANARY(38) && !(w & word::zero_copy)) return false;
  if (leave && !block.leave && block.state() == State::spilling) keep(block);  // more than cleaning
  w = block.word.load();
  if (!AgeOrder::may_leave(block, w) || (block.segment != 0 && !(leave && put_aside(block))))
    return false;
  do {
    if (!AgeOrder::may_leave(block, w)) {
      if (block.segment != 0) take_back(block);  // (held meanwhile)
      return false;
    }
  } while (!block.word.try_spill(w, block.address));
  make_pieces(block);
  // (A block may be used on recorded streams until it is freed, without further reports.)
  if (w & word::recorded)
    for (uint16_t stream : block.recorded_streams) uses_.add(block, streams_.now(stream));
  if (leave && learner_) planner_.note_leaving(*learner_, block);
  block.leave = leave;
  block.uses_ordered = false;
  uint64_t left = pages;
  for (size_t i = block.spans.size(); i-- > 0 && left > 0;) {
    Span& span = block.spans[i];
    if (!span.mapped() || (!leave && clean(pieces_of(block, span)))) continue;
    span.leaving = leave;
    left -= std::min<uint64_t>(left, span.pages);
    for (Piece& piece : pieces_of(block, span)) {
      piece.wanted_out = true;
      if (leave && piece.elsewhere())
        counted_.clean_dropped_bytes += piece.bytes;
    }
  }
  spilling_.push_back(&block);
  busy_.store(true, std::memory_order_relaxed);
  trace("spill", block, leave ? "" : "ahead");
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
                          no_store()));
      keep(block);
    }
    return false;
  }
  Error error;
  if (!block.uses_ordered && !FIRN_CANARY(29)) {
    const Result<void> ordered = uses_.order(transfers_.out(), block);
    if (!ordered) error = ordered.error();
    block.uses_ordered = error.code == Code::ok;
  }
  const bool waited = error.code == Code::ok && !uses_.over_but_on(block, transfers_.out());
  if (error.code == Code::ok)
    if (Result<void> begun = transfers_.copy_out(block, index, staging, waited); !begun)
      error = begun.error();
  if (error.code != Code::ok) {
    host_.unref(staging);
    if (error.code == Code::busy && uses_.close(block)) return false;  // once its uses are over
    if (!health_.dead() && error.code != Code::busy)
      trouble("a block stays on the device because it could not be copied out: " + error.text);
    block.age.store(next_tick(), std::memory_order_relaxed);
    keep(block);
    return false;
  }
  return true;
}

void EngineImpl::advance_spill(Block& block) {
  for (uint32_t i = 0; i < block.pieces.size(); ++i) {
    Piece& piece = block.pieces[i];
    if (!piece.wanted_out || piece.elsewhere() || piece.copying_out) continue;
    if (!copy_out(block, i)) break;
    // Each has its own event: it goes on to the store, or leaves, while the next one is copied.
    (void)streams_.close(streams_.now(transfers_.out()));
  }
}

/// Nothing in sight will free host memory.
bool EngineImpl::host_stuck() const {
  // (Nothing leaves it, or there is none at all.)
  const bool stays = !store_ || write_back_.full() || host_.used() == 0;
  return stays && !transfers_.requesting() && !transfers_.copying() && !host_.may_grow();
}

/// Unmaps the spans that may go. spilling -> hosted once all that was to leave has left, or back to
/// resident when the bytes were only to be made valid elsewhere.
bool EngineImpl::finish_spill(Block& block) {
  bool waiting = false;
  size_t begin = 0, end = 0;  // of spans side by side that may go
  const auto go = [&] {
    if (begin < end) unmap_run(block, begin, end);
    begin = end = 0;
  };
  for (size_t i = 0; i < block.spans.size(); ++i) {
    Span& span = block.spans[i];
    bool valid = true;
    for (const Piece& piece : pieces_of(block, span))
      if (piece.wanted_out)
        valid &= FIRN_CANARY(19) || (!piece.copying_out && piece.elsewhere());
    waiting |= !valid;
    if (!valid || !span.leaving) continue;
    // Its own copies out are over; those of other pieces may be in flight.
    if (!uses_.over_but_on(block, transfers_.out())) {
      go();
      (void)uses_.close(block);
      return false;
    }
    if (net_ && !left_unwritten(block, span)) {
      waiting = true;
      continue;
    }
    if (i != end) go();
    if (begin == end) begin = i;
    end = i + 1;
  }
  go();
  if (waiting) return false;
  keep(block);
  return true;
}

void EngineImpl::finish_spills() {
  each_of(spilling_, [this](Block& block) { (void)finish_spill(block); });
}

/// Ends a spill: everything that was to leave has left, or it was touched, or failed. Resident when
/// nothing was unmapped; hosted when something was.
void EngineImpl::keep(Block& block) {
  for (Span& span : block.spans) span.leaving = false;
  for (Piece& piece : block.pieces) piece.wanted_out = false;
  std::erase(spilling_, &block);
  if (block.mapped == block.pages) {
    transit(block, Event::keep);
    trace("kept", block);
    if (block.segment != 0) take_back(block);
    return;
  }
  block.arrival = {};  // over, or nothing would have been unmapped
  transit(block, Event::copied_out,
          word::Flags(word::unsettled).and_if(block.mapped == block.device, word::zero_copy));
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
  // (Copies made ahead, on their way to the store, are not to be made twice.)
  const bool on_their_way = plan_.valid && store_ && !write_back_.full();
  return host_copies_.staging(
      bytes, reserve,
      {plan_.valid ? std::optional(plan_.window) : std::nullopt, !on_their_way});
}

void EngineImpl::drop_piece(Piece& piece) {
  transfers_.drop(piece);
  piece.summed = piece.summing = piece.checked = piece.doubtful = piece.unproven = false;
  piece.read_tries = 0;
  if (piece.host) host_.unref(piece.host);
  piece.host = nullptr;
  piece.host_valid = false;
  if (piece.slot && !FIRN_CANARY(36)) {
    store_->discard(piece.slot);
    write_back_.slot_came_free();
  }
  piece.slot = {};
  piece.slot_valid = false;
}

/// The device's bytes are about to change, or are not wanted any more.
void EngineImpl::drop_copies(Block& block) {
  if (options_.guard) (void)open_guarded(block);
  if (!FIRN_CANARY(30)) ++block.version;
  for (Piece& piece : block.pieces) drop_piece(piece);
  block.word.clear(word::copies);
  stuck_ = false;
}

/// A copy out is over: the piece is valid in host memory.
void EngineImpl::came_out(const PieceRef& ref) {
  Piece& piece = piece_of(ref);
  piece.copying_out = false;
  piece.host_valid = true;
  counted_.spilled_bytes += piece.bytes;
  plan_.write_looked = false;
  if (!options_.baseline || !options_.baseline->came_out(ref)) host_copies_.arrived(ref);
  if (options_.guard) guard(*ref.block);
}

/// Makes the oldest blocks' bytes valid elsewhere ahead of need, without unmapping them: when room
/// is needed they are dropped without I/O.
bool EngineImpl::clean_ahead() {
  const uint64_t now = tick();
  if (!pressed_ || stuck_ || options_.adversarial || !spilling_.empty() || waiting_ > 0 ||
      now < ahead_tick_ + live_.size() / 8 + 1)
    return false;
  ahead_tick_ = now;
  ahead_.reset();
  const uint64_t target = std::max<uint64_t>(frames_.budget_granules() * granule_pages / 16, 1);
  uint64_t pages = 0;
  bool any = false;
  while (pages < target) {
    Block* block = ahead_.next(live_, now, false);  // (A segment has no copies while it is there.)
    if (!block) break;
    pages += block->pages;
    bool clean = !block->pieces.empty();
    for (const Piece& piece : block->pieces) clean &= piece.elsewhere();
    if (clean || !uses_.over(*block)) continue;
    any |= start_spill(*block, false);
    if (host_.used() > host_.budget() * 3 / 4) break;
  }
  return any;
}

}  // namespace firn
