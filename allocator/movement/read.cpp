// From the store to host memory: a failed read is tried again, with pauses, for firn_io_patience;
// and the end of a fault whose bytes cannot be had.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "allocator/base/sizes.h"
#include "allocator/movement/host_use.h"
#include "allocator/movement/io_pause.h"
#include "allocator/movement/movement.h"
#include "firn/canary.h"
#include "firn/check.h"

namespace firn {

bool Movement::start_read(Block& block, uint32_t index) {
  Piece& piece = block.pieces[index];
  FIRN_CHECK(piece.slot_valid, "block %llx piece %u has no copy", (unsigned long long)block.address,
             index);
  if (clock_.now_ns() < piece.read_again_ns) return false;
  Staging* staging = staging_for(piece.bytes, 0);
  // Host memory is full of bytes that have nowhere else to go, and nothing in flight will free any:
  // what is needed now comes first, one piece beyond the budget.
  if (!staging && host_stuck()) {
    staging = host_.acquire_beyond(piece.bytes);
    if (!staging) {
      unread(block, piece, make_error(Code::out_of_memory, 0, no_staging_words(piece.bytes)));
      return false;
    }
  }
  if (!staging) {
    staging_wanted_ = true;
    return false;
  }
  return begin_read(block, index, staging);
}

/// With staging for it, which is given back where it does not begin.
bool Movement::begin_read(Block& block, uint32_t index, Staging* staging) {
  Piece& piece = block.pieces[index];
  if (piece.read_tries < UINT16_MAX) ++piece.read_tries;
  const Result<void> begun = transfers_.read(block, index, staging);
  if (begun) return true;
  host_.unref(staging);
  unread(block, piece, begun.error());
  return false;
}

std::string Movement::no_staging_words(size_t bytes) const {
  return fmt::format("no host memory to stage {} of it (the system refuses more; firn_host sets "
                     "how much Firn requests){}",
                     format_size(bytes), host_.trouble().empty() ? "" : ": " + host_.trouble());
}

void Movement::read_done(const PieceRef& ref, const StoreCompletion& completion) {
  Block& block = *ref.block;
  const bool other_life = block.generation != ref.generation && !FIRN_CANARY(8);
  const bool other_version =
      block.version != ref.version && !FIRN_CANARY(7) && !FIRN_CANARY(8);
  if (other_life || other_version) return;
  Piece& piece = piece_of(ref);
  piece.reading = false;
  piece.request = nullptr;
  if (completion.error.code == Code::ok || FIRN_CANARY(31)) {
    piece.host_valid = true;
    piece.summed = options_.sums && completion.sum;
    if (piece.summed) piece.sum = *completion.sum;
    piece.checked = block.state() == State::faulting || block.at_host;  // by the store, just now
    unread_said_ = false;
    piece.unread_ns = piece.read_again_ns = 0;
    piece.read_failures = 0;
    if (block.at_host) hold_at_host(*block.at_host, ref.piece);
    host_copies_.stored(piece_ref(block, ref.piece));
    return;
  }
  host_.unref(piece.host);
  piece.host = nullptr;
  unread(block, piece, completion.error);
}

/// A piece could not be read. It is lost if the store has read it again by other ways, and found it
/// wrong or gone; any other failure may pass: the device resets, a path comes back.
void Movement::unread(Block& block, Piece& piece, const Error& error) {
  const uint64_t now = clock_.now_ns();
  const bool fault = block.state() == State::faulting;
  const bool wanted = fault || block.at_host;
  const bool for_good =
      error.code == Code::corrupt || error.code == Code::lost || FIRN_CANARY(32);
  if (for_good && wanted) {
    block.fault_error = error;
    if (!fault) return lose(block);
    block.failing = Block::Failing::lost;
    return settle_failed(block);
  }
  piece.read_again_ns = now + io_pause_ns(piece.read_failures);
  ++piece.read_failures;
  if (!wanted) return;  // so far
  if (piece.unread_ns == 0) piece.unread_ns = now;
  const uint64_t so_far = now - piece.unread_ns;
  const uint64_t patience =
      block.unreadable ? std::min(said_after_ns, options_.io_patience_ns) : options_.io_patience_ns;
  if (so_far < patience) {
    if (so_far >= said_after_ns && !std::exchange(unread_said_, true))
      trouble(fmt::format("a spilled block cannot be read back; Firn retries for {} s "
                          "(firn_io_patience): {}",
                          patience / 1'000'000'000, error.text));
    return;
  }
  block.fault_error = error;
  if (!fault) {
    give_up_reading(block);
    return fail_host_use(*block.at_host, error);
  }
  block.failing = Block::Failing::reads;
  settle_failed(block);
}

/// Ends a fault that cannot go on, once the copies under way are over: until then, a later round
/// comes here again. No thread waits for them under the lock.
void Movement::settle_failed(Block& block) {
  if (health_.dead()) return;  // nothing is unmapped any more, nor is anything lost
  if (!uses_.over(block)) return (void)uses_.close(block);
  const Block::Failing why = std::exchange(block.failing, Block::Failing::nothing);
  switch (why) {
    case Block::Failing::nothing: return;
    case Block::Failing::lost: return lose(block);
    case Block::Failing::copies:
      ++block.fault_failures;
      trouble("the driver refused a copy to the device; Firn tries again: " +
              block.fault_error.text);
      break;
    case Block::Failing::reads:
      give_up_reading(block);
      break;
  }
  undo_fault(block);
}

/// Its last copy is wrong, or gone.
void Movement::lose(Block& block) {
  if (!block.unreadable) ++failed_.lost_blocks;
  block.unreadable = false;
  say_lost(block, "is LOST");
  drop_copies(block);
  if (mapper_.give_up(block)) owner_.work_begins();
  std::erase(faulting_, &block);
  if (block.at_host) fail_host_use(*block.at_host, block.fault_error);
  transit(block, Event::read_failed, word::unsettled | word::zero_copy);
  owner_.lost(block);
  clock_.notify();
}

/// Its bytes may be well where they are: they stay there, and the block's next use tries again.
/// (They are well if only host memory is lacking for their transfer.)
void Movement::give_up_reading(Block& block) {
  ++block.read_refusals;
  if (block.fault_error.code == Code::out_of_memory) return;
  if (std::exchange(block.unreadable, true)) return;
  ++failed_.lost_blocks;
  say_lost(block, "cannot be read and counts as LOST until a read succeeds");
}

void Movement::read_at_last(Block& block) {
  block.unreadable = false;
  failed_.lost_blocks = failed_.lost_blocks - 1;
  say_lost(block, "was read at last; its earlier error was");
}

void Movement::say_lost(const Block& block, const char* how) const {
  say(fmt::format("block {:#x} ({} bytes) {}: {}", block.address, size_t{block.requested}, how,
                  describe(block.fault_error)));
}

/// Returns the block to where its bytes are; its next use tries again.
void Movement::undo_fault(Block& block) {
  for (Span& span : block.spans) {
    std::span<Piece> pieces = pieces_of(block, span);
    if (span.mapped() && !std::all_of(pieces.begin(), pieces.end(),
                                      [](const Piece& piece) { return piece.on_device; })) {
      const auto at = static_cast<size_t>(&span - block.spans.data());
      unmap_run(block, at, at + 1);
    }
  }
  std::erase(faulting_, &block);
  transit(block, Event::unfault);
  trace("unfault", block);
  settle_away(block);
  clock_.notify();
}

}  // namespace firn
