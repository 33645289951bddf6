// The way on: host memory to the store. A piece keeps its host copy until others need the room.
// When a write may begin, movement/write_back.h tells.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "allocator/base/check.h"
#include "allocator/engine/baseline.h"
#include "allocator/engine/tiers.h"
#include "firn/canary.h"

namespace firn {

/// By the plan; without one, in the order of arrival, from half of host memory on.
bool EngineImpl::next_write(PieceRef& ref) {
  const auto take = [&](std::optional<PieceRef> next) {
    if (next) ref = *next;
    return next.has_value();
  };
  if (options_.baseline)
    while (const std::optional<PieceRef> next = options_.baseline->next_write())
      if (HostCopies::is_unwritten(*next)) return take(next);
  if (plan_.valid) {
    const auto next = EngineTiers::carry_out(*this).next_write();
    if (next) ref = piece_ref(*next->block, static_cast<uint32_t>(next->piece));
    return next.has_value();
  }
  const uint64_t stays = options_.baseline
                             ? options_.baseline->writes_from(EngineTiers(*this))
                             : host_.budget() / 2;
  return (staging_wanted_ || host_.closing() || host_.used() > stays) &&
         take(host_copies_.next_by_arrival());
}

/// Begins writes that are due, as much at a time as keeps the store busy.
bool EngineImpl::write_back() {
  bool any = false;
  const uint64_t now = clock_.now_ns();
  if (write_back_.begin_round(now)) stuck_ = false;
  const uint64_t most =
      plan_.valid ? in_flight_most() : std::max(host_.budget() / 4, options_.piece_bytes);
  if (write_back_.full() && options_.baseline)  // they stay, to be dropped as other copies are
    for (const PieceRef& bound : options_.baseline->give_up_writes()) host_copies_.arrived(bound);
  PieceRef ref{};
  while (write_back_.may_begin(now) && transfers_.writing_bytes() < most && next_write(ref)) {
    Piece& piece = piece_of(ref);
    if (!plan_.valid && ref.block->state() == State::resident && ref.block->leave &&
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
bool EngineImpl::start_write(const PieceRef& ref) {
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

void EngineImpl::written(const PieceRef& ref, const StoreCompletion& completion,
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
  if (options_.baseline && options_.baseline->leaves_host(block) &&
      block.state() != State::faulting) {
    host_copies_.drop(piece);
  } else {
    host_copies_.stored(ref);
  }
  stuck_ = false;
  settle_away(block);
}

void EngineImpl::not_written(const PieceRef& ref, Slot slot, const Error& error,
                             uint64_t begun_ns) {
  store_->discard(slot);
  host_copies_.put_back(ref);
  take_no_more("a write to a spill file failed; the bytes stay in host memory: ", error, begun_ns);
}

/// The store does not take a piece, and is tried again. `begun_ns`: when it was tried.
void EngineImpl::take_no_more(const char* what, const Error& error, uint64_t begun_ns) {
  if (write_back_.failed(error, begun_ns, clock_.now_ns())) trouble(what + error.text);
}

}  // namespace firn
