// Host memory in a rehearsal, used as in engine/host.cpp and engine/write.cpp: writes to the store,
// reads from it ahead of use, and which copies give way.
#include <algorithm>

#include "allocator/lifetimes/stage.h"

namespace firn::lifetimes {

uint64_t Stage::host_reserve() const {
  const uint64_t spare = tuning_.spare_part ? machine_.capacity / tuning_.spare_part : 0;
  return 4 * in_flight() + spare;
}

void Stage::lay_out_in_memory(uint32_t index, Item& item) const {
  item.on_device = item.clean = 0;
  for (const StagePiece& piece : blocks_[index].pieces) {
    if (!piece.mapped() && !piece.host) continue;
    item.on_device += piece.pages;
    if (piece.store_valid || piece.writing) item.clean += piece.pages;
  }
}

/// Enough to keep a channel busy, and little enough to leave host memory for others.
uint64_t Stage::in_flight() const {
  return std::max<uint64_t>(std::min(4 * machine_.piece, machine_.host / 8), 1);
}

/// Drops host copies that the store has too and that are used after `wanted_at`, the farthest next
/// use first, until there is room.
bool Stage::host_room(uint64_t pages, uint64_t margin, uint64_t wanted_at) {
  while (host_taken_ + pages + margin > machine_.host && drop_returned()) {
  }
  std::vector<Droppable> busy;
  while (host_taken_ + pages + margin > machine_.host && !droppable_.empty()) {
    const Droppable top = droppable_.top();
    StagePiece* piece = valid(top.ref);
    if (piece && piece->host_valid && piece->store_valid) {
      // A piece that stays on the device until its next use is not read from host memory then.
      const uint64_t next_use = blocks_[top.ref.block].next_use;
      if ((piece->device && next_use <= plan.window ? no_use : next_use) <= wanted_at) break;
      if (piece->arriving || piece->writing)
        busy.push_back(top);
      else
        give_host(*piece);
    }
    droppable_.pop();
  }
  for (const Droppable& one : busy) droppable_.push(one);
  return host_taken_ + pages + margin <= machine_.host;
}

/// Frees a host copy of a piece that came to the device and stays until it changes or dies.
bool Stage::drop_returned() {
  while (!returned_.empty()) {
    const Ref ref = returned_.front();
    returned_.pop_front();
    StagePiece* piece = valid(ref);
    StageBlock& block = blocks_[ref.block];
    if (!piece || block.next_change > plan.window || !piece->device || !piece->host_valid ||
        piece->writing || piece->leaving)
      continue;
    if (!piece->store_valid) block.clean -= piece->pages;
    give_host(*piece);
    return true;
  }
  return false;
}

/// Without a store: frees a host copy whose bytes are on the device as well.
bool Stage::drop_resident_host() {
  if (machine_.has_store()) return false;
  for (auto it = unwritten_.begin(); it != unwritten_.end();) {
    StagePiece* piece = valid(*it);
    const bool droppable = piece && piece->clean() && !piece->leaving;
    const Ref ref = *it;
    if (!piece || !piece->host_valid || droppable) it = unwritten_.erase(it);
    else ++it;
    if (!droppable) continue;
    give_host(*piece);
    blocks_[ref.block].clean -= piece->pages;
    return true;
  }
  return false;
}

/// The next piece that is planned to be in the store, from each block's tail.
StagePiece* Stage::planned_write(Ref& which) {
  for (size_t i = plan.written; i < plan.writes.size(); ++i) {
    const Entry& entry = plan.writes[i];
    StageBlock& block = blocks_[entry.block];
    bool over = !meant(entry);
    uint64_t covered = 0;
    for (size_t p = block.pieces.size(); p-- > 0 && !over;) {
      const StagePiece& piece = block.pieces[p];
      if (piece.store_valid || piece.writing) covered += piece.pages;
      over = covered >= entry.pages;
    }
    if (over) {
      if (i == plan.written) ++plan.written;
      continue;
    }
    for (uint32_t p = static_cast<uint32_t>(block.pieces.size()); p-- > 0;) {
      StagePiece& piece = block.pieces[p];
      if (!piece.host_valid || piece.store_valid || piece.writing) continue;
      which = ref(entry.block, p);
      return &piece;
    }
  }
  return nullptr;
}

/// Planned writes first; then, in the order of arrival, if host memory only buffers transfers;
/// else, if host memory is wanted, the farthest next use first.
StagePiece* Stage::next_write(Ref& which) {
  if (StagePiece* planned = planned_write(which)) return planned;
  if (!passage() && !host_wanted_) return nullptr;
  std::erase_if(unwritten_, [this](const Ref& ref) {
    const StagePiece* piece = valid(ref);
    return !piece || !piece->host_valid || piece->store_valid || piece->writing;
  });
  if (unwritten_.empty()) return nullptr;
  auto chosen = unwritten_.begin();
  if (!passage())
    chosen = std::max_element(chosen, unwritten_.end(), [this](const Ref& a, const Ref& b) {
      return blocks_[a.block].next_use < blocks_[b.block].next_use;
    });
  which = *chosen;
  unwritten_.erase(chosen);
  return valid(which);
}

bool Stage::begin_write() {
  if (!machine_.has_store() || on(Channel::store_write).active) return false;
  Ref ref{};
  StagePiece* piece = next_write(ref);
  if (!piece) return false;
  piece->writing = true;
  begin(Channel::store_write, ref);
  return true;
}

/// Reads pieces that only the store has into host memory, in the order of next use, while host
/// memory is better used for them than for what it holds.
bool Stage::read_for_host() {
  if (passage()) return false;
  for (; plan.read < plan.reads.size(); ++plan.read) {
    const Entry& entry = plan.reads[plan.read];
    if (!meant(entry)) continue;
    for (uint32_t i = 0; i < blocks_[entry.block].pieces.size(); ++i) {
      StagePiece& piece = blocks_[entry.block].pieces[i];
      if (piece.mapped() || piece.host || !piece.store_valid) continue;
      if (!host_room(piece.pages, 4 * in_flight(), entry.next_use)) return false;
      take_host(piece);
      piece.reading = true;
      begin(Channel::store_read, ref(entry.block, i));
      return true;
    }
  }
  return false;
}

}  // namespace firn::lifetimes
