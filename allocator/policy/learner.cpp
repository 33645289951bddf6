#include "allocator/policy/learner.h"

#include <algorithm>
#include <utility>

#include "allocator/lifetimes/decide.h"
#include "allocator/memory/units.h"

namespace firn {

namespace {
constexpr uint64_t late_part = 8;  // of a period: as late as that a use in host memory still comes
}

/// The identity of the life that begins; 0: none does.
Identity Learner::feed(const EventRing::Event& event) {
  if (event.block >= life_of_.size()) {
    used_at_.resize(event.block + 1024);
    identity_of_.resize(used_at_.size());
    life_of_.resize(used_at_.size());
  }
  Life& life = life_of_[event.block];
  Block& block = table_[event.block];
  Identity begun = 0;
  // A block from before the watch began, or whose allocation was lost, begins with its first use.
  if (event.kind == EventKind::allocate || (!life && event.kind != EventKind::free)) {
    if (life) history_.free(life);
    const uint64_t bytes = block.pages * page_bytes;
    life = history_.allocate(bytes);
    begun = history_.identity(life);
    if (begun >= stream_of_.size()) stream_of_.resize(begun + 1024);
    stream_of_[begun] = static_cast<uint16_t>(block.stream + 1);
    if (bytes_of_.size() >= sizes_most) bytes_of_.clear();
    if (sizes_)
      bytes_of_[{begun, bytes}] =
          block.asked.load(std::memory_order_relaxed) * uint64_t{unit_bytes};
    if (life >= block_of_.size()) block_of_.resize(life + 1024);
    block_of_[life] = event.block;
  }
  if (event.kind == EventKind::free) {
    if (life) {
      identity_of_[event.block] = history_.identity(life);
      history_.free(life);
    }
    life = 0;
  } else if (event.kind != EventKind::allocate) {
    history_.touch(life, event.kind == EventKind::touch_write);
  }
  used_at_[event.block] = history_.now();
  foresee_use(block, life);
  return begun;
}

/// Wherever it is used next.
void Learner::foresee_use(Block& block, Life life) {
  uint64_t ahead = History::never;
  if (life && history_.known()) {
    ahead = history_.next_event(life);
    const Identity identity = history_.identity(life);
    const uint32_t at_host = identity < host_use_of_.size() ? host_use_of_[identity] : 0;
    if (at_host) ahead = std::min(ahead, host_use_ahead(host_uses_[at_host - 1]));
  }
  block.next_use = ahead == History::never ? lifetimes::no_use : history_.now() + ahead;
}

uint64_t Learner::host_use_ahead(const HostUsed& last) const {
  const uint64_t period = history_.period(), due = last.position + period, now = history_.now();
  if (period == 0) return History::never;
  if (due > now) return due - now;
  return now - due <= period / late_part ? 1 : History::never;
}

/// Their events have all been fed. A block without a life begins with this use; one that was freed
/// since had the identity that it was freed with.
void Learner::place_hosted() {
  for (const auto& [named, writes] : std::exchange(just_hosted_, {})) {
    Block& block = table_[named.index];
    if (block.generation != named.generation) continue;
    if (!life_of(block) && !(block.word.load() & word::freed))
      (void)feed({EventKind::touch_read, named.index});
    const Life life = life_of(block);
    const Identity identity = life ? history_.identity(life) : last_identity_of(block);
    if (!identity) continue;
    if (identity >= host_use_of_.size()) host_use_of_.resize(identity + 1024);
    uint32_t& at = host_use_of_[identity];
    if (!at) {
      host_uses_.push_back({identity, writes, 0});
      at = static_cast<uint32_t>(host_uses_.size());
    }
    host_uses_[at - 1] = {identity, writes, history_.now()};
    if (life) foresee_use(block, life);
  }
}

void Learner::note_dropped(const Block& block, std::span<const Block* const> inputs) {
  Dropped& dropped = just_dropped_.emplace_back();
  dropped.block = {block.index, block.generation};
  for (const Block* input : inputs) dropped.inputs.push_back({input->index, input->generation});
}

/// Their events have all been fed. (Inputs may have been freed since, and kept.)
void Learner::place_dropped() {
  for (const auto& [block, inputs] : just_dropped_) {
    const Life life = block.index < life_of_.size() ? life_of_[block.index] : 0;
    if (!life || table_[block.index].generation != block.generation) continue;
    const Identity identity = history_.identity(life);
    if (identity >= dropped_behind_.size()) {
      made_from_.resize(identity + 1024);
      dropped_behind_.resize(made_from_.size());
    }
    dropped_behind_[identity] = used_at_[block.index];
    made_from_[identity].clear();
    for (const Named& input : inputs) {
      if (input.index >= life_of_.size() || table_[input.index].generation != input.generation)
        continue;
      const Life of = life_of_[input.index];
      if (const Identity from = of ? history_.identity(of) : identity_of_[input.index])
        made_from_[identity].push_back(from);
    }
  }
  just_dropped_.clear();
}

Block* Learner::player_of(Identity identity) {
  const Life life = identity ? history_.holder(identity) : 0;
  if (!life || life >= block_of_.size()) return nullptr;
  Block& block = table_[block_of_[life]];
  return life_of_[block.index] == life ? &block : nullptr;
}

std::optional<uint64_t> Learner::bytes_of(Identity identity, uint64_t known_as) const {
  const auto found = bytes_of_.find({identity, known_as});
  return found == bytes_of_.end() ? std::nullopt : std::optional(found->second);
}

void Learner::mark_time(int stream, uint64_t events_least) {
  if (timing_ && stream >= 0 && history_.now() >= clock_.last_position() + events_least)
    clock_.mark(static_cast<unsigned>(stream), history_.now());
}

void Learner::poll_time(uint64_t now_ns) {
  if (!clock_.pending()) return;
  clock_.poll(now_ns, [this](uint64_t position, uint64_t device_ns) FIRN_HELD {
    history_.stamp(position, device_ns);
  });
}

}  // namespace firn
