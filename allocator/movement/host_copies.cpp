#include "allocator/movement/host_copies.h"

#include <algorithm>

#include "allocator/movement/host_use.h"
#include "firn/canary.h"

namespace firn {

namespace {
/// Removes stale references, seldom enough to cost little.
template <class Keep>
void tidy(std::deque<PieceRef>& refs, size_t& limit, Keep&& keep) FIRN_HELD {
  if (refs.size() < limit) return;
  std::erase_if(refs, [&](const PieceRef& ref) FIRN_HELD { return !keep(ref); });
  limit = 2 * refs.size() + 1024;
}

bool in_both(const PieceRef& ref) FIRN_HELD {  // host memory and the store
  return current(ref) && piece_of(ref).host && piece_of(ref).host_valid && piece_of(ref).slot_valid;
}
/// The copy is waited for, or in transit.
bool busy(const PieceRef& ref) FIRN_HELD {
  const Piece& piece = piece_of(ref);
  return piece.host->refs > 1 || (ref.block->state() == State::faulting && !piece.on_device);
}
/// In host memory and on the device, where nothing holds the former.
bool on_device_too(const PieceRef& ref) FIRN_HELD {
  return HostCopies::is_unwritten(ref) && ref.block->state() == State::resident &&
         piece_of(ref).host->refs <= 1;
}
}  // namespace

bool HostCopies::is_unwritten(const PieceRef& ref) {
  return current(ref) && piece_of(ref).host_valid && !piece_of(ref).slot &&
         !(ref.block->at_host && ref.block->at_host->writes);
}

void HostCopies::arrived(const PieceRef& ref) {
  unwritten_.push_back(ref);
  tidy(unwritten_, unwritten_tidy_, is_unwritten);
}

void HostCopies::returned(const PieceRef& ref) {
  returned_.push_back(ref);
  tidy(returned_, returned_tidy_, [](const PieceRef& old) FIRN_HELD {
    return current(old) && piece_of(old).on_device && piece_of(old).host_valid;
  });
}

std::optional<PieceRef> HostCopies::next_by_arrival() {
  while (!unwritten_.empty()) {
    const PieceRef ref = unwritten_.front();
    unwritten_.pop_front();
    if (is_unwritten(ref)) return ref;
  }
  return std::nullopt;
}

std::optional<PieceRef> HostCopies::next_by_use() {
  std::erase_if(unwritten_, [](const PieceRef& ref) FIRN_HELD { return !is_unwritten(ref); });
  const auto last = std::max_element(unwritten_.begin(), unwritten_.end(),
                                     [](const PieceRef& a, const PieceRef& b) FIRN_HELD {
                                       return a.block->next_use < b.block->next_use;
                                     });
  if (last == unwritten_.end()) return std::nullopt;
  const PieceRef ref = *last;
  unwritten_.erase(last);
  return ref;
}

void HostCopies::drop(Piece& piece) {
  host_.unref(piece.host);
  piece.host = nullptr;
  piece.host_valid = piece.checked = piece.summing = false;
}

bool HostCopies::drop_returned(uint64_t window) {
  while (!returned_.empty()) {
    const PieceRef ref = returned_.front();
    returned_.pop_front();
    if (!current(ref) || ref.block->next_change > window) continue;
    Piece& piece = piece_of(ref);
    // (Of a block that still arrives, the device's copy goes where another piece's copy is
    // refused.)
    const bool stays = ref.block->state() == State::resident || FIRN_CANARY(6);
    if (!stays || !piece.on_device || !piece.host_valid || piece.host->refs > 1) continue;
    drop(piece);
    return true;
  }
  return false;
}

bool HostCopies::drop_used_after(uint64_t wanted_at, uint64_t window) {
  std::erase_if(stored_, [](const PieceRef& ref) FIRN_HELD { return !in_both(ref); });
  auto best = stored_.end();
  uint64_t best_at = wanted_at;
  for (auto it = stored_.begin(); it != stored_.end() && best_at != UINT64_MAX; ++it) {
    // A piece that is on the device until its next use does not come from host memory then.
    const uint64_t next_use = it->block->next_use;
    const uint64_t at = piece_of(*it).on_device && next_use <= window ? UINT64_MAX : next_use;
    if (at <= best_at || busy(*it)) continue;
    best = it;
    best_at = at;
  }
  if (best == stored_.end()) return false;
  drop(piece_of(*best));
  stored_.erase(best);
  return true;
}

bool HostCopies::drop_stored() {
  for (size_t tries = stored_.size(); tries > 0; --tries) {
    const PieceRef ref = stored_.front();
    stored_.pop_front();
    if (!in_both(ref)) continue;
    if (busy(ref)) {
      stored_.push_back(ref);
      continue;
    }
    drop(piece_of(ref));
    return true;
  }
  return false;
}

bool HostCopies::drop_resident() {
  const auto found = std::find_if(unwritten_.begin(), unwritten_.end(), on_device_too);
  if (found == unwritten_.end()) return false;
  drop(piece_of(*found));
  unwritten_.erase(found);
  return true;
}

bool HostCopies::resident_suffice(uint64_t bytes) const {
  uint64_t there = host_.budget() - std::min(host_.budget(), host_.used());
  for (const PieceRef& ref : unwritten_)
    if (there < bytes && on_device_too(ref)) there += piece_of(ref).bytes;
  return there >= bytes;
}

void HostCopies::drop_closed(std::span<Block* const> blocks) {
  for (Block* block : blocks)
    for (Piece& piece : block->pieces) {
      if (!piece.host || !piece.host_valid || piece.host->refs > 1 || !host_.closes(*piece.host))
        continue;
      const bool there = piece.on_device && block->state() == State::resident;
      if (there || (piece.slot_valid && (block->state() != State::faulting || piece.on_device)))
        drop(piece);
    }
}

Staging* HostCopies::staging(size_t bytes, uint64_t reserve, const GiveWay& give_way) {
  std::optional<bool> suffice;  // asked once nothing else gives way
  const auto one_gives_way = [&]() FIRN_HELD {
    const std::optional<uint64_t>& window = give_way.window;
    if ((window && drop_planned(0, *window)) || drop_stored()) return true;
    if (!give_way.resident) return false;
    if (!suffice) suffice = resident_suffice(bytes + reserve);
    return *suffice && drop_resident();
  };
  for (;;) {
    if (Staging* staging = host_.acquire(bytes, reserve)) return staging;
    if (!one_gives_way()) return nullptr;
  }
}

}  // namespace firn
