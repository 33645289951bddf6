// Carries the plan out as engine/lifetimes.cpp, engine/room.cpp and engine/spill.cpp do: arrivals,
// evictions for them, and copies out ahead. For host memory see stage_host.cpp.
#include <algorithm>

#include "allocator/lifetimes/stage.h"

namespace firn::lifetimes {

namespace {
// At one instant each channel begins at most one transfer, with the evictions and arrivals that go
// with it. More rounds go in circles, which only time ends.
constexpr unsigned rounds_most = 1000;
}  // namespace

void Stage::pump() {
  bool any = true;
  for (unsigned rounds = 0; any && rounds < rounds_most; ++rounds) {
    host_wanted_ = false;
    any = begin_arrivals();
    any |= begin_in();
    any |= begin_out();
    any |= begin_write();
    any |= begin_read();
  }
}

bool Stage::may_leave(const StageBlock& block) const {
  return block.life && !block.held && block.proven && block.mapped > 0;
}

/// Makes so much of the block leave, from the tail; clean pieces leave at once.
uint64_t Stage::make_leave(uint32_t index, uint64_t pages, bool clean_only) {
  StageBlock& block = blocks_[index];
  uint64_t started = 0;
  for (uint32_t i = static_cast<uint32_t>(block.pieces.size()); i-- > 0 && started < pages;) {
    StagePiece& piece = block.pieces[i];
    if (!piece.device || piece.leaving) continue;
    if (piece.clean()) {
      started += piece.pages;
      give(index, i);
    } else if (!clean_only) {
      started += piece.pages;
      leaving_ += piece.pages;
      piece.leaving = true;
      if (!piece.going) going_.push_back(ref(index, i));
    }
  }
  return started;
}

uint64_t Stage::evict_farthest(uint64_t pages, uint32_t except, uint64_t beyond,
                               bool clean_only) {
  uint64_t started = 0;
  for (size_t i = farthest_begin_; i < plan.farthest.size(); ++i) {
    const Entry& entry = plan.farthest[i];
    if (started >= pages || entry.next_use <= beyond) break;
    const bool over = !meant(entry) || blocks_[entry.block].mapped == 0;
    if (over && i == farthest_begin_) ++farthest_begin_;
    if (over || entry.block == except || !may_leave(blocks_[entry.block]) ||
        (clean_only && blocks_[entry.block].clean == 0))
      continue;
    started += make_leave(entry.block, pages - started, clean_only);
  }
  return started;
}

/// Evicts the piece that is on its way out already: it will be free the soonest.
uint64_t Stage::evict_going(uint64_t beyond) {
  const Transfer& copy = on(Channel::host_out);
  if (!copy.active || copy.stale || copy.block == wanted) return 0;
  const StageBlock& block = blocks_[copy.block];
  StagePiece& piece = blocks_[copy.block].pieces[copy.piece];
  if (!may_leave(block) || piece.leaving || block.next_use <= beyond) return 0;
  piece.leaving = true;
  leaving_ += piece.pages;
  return piece.pages;
}

/// Evicts clean blocks used late; then other blocks used late; then any, in the end by age.
void Stage::evict(uint64_t pages) {
  uint64_t started = 0;
  for (uint64_t beyond : {plan.window, uint64_t{0}})
    for (bool clean_only : {true, false}) {
      if (started < pages && !clean_only) started += evict_going(beyond);
      if (started < pages)
        started += evict_farthest(pages - started, wanted, beyond, clean_only);
    }
  while (started < pages) {
    uint32_t oldest = nobody;
    for (uint32_t i = 0; i < count(); ++i) {
      const StageBlock& block = blocks_[i];
      if (i == wanted || !may_leave(block) || (oldest != nobody &&
          blocks_[oldest].touched <= block.touched))
        continue;
      if (std::any_of(block.pieces.begin(), block.pieces.end(), [](const StagePiece& piece) {
            return piece.device && !piece.leaving;
          }))
        oldest = i;
    }
    if (oldest == nobody) return;
    started += make_leave(oldest, pages - started, false);
  }
}

/// Takes device memory for the first piece that is away, if there is room, or clean blocks used
/// after `beyond` make room.
bool Stage::arrive(uint32_t index, uint64_t beyond, bool demanded) {
  StageBlock& block = blocks_[index];
  const auto first = std::find_if(block.pieces.begin(), block.pieces.end(),
                                  [](const StagePiece& piece) { return !piece.mapped(); });
  if (first == block.pieces.end()) return false;
  const uint64_t coming = free() + leaving_;
  if (coming < first->pages && !demanded)
    evict_farthest(first->pages - coming, index, beyond, true);
  if (free() < first->pages) return false;
  first->arriving = true;
  const auto piece = static_cast<uint32_t>(first - block.pieces.begin());
  take(index, piece);
  block.clean += first->pages;
  arrivals_.push_back(ref(index, piece));
  return true;
}

bool Stage::begin_arrivals() {
  bool any = false;
  uint64_t kept_free = 0;  // for the block waited for
  if (wanted != nobody) {
    StageBlock& block = blocks_[wanted];
    const uint64_t missing = block.size - block.mapped;
    if (free() + leaving_ < missing) evict(missing - (free() + leaving_));
    if (!block.unborn)
      while (arrive(wanted, 0, true)) any = true;
    kept_free = block.size - block.mapped;
  }
  for (; plan.fetched < plan.fetch.size();) {
    const Entry& entry = plan.fetch[plan.fetched];
    const StageBlock& block = blocks_[entry.block];
    if (!meant(entry) || block.mapped >= entry.pages) {
      ++plan.fetched;
      continue;
    }
    const auto piece = std::find_if(block.pieces.begin(), block.pieces.end(),
                                    [](const StagePiece& p) { return !p.mapped(); });
    // Memory is taken when the copy begins; a little earlier if the store must be read first.
    uint64_t arriving = 0;
    bool next_is_there = false;
    for (const Ref& ref : arrivals_)
      if (const StagePiece* other = valid(ref); other && other->arriving) {
        arriving += other->pages;
        next_is_there |= other->host_valid;
      }
    if (piece->host_valid ? on(Channel::host_in).active || next_is_there : arriving >= in_flight())
      break;
    if (kept_free > 0 && free() + leaving_ < kept_free + piece->pages) break;
    if (!arrive(entry.block, entry.next_use, false)) break;
    any = true;
  }
  return any;
}

bool Stage::begin_in() {
  if (on(Channel::host_in).active) return false;
  auto next = arrivals_.end();
  for (auto it = arrivals_.begin(); it != arrivals_.end();) {
    const StagePiece* piece = valid(*it);
    if (!piece || !piece->arriving) {
      it = arrivals_.erase(it);
      next = arrivals_.end();
      continue;
    }
    if (piece->host_valid && (next == arrivals_.end() ||
                              (it->block == wanted && next->block != wanted)))
      next = it;
    ++it;
  }
  if (next == arrivals_.end()) return false;
  const Ref ref = *next;
  arrivals_.erase(next);
  begin(Channel::host_in, ref);
  return true;
}

/// Evictions first; then copies ahead, while the way out is idle.
bool Stage::begin_out() {
  if (on(Channel::host_out).active) return false;
  const auto go = [&](const Ref& ref, StagePiece& piece) {
    piece.going = true;
    take_host(piece);
    begin(Channel::host_out, ref);
    return true;
  };
  while (!going_.empty()) {
    const Ref ref = going_.front();
    StagePiece* piece = valid(ref);
    if (!piece || !piece->leaving || piece->going || piece->host) {
      going_.pop_front();
      continue;
    }
    const uint64_t reserve = std::min(machine_.host / 4, 2 * machine_.piece);
    while (!host_room(piece->pages, reserve, 0))
      if (!drop_resident_host()) {
        host_wanted_ = true;
        return false;
      }
    going_.pop_front();
    return go(ref, *piece);
  }
  for (size_t i = plan.cleaned; i < plan.leaving.size(); ++i) {
    const Entry& entry = plan.leaving[i];
    StageBlock& block = blocks_[entry.block];
    if (!meant(entry) || block.size - block.mapped + block.clean >= entry.pages) {
      if (i == plan.cleaned) ++plan.cleaned;
      continue;
    }
    const bool only_read = machine_.out_while_read && block.held && !block.changing;
    if (!may_leave(block) && !only_read) continue;
    for (uint32_t p = static_cast<uint32_t>(block.pieces.size()); p-- > 0;) {
      StagePiece& piece = block.pieces[p];
      if (!piece.device || piece.clean() || piece.host || piece.leaving) continue;
      if (!host_room(piece.pages, 2 * in_flight(), plan.memory_window)) return false;
      return go(ref(entry.block, p), piece);
    }
  }
  return false;
}

bool Stage::begin_read() {
  if (!machine_.has_store() || on(Channel::store_read).active) return false;
  const Ref* next = nullptr;
  for (const Ref& ref : arrivals_) {
    const StagePiece* piece = valid(ref);
    if (piece && piece->arriving && !piece->host && piece->store_valid &&
        (!next || (ref.block == wanted && next->block != wanted)))
      next = &ref;
  }
  if (!next) return read_for_host();
  StagePiece* piece = valid(*next);
  // The block wanted now comes first, beyond the host memory if nothing in flight will free any.
  const bool stuck = !on(Channel::host_out).active && !on(Channel::host_in).active &&
                     !on(Channel::store_write).active;
  if (!host_room(piece->pages, 0, 0) && !stuck) {
    host_wanted_ = true;
    return begin_write();
  }
  take_host(*piece);
  piece->reading = true;
  begin(Channel::store_read, *next);
  return true;
}

}  // namespace firn::lifetimes
