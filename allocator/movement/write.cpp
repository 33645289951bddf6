// The way on: host memory to the store. A piece keeps its host copy until others need the room.
// When a write may begin, write_back.h tells; which is next, the owner.
#include <algorithm>
#include <utility>

#include "allocator/lifetimes/carry_out.h"
#include "allocator/movement/movement.h"
#include "firn/canary.h"
#include "firn/check.h"

namespace firn {

bool Movement::write_back() {
  bool any = false;
  const uint64_t now = clock_.now_ns();
  if (write_back_.begin_round(now)) stuck_ = false;
  const bool planned = owner_.window().has_value();
  const uint64_t most = planned
                            ? lifetimes::in_flight_most(options_.span_bytes, host_.budget())
                            : std::max(host_.budget() / 4, options_.piece_bytes);
  if (write_back_.full())  // they stay, to be dropped as other copies are
    for (const PieceRef& bound : owner_.give_up_writes()) host_copies_.arrived(bound);
  while (write_back_.may_begin(now) && transfers_.writing_bytes() < most) {
    const std::optional<PieceRef> next = owner_.next_write();
    if (!next) break;
    const PieceRef& ref = *next;
    Piece& piece = piece_of(ref);
    if (!planned && ref.block->state() == State::resident && ref.block->leave &&
        piece.host->refs == 1) {
      // It left and came back: in use again, its bytes are on the device. Not worth a write.
      host_copies_.drop(piece);
      continue;
    }
    if (!start_write(ref)) break;
    any = true;
  }
  return any;
}

/// False: the store did not take it. The piece stays in host memory, to be written later.
bool Movement::start_write(const PieceRef& ref) {
  Piece& piece = piece_of(ref);
  Result<Slot> slot = store_->reserve(piece.host->bytes, false);
  if (!slot) {
    host_copies_.put_back(ref);
    if (slot.error().code == Code::busy) {
      write_back_.store_grows();
      return false;
    }
    take_no_more("spilled blocks stay in host memory: ", slot.error(), clock_.now_ns());
    return false;
  }
  const uint64_t now = clock_.now_ns();
  const Result<void> begun = transfers_.write(*ref.block, ref.piece, *slot);
  if (!begun) {
    not_written(ref, *slot, begun.error(), now);
    return false;
  }
  if (FIRN_CANARY(4)) store_->discard(*slot);
  if (FIRN_CANARY(5)) host_copies_.drop(piece);
  return true;
}

void Movement::written(const PieceRef& ref, const StoreCompletion& completion,
                       uint64_t begun_ns) {
  if (!current(ref)) return;
  Block& block = *ref.block;
  Piece& piece = piece_of(ref);
  piece.writing = false;
  piece.request = nullptr;
  if (completion.error.code != Code::ok && !FIRN_CANARY(28))
    return not_written(ref, std::exchange(piece.slot, {}), completion.error, begun_ns);
  write_back_.succeeded();
  if (!written_as_arrived(block, piece, completion)) return;
  piece.slot_valid = true;
  if (owner_.leaves_host(block) && block.state() != State::faulting && !block.at_host)
    host_copies_.drop(piece);
  else
    host_copies_.stored(ref);
  stuck_ = false;
  settle_away(block);
}

void Movement::not_written(const PieceRef& ref, Slot slot, const Error& error,
                           uint64_t begun_ns) {
  store_->discard(slot);
  host_copies_.put_back(ref);
  take_no_more("a write to a spill file failed; the bytes stay in host memory: ", error, begun_ns);
}

/// The store does not take a piece, and is tried again. `begun_ns`: when it was tried.
void Movement::take_no_more(const char* what, const Error& error, uint64_t begun_ns) {
  if (write_back_.failed(error, begun_ns, clock_.now_ns())) trouble(what + error.text);
}

}  // namespace firn
