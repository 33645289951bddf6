// The way out: device to host memory, frames unmapped (on to the store: write.cpp). The frames go
// only after every piece has a valid copy elsewhere and every use of the block is over.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "allocator/base/sizes.h"
#include "allocator/blocks/age_order.h"
#include "allocator/blocks/each_of.h"
#include "allocator/movement/movement.h"
#include "firn/canary.h"
#include "firn/check.h"

namespace firn {

void Movement::make_pieces(Block& block) {
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

bool Movement::start_spill(Block& block, bool leave, uint64_t pages) {
  if (health_.dead() || block.coming > 0) return false;
  uint64_t w = block.word.load();
  // (A part mapped to host memory is not on the device.)
  if (leave && owner_.keeps_all() && !FIRN_CANARY(38) && !(w & word::zero_copy)) return false;
  if (leave && !block.leave && block.state() == State::spilling) keep(block);  // more than cleaning
  if (drops(block)) return leave && start_drop(block);
  w = block.word.load();
  if (!AgeOrder::may_leave(block, w) || (block.segment != 0 && !(leave && owner_.put_aside(block))))
    return false;
  do {
    if (!AgeOrder::may_leave(block, w)) {
      if (block.segment != 0) owner_.take_back(block);  // (held meanwhile)
      return false;
    }
  } while (!block.word.try_spill(w, block.address));
  make_pieces(block);
  // (A block may be used on recorded streams until it is freed, without further reports.)
  if (w & word::recorded)
    for (uint16_t stream : block.recorded_streams) uses_.add(block, streams_.now(stream));
  if (leave) owner_.leaves(block);
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
        moved_.clean_dropped_bytes += piece.bytes;
    }
  }
  spilling_.push_back(&block);
  owner_.work_begins();
  trace("spill", block, leave ? "" : "ahead");
  advance_spill(block);
  return block.state() == State::spilling;
}

bool Movement::copy_out(Block& block, uint32_t index) {
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
    owner_.make_young(block);
    keep(block);
    return false;
  }
  return true;
}

void Movement::advance_spill(Block& block) {
  for (uint32_t i = 0; i < block.pieces.size(); ++i) {
    Piece& piece = block.pieces[i];
    if (!piece.wanted_out || piece.elsewhere() || piece.copying_out) continue;
    if (!copy_out(block, i)) break;
    // Each has its own event: it goes on to the store, or leaves, while the next one is copied.
    (void)streams_.close(streams_.now(transfers_.out()));
  }
}

/// Nothing in sight will free host memory.
bool Movement::host_stuck() const {
  // (Nothing leaves it, there is none at all, or the program uses all of it.)
  const bool stays = !store_ || write_back_.full() || host_.used() <= host_use_bytes_;
  return stays && !transfers_.requesting() && !transfers_.copying() && !host_.may_grow();
}

/// Gives up mapped spans, [begin, end), whose uses are over.
void Movement::unmap_run(Block& block, size_t begin, size_t end) {
  mapper_.give_up(block, begin, end);
  owner_.work_begins();
}

/// Unmaps the spans that may go. spilling -> hosted once all that was to leave has left, or back to
/// resident when the bytes were only to be made valid elsewhere.
bool Movement::finish_spill(Block& block) {
  if (block.dropping) return finish_drop(block);
  bool waiting = false;
  size_t begin = 0, end = 0;  // of spans side by side that may go
  const auto go = [&]() FIRN_HELD {
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
    if (options_.verify && !left_unwritten(block, span)) {
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

void Movement::finish_spills() {
  each_of(spilling_, [this](Block& block) FIRN_HELD { (void)finish_spill(block); });
}

void Movement::keep(Block& block) {
  for (Span& span : block.spans) span.leaving = false;
  for (Piece& piece : block.pieces) piece.wanted_out = false;
  std::erase(spilling_, &block);
  if (std::exchange(block.dropping, false)) block.word.clear(word::copies);
  if (block.mapped == block.pages) {
    transit(block, Event::keep);
    trace("kept", block);
    if (block.segment != 0) owner_.take_back(block);
    return;
  }
  block.arrival = {};  // over, or nothing would have been unmapped
  transit(block, Event::copied_out,
          word::Flags(word::unsettled).and_if(block.mapped == block.device, word::zero_copy));
  trace("copied_out", block);
  settle_away(block);
}

void Movement::settle_away(Block& block) {
  if (block.state() != State::hosted) return;
  for (const Piece& piece : block.pieces)
    if (!piece.slot_valid) return;
  transit(block, Event::written);
  trace("written", block);
}

Staging* Movement::staging_for(size_t bytes, uint64_t reserve) {
  // (Copies made ahead, on their way to the store, are not to be made twice.)
  const std::optional<uint64_t> window = owner_.window();
  const bool on_their_way = window && store_ && !write_back_.full();
  return host_copies_.staging(bytes, reserve, {window, !on_their_way});
}

void Movement::drop_piece(Piece& piece) {
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

void Movement::drop_copies(Block& block) {
  if (options_.guard) (void)open_guarded(block);
  if (!FIRN_CANARY(30)) ++block.version;
  for (Piece& piece : block.pieces) drop_piece(piece);
  block.word.clear(word::copies);
  stuck_ = false;
}

/// A copy out is over, or a use in host memory: the piece is valid there.
void Movement::came_out(const PieceRef& ref) {
  Piece& piece = piece_of(ref);
  if (std::exchange(piece.copying_out, false)) moved_.spilled_bytes += piece.bytes;
  piece.host_valid = true;
  if (!owner_.came_out(ref)) host_copies_.arrived(ref);
  if (options_.guard) guard(*ref.block);
}

uint64_t Movement::leaving_pages(const Block& block) {
  uint64_t pages = 0;
  for (const Span& span : block.spans)
    if (span.leaving && !span.frames.front().host) pages += span.pages;
  return pages;
}

uint64_t Movement::leaving_pages() const {
  uint64_t pages = 0;
  for (const Block* block : spilling_) pages += leaving_pages(*block);
  return pages;
}

}  // namespace firn
