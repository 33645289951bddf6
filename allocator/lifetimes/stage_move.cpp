// How bytes move in a rehearsal: as in movement/, with one transfer at a time on each channel, in
// the order in which they were begun. Which blocks move is decided in carry_out.h.
#include <algorithm>

#include "allocator/base/age_score.h"
#include "allocator/lifetimes/stage.h"

namespace firn::lifetimes {

namespace {
// At one instant each channel begins at most one transfer, with the evictions and arrivals that go
// with it. More rounds go in circles, which only time ends.
constexpr unsigned rounds_most = 1000;
}  // namespace

void Stage::pump() {
  auto carry = carry_out();
  bool any = true;
  for (unsigned rounds = 0; any && rounds < rounds_most; ++rounds) {
    host_wanted_ = false;
    any = serve_wanted();
    any |= make_copies_out();
    any |= make_reads();
    any |= make_writes();
    if (plan.valid) {
      any |= carry.fetch_ahead();
      any |= carry.clean_ahead();
      if (machine_.has_store()) any |= carry.read_ahead();
    }
    any |= begin_next(Channel::host_in, coming_);
    any |= begin_next(Channel::host_out, going_);
    any |= begin_next(Channel::store_write, writes_);
    any |= begin_next(Channel::store_read, reads_);
  }
}

/// Begins the next transfer of the queue, if the channel is idle.
bool Stage::begin_next(Channel channel, Refs& queue) {
  const auto due = [channel](const StagePiece& piece) {
    switch (channel) {
      case Channel::host_out: return piece.going;
      case Channel::host_in: return piece.arriving;
      case Channel::store_write: return piece.writing;
      case Channel::store_read: return piece.reading;
    }
    return false;
  };
  while (!on(channel).active && !queue.empty()) {
    const Ref next = queue.front();
    queue.pop_front();
    StagePiece* piece = valid(next);
    if (!piece || !due(*piece)) continue;
    if (channel == Channel::host_out && blocks_[next.block].held) {  // used again meanwhile
      piece->going = false;
      give_host(*piece);
      continue;
    }
    begin(channel, next);
    return true;
  }
  return false;
}

// ---- out

/// At least so many pages of the block, from the tail, leave once they are valid elsewhere; clean
/// ones at once. Returns how many.
uint64_t Stage::make_leave(uint32_t index, uint64_t pages) {
  StageBlock& block = blocks_[index];
  uint64_t started = 0;
  for (uint32_t i = static_cast<uint32_t>(block.pieces.size()); i-- > 0 && started < pages;) {
    StagePiece& piece = block.pieces[i];
    if (!piece.device || piece.leaving) continue;
    started += piece.pages;
    if (piece.clean() && !piece.going) {
      give(index, i);
      continue;
    }
    if (!piece.cleaning) outs_.push_back(ref(index, i));
    leaving_ += piece.pages;
    piece.leaving = true;
  }
  (void)make_copies_out();
  return started;
}

bool Stage::make_clean(uint32_t index, uint64_t pages) {
  StageBlock& block = blocks_[index];
  uint64_t started = 0;
  for (uint32_t i = static_cast<uint32_t>(block.pieces.size()); i-- > 0 && started < pages;) {
    StagePiece& piece = block.pieces[i];
    if (!piece.device || piece.clean() || piece.wanted_out()) continue;
    started += piece.pages;
    piece.cleaning = true;
    outs_.push_back(ref(index, i));
  }
  (void)make_copies_out();  // at once, as far as there is host memory
  return started > 0;
}

/// Blocks leave by the plan; then any, by age.
void Stage::evict(uint64_t pages) {
  const StageTiers tiers(*this);
  uint64_t started = carry_out().evict(pages, wanted);
  while (started < pages) {
    uint32_t coldest = nobody;
    double score = 0;
    for (uint32_t i = 0; i < count(); ++i) {
      const StageBlock& block = blocks_[i];
      if (i == wanted || !tiers.may_leave(i) || block.held) continue;
      if (std::none_of(block.pieces.begin(), block.pieces.end(), [](const StagePiece& piece) {
            return piece.device && !piece.leaving;
          }))
        continue;
      const double cold = age_score(step - std::min(step, block.touched), block.mapped,
                                    block.clean == block.mapped);
      if (coldest != nobody && cold <= score) continue;
      coldest = i;
      score = cold;
    }
    if (coldest == nobody) return;
    started += make_leave(coldest, pages - started);
  }
}

/// Takes host memory for copies that are wanted out, in their order. A reserve stays for reads.
bool Stage::make_copies_out() {
  bool any = false;
  while (!outs_.empty()) {
    StagePiece* piece = valid(outs_.front());
    if (piece && piece->wanted_out() && !piece->going && !piece->host) {
      if (!host_room(piece->pages, std::min(machine_.host / 4, 2 * machine_.piece))) break;
      take_host(*piece);
      piece->going = true;
      going_.push_back(outs_.front());
      any = true;
    }
    outs_.pop_front();
  }
  return any;
}

// ---- in

/// Makes room for the block that the program waits for, and has all of it arrive.
bool Stage::serve_wanted() {
  kept_free_ = 0;
  if (wanted == nobody) return false;
  const StageBlock& block = blocks_[wanted];
  const uint64_t missing = block.size - block.mapped;
  if (free() + leaving_ < missing) evict(missing - (free() + leaving_));
  if (missing == 0) return false;
  if (block.unborn || free() < missing) {
    kept_free_ = missing;
    return false;
  }
  arrive(wanted, missing);
  return true;
}

/// Pages of the block that are away, from the head, and have room now.
uint64_t Stage::arrivable(uint32_t index) const {
  const uint64_t room = free() - std::min(free(), index == wanted ? 0 : kept_free_);
  uint64_t pages = 0;
  for (const StagePiece& piece : blocks_[index].pieces) {
    if (piece.mapped()) continue;
    if (pages + piece.pages > room) break;
    pages += piece.pages;
  }
  return pages;
}

/// Takes device memory for so much of the block that is away, from the head.
void Stage::arrive(uint32_t index, uint64_t pages) {
  StageBlock& block = blocks_[index];
  for (uint32_t i = 0; i < block.pieces.size() && pages > 0; ++i) {
    StagePiece& piece = block.pieces[i];
    if (piece.mapped()) continue;
    pages -= std::min<uint64_t>(pages, piece.pages);
    piece.arriving = true;
    arriving_ += piece.pages;
    take(index, i);
    block.clean += piece.pages;
    (piece.host_valid ? coming_ : arrivals_).push_back(ref(index, i));
  }
}

/// Begins reads of what arrives and is only in the store, in that order.
bool Stage::make_reads() {
  bool any = false;
  while (!arrivals_.empty()) {
    const Ref ref = arrivals_.front();
    StagePiece* piece = valid(ref);
    if (piece && piece->arriving && piece->host_valid) {
      coming_.push_back(ref);  // it was on its way to host memory
    } else if (piece && piece->arriving && !piece->reading) {
      // Beyond host memory if nothing in flight will free any of it.
      const bool idle = std::none_of(std::begin(transfers_), std::end(transfers_),
                                     [](const Transfer& transfer) { return transfer.active; });
      const bool stuck = idle && going_.empty() && reads_.empty() && ref.block == wanted;
      if (!host_room(piece->pages, 0) && !stuck) break;
      take_host(*piece);
      piece->reading = true;
      reads_.push_back(ref);
    }
    arrivals_.pop_front();
    any = true;
  }
  return any;
}

// ---- host memory and the store

/// Copies in host memory give way until there is room beside `reserve`. False: there is none.
bool Stage::host_room(uint64_t pages, uint64_t reserve) {
  while (host_taken_ + pages + reserve > machine_.host)
    if (!drop_host_copy(0, plan.window) && !drop_resident_host()) {
      host_wanted_ = true;
      return false;
    }
  return true;
}

/// Drops one host copy whose bytes stay on the device until `window`; or that the store has too, and
/// that is used after `wanted_at`, the farthest next use first.
bool Stage::drop_host_copy(uint64_t wanted_at, uint64_t window) {
  if (drop_returned()) return true;
  std::vector<Droppable> busy;
  bool dropped = false;
  while (!droppable_.empty() && !dropped) {
    const Droppable top = droppable_.top();
    StagePiece* piece = valid(top.ref);
    if (piece && piece->host_valid && piece->store_valid) {
      // A piece that stays on the device until its next use is not read from host memory then.
      const uint64_t next_use = blocks_[top.ref.block].next_use;
      if ((piece->device && next_use <= window ? no_use : next_use) <= wanted_at) break;
      dropped = !piece->arriving && !piece->writing;
      if (dropped)
        give_host(*piece);
      else
        busy.push_back(top);
    }
    droppable_.pop();
  }
  for (const Droppable& one : busy) droppable_.push(one);
  return dropped;
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

/// Takes the next unwritten piece out of the list: the first, or the one whose block is used last.
std::optional<Stage::Ref> Stage::take_unwritten(bool last_used) {
  std::erase_if(unwritten_, [this](const Ref& ref) {
    const StagePiece* piece = valid(ref);
    return !piece || !piece->host_valid || piece->store_valid || piece->writing;
  });
  if (unwritten_.empty()) return std::nullopt;
  auto chosen = unwritten_.begin();
  if (last_used)
    chosen = std::max_element(chosen, unwritten_.end(), [this](const Ref& a, const Ref& b) {
      return blocks_[a.block].next_use < blocks_[b.block].next_use;
    });
  const Ref next = *chosen;
  unwritten_.erase(chosen);
  return next;
}

bool Stage::make_writes() {
  bool any = false;
  const StageTiers tiers(*this);
  while (machine_.has_store() && tiers.bytes_written() < carry_out().in_flight_most()) {
    const auto next = carry_out().next_write();
    if (!next) break;
    blocks_[next->block].pieces[next->piece].writing = true;
    writes_.push_back(ref(next->block, static_cast<uint32_t>(next->piece)));
    any = true;
  }
  return any;
}

uint64_t Stage::keeps(uint64_t to_clean) {
  const StageTiers tiers(*this);
  return host_for_keeping(tiers.span_bytes(), tiers.host_bytes(), tiers.spare_bytes(),
                          to_clean * machine_.page_bytes) / machine_.page_bytes;
}

void Stage::lay_out_in_memory(uint32_t index, Item& item) const {
  item.on_device = item.clean = 0;
  for (const StagePiece& piece : blocks_[index].pieces) {
    if (!piece.mapped() && !piece.host) continue;
    item.on_device += piece.pages;
    if (piece.store_valid || piece.writing) item.clean += piece.pages;
  }
}

/// Pages of pieces in the queue that still want what `flag` says.
uint64_t Stage::waiting(const Refs& queue, bool StagePiece::*flag) const {
  uint64_t pages = 0;
  for (const Ref& ref : queue) {
    const StageBlock& block = blocks_[ref.block];
    if (block.life != ref.life || block.version != ref.version) continue;
    const StagePiece& piece = block.pieces[ref.piece];
    if (piece.*flag) pages += piece.pages;
  }
  return pages;
}

uint64_t Stage::on_the_way(Channel channel) const {
  return on(channel).active ? on(channel).pages : 0;
}

// ---- the tiers

uint64_t StageTiers::clean(uint32_t index) const {
  uint64_t pages = 0;
  for (size_t i = of(index).pieces.size(); i-- > 0;) {
    const StagePiece& piece = of(index).pieces[i];
    if (!piece.device) continue;
    if (!piece.clean() || piece.leaving) break;
    pages += piece.pages;
  }
  return pages;
}

std::vector<uint32_t> StageTiers::copied_out() const {
  std::vector<uint32_t> blocks;
  const auto add = [&](uint32_t block) {
    const auto known = std::find(blocks.begin(), blocks.end(), block);
    if (known == blocks.end() && may_leave(block) && unused(block)) blocks.push_back(block);
  };
  const Stage::Transfer& copy = s_->on(Channel::host_out);
  if (copy.active && !copy.stale) add(copy.block);
  for (const Stage::Ref& ref : s_->going_)
    if (s_->valid(ref)) add(ref.block);
  return blocks;
}

bool StageTiers::is_copied_out(uint32_t block) const {
  const auto& pieces = of(block).pieces;
  return std::any_of(pieces.begin(), pieces.end(), [](const StagePiece& piece) {
    return piece.going || piece.wanted_out();
  });
}

uint64_t StageTiers::copied_tail(uint32_t index) const {
  uint64_t pages = 0;
  for (size_t i = of(index).pieces.size(); i-- > 0;) {
    const StagePiece& piece = of(index).pieces[i];
    if (!piece.device || piece.leaving) continue;
    if (!piece.going && !piece.clean()) break;
    pages += piece.pages;
  }
  return pages;
}

void StageTiers::stop_cleaning(uint32_t block) {
  for (StagePiece& piece : s_->blocks_[block].pieces) {
    if (piece.leaving) s_->leaving_ -= piece.pages;
    piece.leaving = piece.cleaning = false;
  }
}

uint64_t StageTiers::soon() const {
  const uint64_t soon = s_->free() + s_->leaving_;
  return soon - std::min(soon, s_->kept_free_);
}

bool StageTiers::fetch(uint32_t block) {
  const uint64_t pages = std::min(arrivable(block), s_->machine_.span);
  if (pages == 0) return false;
  s_->arrive(block, pages);
  return true;
}

std::optional<PieceOf<uint32_t>> StageTiers::unwritten(bool last_used) {
  const std::optional<Stage::Ref> next = s_->take_unwritten(last_used);
  return next ? std::optional(PieceOf<uint32_t>{next->block, next->piece}) : std::nullopt;
}

bool StageTiers::read_to_host(uint32_t block, size_t i) {
  StagePiece& piece = s_->blocks_[block].pieces[i];
  if (!s_->host_room(piece.pages, 0)) return false;
  s_->take_host(piece);
  piece.reading = true;
  s_->reads_.push_back(s_->ref(block, static_cast<uint32_t>(i)));
  return true;
}

uint64_t StageTiers::spare_bytes() const {
  const uint64_t part = s_->tuning_.spare_part;
  return part ? bytes(s_->machine_.budget) / part : 0;
}

uint64_t StageTiers::bytes_out() const {
  return bytes(s_->waiting(s_->going_, &StagePiece::going) + s_->on_the_way(Channel::host_out));
}

uint64_t StageTiers::bytes_written() const {
  return bytes(s_->waiting(s_->writes_, &StagePiece::writing) +
               s_->on_the_way(Channel::store_write));
}

uint64_t StageTiers::bytes_read() const {
  return bytes(s_->waiting(s_->reads_, &StagePiece::reading) +
               s_->on_the_way(Channel::store_read));
}

}  // namespace firn::lifetimes
