// The way in, once spans are mapped: bytes from host memory, or from the store (read.cpp), are
// copied to the device. The block is resident once every piece's copy is enqueued; streams that use
// it wait for the copy's event.
#include <algorithm>

#include "allocator/movement/movement.h"
#include "firn/canary.h"

namespace firn {

void Movement::arrive(Block& block, bool prefetched) {
  begin_arriving(block, prefetched);
  advance_fault(block);
}

void Movement::begin_arriving(Block& block, bool prefetched) {
  if (block.state() != State::faulting) {
    transit(block, Event::fault);
    block.failing = Block::Failing::nothing;
    for (Piece& piece : block.pieces) {
      piece.unread_ns = 0;
      piece.checked = false;
    }
    faulting_.push_back(&block);
    ++moved_.faults;
  }
  block.prefetched = prefetched;
  if (options_.poison) poison(block);
  owner_.work_begins();
  trace(prefetched ? "prefetch" : "fault", block);
}

bool Movement::copy_in(Block& block, uint32_t index) {
  Piece& piece = block.pieces[index];
  if (Result<void> begun = transfers_.copy_in(block, index); !begun) {
    block.fault_error = begun.error();
    block.failing = Block::Failing::copies;
    settle_failed(block);
    return false;
  }
  piece.checked = false;
  piece.unproven = options_.verify;
  return true;
}

void Movement::advance_fault(Block& block) {
  if (block.state() != State::faulting) return;
  if (block.failing != Block::Failing::nothing) return settle_failed(block);
  bool waiting = false, issued = false;
  for (uint32_t i = 0; i < block.pieces.size(); ++i) {
    Piece& piece = block.pieces[i];
    if (piece.on_device || !block.span_of(piece).mapped()) continue;
    if (piece.host_valid) {
      if (piece.summed && !piece.checked) {
        if (!piece.doubtful || !piece.writing)
          sum_later(piece_ref(block, i), false);
        waiting = true;
        continue;
      }
      bool forwarded = piece.read_tries == 0;
      if (!copy_in(block, i)) return;
      issued = true;
      (block.prefetched ? moved_.prefetched_bytes : moved_.faulted_bytes) += piece.bytes;
      if (forwarded) moved_.forwarded_bytes += piece.bytes;
      piece.read_tries = 0;
      continue;
    }
    waiting = true;
    if (!piece.reading) (void)start_read(block, i);
    if (block.state() != State::faulting || block.failing != Block::Failing::nothing) return;
  }
  if (issued) (void)streams_.close(streams_.now(transfers_.in()));
  if (waiting || !arrived_whole(block)) return;
  std::erase(faulting_, &block);
  if (block.mapped < block.pages) {  // a part came ahead of its use, there was no room for more
    transit(block, Event::unfault);
    trace("unfault", block);
    settle_away(block);
    return;
  }
  // The last copy in on the copy stream; everything before it is over when it is.
  block.arrival = {};
  for (Use use : block.more_uses)
    if (use.stream() == transfers_.in()) block.arrival = use;
  if (block.arrival && !FIRN_CANARY(27))
    block.word.set(word::unsettled);
  owner_.make_young(block);
  if (block.unreadable) read_at_last(block);
  transit(block, Event::arrived);
  trace("arrived", block);
  if (block.segment != 0) owner_.take_back(block);
  clock_.notify();
}

uint64_t Movement::arriving_bytes() const {
  uint64_t arriving = transfers_.bytes_in();
  for (const Block* block : faulting_)
    for (const Piece& piece : block->pieces)
      if (!piece.on_device && block->span_of(piece).mapped()) arriving += piece.bytes;
  return arriving + mapper_.claimed_bytes();
}

}  // namespace firn
