#include "allocator/lifetimes/stage.h"

#include <algorithm>

namespace firn::lifetimes {

namespace {
RehearsalMachine whole(RehearsalMachine machine) {
  if (machine.span == 0) machine.span = machine.piece;
  if (machine.budget == 0) machine.budget = machine.capacity;
  return machine;
}
}  // namespace

Stage::Stage(const RehearsalMachine& machine, const Tuning& tuning, Rehearsed& result,
             RehearsalObserver* observer)
    : machine_(whole(machine)), tuning_(tuning), result_(result), observer_(observer) {}

void Stage::happen(Happening happening) {
  if (!observer_) return;
  happening.ns = now_;
  happening.device = taken_;
  happening.host = host_taken_;
  observer_->happened(happening);
}

Stage::Ref Stage::ref(uint32_t block, uint32_t piece) const {
  return {block, blocks_[block].life, blocks_[block].version, piece};
}

StagePiece* Stage::valid(const Ref& ref) {
  StageBlock& block = blocks_[ref.block];
  const bool same = block.life == ref.life && block.version == ref.version;
  return same ? &block.pieces[ref.piece] : nullptr;
}

// ---- blocks

uint32_t Stage::make(uint64_t pages) {
  uint32_t index = count();
  if (dead_.empty()) {
    blocks_.emplace_back();
  } else {
    index = dead_.back();
    dead_.pop_back();
  }
  StageBlock& block = blocks_[index];
  std::vector<StagePiece> pieces = std::move(block.pieces);
  pieces.assign((pages + machine_.piece - 1) / machine_.piece, {});
  block = StageBlock();
  block.pieces = std::move(pieces);
  block.life = ++lives_;
  block.size = pages;
  block.unborn = true;
  for (StagePiece& piece : block.pieces) {
    piece.pages = static_cast<uint32_t>(std::min(pages, machine_.piece));
    pages -= piece.pages;
  }
  return index;
}

void Stage::start_with(uint32_t index, uint64_t on_device, uint64_t clean, uint64_t in_store) {
  StageBlock& block = blocks_[index];
  block.unborn = false;
  block.proven = true;
  for (uint32_t i = 0; i < block.pieces.size(); ++i) {
    StagePiece& piece = block.pieces[i];
    if (block.mapped + piece.pages <= on_device) {
      take(index, i);
      piece.device = true;
    }
  }
  const uint64_t dirty = on_device - std::min(on_device, clean);
  uint64_t from_head = 0;
  for (uint32_t i = 0; i < block.pieces.size(); ++i) {
    StagePiece& piece = block.pieces[i];
    from_head += piece.pages;
    if (piece.device && from_head <= dirty) continue;
    if (piece.device) block.clean += piece.pages;
    piece.store_valid = block.size - from_head < in_store;
    if (!piece.store_valid) {
      take_host(piece);
      piece.host_valid = true;
      unwritten_.push_back(ref(index, i));
    }
  }
}

void Stage::take(uint32_t index, uint32_t i) {
  StageBlock& block = blocks_[index];
  const uint32_t pages = block.pieces[i].pages;
  block.mapped += pages;
  taken_ += pages;
  happen({.what = Happening::What::taken, .block = block.life, .piece = i, .pages = pages});
}

void Stage::give(uint32_t index, uint32_t i) {
  StageBlock& block = blocks_[index];
  StagePiece& piece = block.pieces[i];
  if (piece.leaving) leaving_ -= piece.pages;
  if (piece.host_valid || piece.store_valid) block.clean -= piece.pages;
  block.mapped -= piece.pages;
  taken_ -= piece.pages;
  piece.device = piece.arriving = piece.leaving = piece.cleaning = false;
  happen({.what = Happening::What::given, .block = block.life, .piece = i,
          .pages = piece.pages});
}

void Stage::take_host(StagePiece& piece) {
  piece.host = true;
  host_taken_ += piece.pages;
}

void Stage::give_host(StagePiece& piece) {
  piece.host = piece.host_valid = false;
  host_taken_ -= piece.pages;
}

void Stage::bear(uint32_t index) {
  StageBlock& block = blocks_[index];
  block.unborn = false;
  for (uint32_t i = 0; i < block.pieces.size(); ++i) {
    take(index, i);
    block.pieces[i].device = true;
  }
}

void Stage::want(uint32_t index, uint64_t step) {
  StageBlock& block = blocks_[index];
  block.touched = step;
  for (StagePiece& piece : block.pieces) {
    if (piece.leaving) leaving_ -= piece.pages;
    piece.leaving = piece.cleaning = false;
  }
}

bool Stage::is_there(uint32_t index) const {
  const StageBlock& block = blocks_[index];
  if (block.mapped < block.size) return false;
  return std::none_of(block.pieces.begin(), block.pieces.end(),
                      [](const StagePiece& piece) { return piece.arriving; });
}

void Stage::use(uint32_t index) {
  StageBlock& block = blocks_[index];
  block.proven = true;
  if (!block.held) held_.push_back(index);
  block.held = true;
  happen({.what = Happening::What::use, .block = block.life, .pages = block.size});
  if (!machine_.has_store()) return;
  for (uint32_t i = 0; i < block.pieces.size(); ++i)  // with the new next use
    if (block.pieces[i].host_valid && block.pieces[i].store_valid)
      droppable_.push({block.next_use, ref(index, i)});
}

void Stage::change(uint32_t index) {
  happen({.what = Happening::What::change, .block = blocks_[index].life});
  strip(index, false);
  ++blocks_[index].version;
}

void Stage::kill(uint32_t index) {
  StageBlock& block = blocks_[index];
  if (block.held) {
    block.dying = true;
    return;
  }
  strip(index, true);
  block.life = 0;
  dead_.push_back(index);
}

/// Discards copies elsewhere. A transfer in flight ends first, and gives its memory back then.
void Stage::strip(uint32_t index, bool dies) {
  StageBlock& block = blocks_[index];
  for (uint32_t i = 0; i < block.pieces.size(); ++i) {
    StagePiece& piece = block.pieces[i];
    Transfer* last = nullptr;
    Transfer* device = nullptr;
    for (unsigned c = 0; c < channel_count; ++c) {
      Transfer& transfer = transfers_[c];
      if (!transfer.active || transfer.life != block.life || transfer.piece != i ||
          transfer.block != index)
        continue;
      transfer.stale = true;
      if (!last || transfer.end_ns > last->end_ns) last = &transfer;
      if (c < 2) device = &transfer;
    }
    if (piece.leaving) leaving_ -= piece.pages;
    if (piece.arriving) arriving_ -= piece.pages;
    piece.leaving = false;
    if (dies && piece.mapped()) {
      if (device) {
        device->owns_device = true;
        draining_ += piece.pages;
      } else {
        give(index, i);
      }
    }
    if (piece.host) {
      if (last)
        last->owns_host = true;
      else
        give_host(piece);
    }
    const bool stays = piece.device && !dies;
    piece = {.pages = piece.pages, .device = stays};
  }
  block.clean = 0;
}

void Stage::let_go() {
  std::vector<uint32_t> held;
  held.swap(held_);
  for (uint32_t index : held) {
    blocks_[index].held = false;
    if (blocks_[index].dying) kill(index);
  }
}

// ---- transfers

void Stage::begin(Channel channel, const Ref& ref) {
  const uint32_t pages = blocks_[ref.block].pieces[ref.piece].pages;
  on(channel) = {.active = true, .block = ref.block, .life = ref.life, .piece = ref.piece,
                 .pages = pages, .end_ns = now_ + machine_.ns(channel, pages)};
  if (channel == Channel::store_read) reading_.tell(now_, true);
  result_.bytes[static_cast<unsigned>(channel)] += pages * machine_.page_bytes;
  happen({.what = Happening::What::transfer, .end_ns = on(channel).end_ns, .channel = channel,
          .block = ref.life, .piece = ref.piece, .pages = pages});
}

bool Stage::advance(uint64_t until) {
  uint64_t next = until;
  for (const Transfer& transfer : transfers_)
    if (transfer.active) next = std::min(next, transfer.end_ns);
  if (next == UINT64_MAX) return false;
  now_ = next;
  for (unsigned c = 0; c < channel_count; ++c)
    if (transfers_[c].active && transfers_[c].end_ns <= now_) end(static_cast<Channel>(c));
  return true;
}

void Stage::end(Channel channel) {
  const Transfer transfer = on(channel);
  on(channel) = {};
  if (channel == Channel::store_read) reading_.tell(now_, false);
  if (transfer.owns_device) {
    taken_ -= transfer.pages;
    draining_ -= transfer.pages;
    happen({.what = Happening::What::given, .block = transfer.life, .piece = transfer.piece,
            .pages = transfer.pages});
  }
  if (transfer.owns_host) host_taken_ -= transfer.pages;
  if (!transfer.stale) ended(channel, transfer, blocks_[transfer.block].pieces[transfer.piece]);
}

void Stage::ended(Channel channel, const Transfer& transfer, StagePiece& piece) {
  StageBlock& block = blocks_[transfer.block];
  const Ref of = ref(transfer.block, transfer.piece);
  switch (channel) {
    case Channel::host_out:
      piece.going = piece.cleaning = false;
      piece.host_valid = true;
      block.clean += piece.pages;
      unwritten_.push_back(of);
      plan.write_looked = false;
      if (piece.leaving) give(transfer.block, transfer.piece);
      break;
    case Channel::host_in:
      piece.arriving = false;
      arriving_ -= piece.pages;
      piece.device = true;
      returned_.push_back(of);
      break;
    case Channel::store_write:
      piece.writing = false;
      piece.store_valid = true;
      droppable_.push({block.next_use, of});
      break;
    case Channel::store_read:
      piece.reading = false;
      piece.host_valid = true;
      droppable_.push({block.next_use, of});
      if (piece.arriving) coming_.push_back(of);
      break;
  }
}

}  // namespace firn::lifetimes
