// Used in host memory: the pieces of a block of which nothing is on the device are gathered there,
// read from the store where need be, and held until the use ends. A block that was written there
// has its bytes there alone: the store's copies are dropped before that, and what is behind it
// goes on from there as from a copy that has just come out.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "allocator/base/sizes.h"
#include "allocator/movement/host_use.h"
#include "allocator/movement/movement.h"
#include "firn/canary.h"
#include "firn/check.h"

namespace firn {

namespace {
uint64_t bytes_in(const Block& block) FIRN_HELD {
  uint64_t bytes = 0;
  for (const Piece& piece : block.pieces) bytes += piece.bytes;
  return bytes;
}
}  // namespace

void Movement::begin_host_use(HostUse& use) {
  Block& block = use.block;
  FIRN_CHECK(block.mapped == 0 && block.coming == 0 && !block.at_host, "block %llx",
             (unsigned long long)block.address);
  use.held.resize(block.pieces.size());
  gathering_.push_back(&use);
  block.at_host = &use;
  host_use_bytes_ += bytes_in(block);
  for (Piece& piece : block.pieces) {
    piece.unread_ns = 0;
    piece.checked = false;
  }
  owner_.work_begins();
  trace("on_host", block, use.writes ? "write" : "read");
  gather(use);
}

/// As soon as a piece is there: host memory that nobody holds goes to whatever asks next.
void Movement::hold_at_host(HostUse& use, uint32_t index) {
  const Piece& piece = use.block.pieces[index];
  Staging*& held = use.held[index];
  if (held && held != piece.host) host_.unref(std::exchange(held, nullptr));  // (It was wrong.)
  if (!piece.host_valid || held) return;
  host_.ref(piece.host);
  held = piece.host;
}

/// Goes on until all is there. What is there is held first: what is read may have the room of
/// copies that others hold no more.
void Movement::gather(HostUse& use) {
  Block& block = use.block;
  bool all = true;
  for (uint32_t i = 0; i < block.pieces.size(); ++i) {
    Piece& piece = block.pieces[i];
    hold_at_host(use, i);
    if (!piece.host_valid) {
      all = false;
      continue;
    }
    if (piece.summed && !piece.checked) {
      if (!piece.doubtful || !piece.writing) sum_later(piece_ref(block, i), false);
      all = false;
    }
    // (A write to the store, a copy or a sum that is under way has the bytes as they were.)
    if (use.writes && use.held[i]->refs > 2 && !FIRN_CANARY(48)) all = false;
  }
  if (all) return start_host_use(use);
  bool lacks = false;
  for (uint32_t i = 0; i < block.pieces.size() && !lacks; ++i) {
    const Piece& piece = block.pieces[i];
    if (piece.host_valid || piece.reading || clock_.now_ns() < piece.read_again_ns) continue;
    if (Staging* staging = staging_for(piece.bytes, 0))
      (void)begin_read(block, i, staging);
    else
      staging_wanted_ = lacks = true;
    if (use.error.code != Code::ok) return;
  }
  use.idle_rounds = lacks && host_idle() ? use.idle_rounds + 1 : 0;
  if (use.idle_rounds > idle_rounds_most) fail_host_use(use, no_host_memory(block));
}

/// All is there. Nothing but this use has what it is to write: that is the block's one copy from
/// here on.
void Movement::start_host_use(HostUse& use) {
  Block& block = use.block;
  if (block.unreadable) read_at_last(block);
  if (use.writes) {
    ++block.version;
    for (Piece& piece : block.pieces) {
      piece.summed = piece.checked = piece.doubtful = piece.unproven = false;
      piece.read_tries = 0;
      if (!piece.slot || FIRN_CANARY(47)) continue;
      store_->discard(piece.slot);
      write_back_.slot_came_free();
      piece.slot = {};
      piece.slot_valid = false;
    }
    transit(block, Event::host_write);
    stuck_ = false;
  }
  std::erase(gathering_, &use);
  use.begun = true;
  clock_.notify();
}

void Movement::fail_host_use(HostUse& use, const Error& error) {
  std::erase(gathering_, &use);
  use.error = error;
  clock_.notify();
}

void Movement::end_host_use(HostUse& use) {
  Block& block = use.block;
  std::erase(gathering_, &use);
  for (Staging* staging : use.held)
    if (staging) host_.unref(staging);
  use.held.clear();
  block.at_host = nullptr;
  host_use_bytes_ -= bytes_in(block);
  stuck_ = false;
  if (use.begun && use.writes)
    for (uint32_t i = 0; i < block.pieces.size(); ++i) {
      if (options_.sums)
        sum_later(piece_ref(block, i), true);
      else
        came_out(piece_ref(block, i));
    }
  trace("off_host", block);
  owner_.work_begins();
  clock_.notify();
}

/// Will nothing that is under way give host memory back? (Uses in host memory end by themselves:
/// nobody waits for those.)
bool Movement::host_idle() const {
  return !transfers_.requesting() && !transfers_.copying() && !host_.may_grow() && !sums_.due() &&
         !sums_.taking() && !write_back_.pauses(clock_.now_ns());
}

Error Movement::no_host_memory(const Block& block) const {
  uint64_t others = host_use_bytes_;
  if (block.at_host) others -= bytes_in(block);
  return make_error(
      Code::host_out_of_memory, 0,
      fmt::format("block {:#x} ({}) cannot be used in host memory: Firn may have {} of it "
                  "(firn_host), of which {} are in use there by the program now{}",
                  block.address, format_size(block.requested), format_size(host_.budget()),
                  format_size(others),
                  !store_ || write_back_.full() ? std::string(", and ") + no_store() : ""));
}

}  // namespace firn
