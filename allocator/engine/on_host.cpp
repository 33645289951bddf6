// Uses in host memory: the block leaves the device if it is there, its pieces are gathered
// (movement/at_host.cpp), and the processor has them until it says that it is done. A touch waits
// for that.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "allocator/base/sizes.h"
#include "allocator/engine/hot.h"
#include "allocator/movement/host_use.h"
#include "firn/canary.h"

namespace firn {

namespace {
Error not_at_host(const Block& block, std::string_view why) {
  return make_error(Code::invalid_argument, 0,
                    fmt::format("block {:#x} ({} bytes) cannot be used in host memory: {}",
                                block.address, size_t{block.requested}, why));
}

Error lost_at_host(const Block& block) FIRN_HELD {
  return make_error(Code::lost, 0,
                    fmt::format("block {:#x} ({} bytes) is lost: {}", block.address,
                                size_t{block.requested}, block.fault_error.text));
}

/// Why it never leaves the device, or not by itself; null: it does.
const char* why_it_never_leaves(const Block& block, uint64_t w) FIRN_HELD {
  if (block.pages == 0) return "it is below 1 MiB, and moves with others";
  if (w & word::placed) return "it lies in planned places (firn_places)";
  if (w & word::segment) return "its owner cuts it into parts";
  if (w & word::pinned) {
    if (block.pin_reason) return block.pin_reason;
    return (w & word::given) ? block.given_reason : "it is pinned";
  }
  return w & word::proven ? nullptr : "no operator was seen to use it so far";
}
}  // namespace

Result<OnHost> EngineImpl::on_host(const void* pointer, Access access) {
  if (!watching()) {  // before that nothing leaves
    watch_due_ = true;
    reach_watch();
  }
  Entered context(*this);
  if (Result<void> usable = can_use(context); !usable) return usable.error();
  Lock lock(mutex_);
  Block* block = live_at(pointer, false);
  if (!block)
    return make_error(Code::invalid_argument, 0,
                      fmt::format("cannot use {} in host memory: it is outside Firn's live blocks",
                                  pointer));
  if (thread_holds() > 0)
    return not_at_host(*block, "this thread is within an operator, which may hold it");
  if (Result<void> away = leave_for_host(lock, *block, access); !away) return away.error();
  return gather_at_host(lock, *block, access);
}

/// Returns when nothing of the block is on the device, or on its way there. Releases the lock.
Result<void> EngineImpl::leave_for_host(Lock& lock, Block& block, Access access) {
  const uint32_t generation = block.generation, failures = block.fault_failures,
                 read_refusals = block.read_refusals;
  unsigned refused = 0, idle = 0;
  while (block.generation == generation) {
    if (health_.dead()) return health_.error();
    const uint64_t w = block.word.load();
    const State state = word::state(w);
    if (w & word::freed) break;
    if (state == State::lost) return lost_at_host(block);
    if (block.at_host)
      return not_at_host(block, "it is in use there already, until end_on_host()");
    if (const char* why = why_it_never_leaves(block, w)) return not_at_host(block, why);
    if (block.fault_failures > failures + 3) return block.fault_error;
    if (block.read_refusals != read_refusals) return unreadable(block, std::nullopt);
    const bool away = state == State::hosted || state == State::spilled;
    const bool by_recipe = (w & word::recipes) && !FIRN_CANARY(41) &&
                           (access == Access::write || block.by_recipe);
    if (state == State::dropped || state == State::remaking || by_recipe) {
      if (Result<void> plain = end_recipes_for_host(lock, block); !plain) return plain;
    } else if (away && block.mapped == 0 && block.coming == 0) {
      return {};
    } else if (state == State::resident || away ||
               (state == State::spilling && !block.leave)) {
      if (keeps_all() && !(w & word::zero_copy)) {
        if (watch_begins_ == std::thread::id())
          return not_at_host(block, spilling_stopped_
                                        ? "nothing leaves the device while spilling is stopped"
                                        : "nothing leaves the device while a stream is captured");
      } else if (word::holds(w) == 0 && block.coming == 0 &&
                 !movement_.start_spill(block, true) && block.mapped > 0) {
        if (movement_.stuck()) return movement_.no_host_memory(block);
        if (++refused > refusals_most)
          return make_error(Code::driver, 0,
                            fmt::format("block {:#x} ({} bytes) could not be copied out",
                                        block.address, size_t{block.requested}));
      }
    }
    const bool moved = pump_locked() || movement_.carry_out_sums(lock) ||
                       carry_out_unmappings(lock) || carry_out_mappings(lock);
    if (block.generation != generation) break;
    const bool lacks = block.state() == State::spilling && movement_.staging_wanted();
    idle = lacks && movement_.host_idle() ? idle + 1 : 0;
    if (idle > Movement::idle_rounds_most) {
      movement_.keep(block);
      return movement_.no_host_memory(block);
    }
    if (!moved) wait(lock, poll_ns);
  }
  return make_error(Code::invalid_argument, 0,
                    fmt::format("block {:#x} was freed while it was brought to host memory",
                                block.address));
}

/// It is made again where it has no other way back, and no recipe reads it or writes it any more:
/// it comes to the device for that, as for a write.
Result<void> EngineImpl::end_recipes_for_host(Lock& lock, Block& block) {
  const UnlockedEngine unlocked(lock);
  Result<Hold> hold = touch(reinterpret_cast<const void*>(block.address), nullptr, Access::write,
                            Seen::always);
  if (!hold) return hold.error();
  release(*hold, nullptr);
  return {};
}

/// The block is away, and held from here on: nobody ends it meanwhile. (The hold is no operator's,
/// and keeps nothing on the device: it does not count as this thread's.)
Result<OnHost> EngineImpl::gather_at_host(Lock& lock, Block& block, Access access) {
  uint64_t bytes = 0;
  for (const Piece& piece : block.pieces) bytes += piece.bytes;
  if (movement_.host_use_bytes() + bytes > host_.budget()) return movement_.no_host_memory(block);
  auto use = std::make_unique<HostUse>(block, access == Access::write, std::this_thread::get_id());
  const uint64_t name = ++host_use_names_;
  HostUse& begun = *host_uses_.emplace(name, std::move(use)).first->second;
  uint64_t w = block.word.load();
  while (!block.word.try_hold(w)) {
  }
  const uint32_t read_refusals = block.read_refusals;
  movement_.begin_host_use(begun);
  if (learner_) learner_->note_host_use(block, begun.writes);
  while (!begun.begun && begun.error.code == Code::ok && !health_.dead()) {
    const bool moved = pump_locked();
    if (!movement_.carry_out_sums(lock) && !moved && !begun.begun) wait(lock, poll_ns);
  }
  if (begun.begun) {
    ++counted_.host_uses;
    counted_.host_use_bytes += block.requested;
    OnHost there{name, {}};
    for (size_t i = 0; i < block.pieces.size(); ++i) {
      const Piece& piece = block.pieces[i];
      there.pieces.push_back({piece.offset,
                              std::min<size_t>(piece.bytes, block.requested - piece.offset),
                              begun.held[i]->data});
    }
    return there;
  }
  Error why = health_.dead() ? health_.error() : begun.error;
  if (block.state() == State::lost) why = lost_at_host(block);
  if (block.read_refusals != read_refusals) why = unreadable(block, std::nullopt);
  finish_host_use(name);
  return why;
}

Result<void> EngineImpl::end_on_host(uint64_t name) {
  Entered context(*this);
  Lock lock(mutex_);
  if (!host_uses_.contains(name))
    return make_error(Code::invalid_argument, 0,
                      fmt::format("no use in host memory has the number {}", name));
  finish_host_use(name);
  return {};
}

void EngineImpl::finish_host_use(uint64_t name) {
  const std::unique_ptr<HostUse> use = std::move(host_uses_.extract(name).mapped());
  movement_.end_host_use(*use);
  host_use_over_ = true;
  const uint64_t w = use->block.word.drop_hold();
  if ((w & word::freed) && word::holds(w) == 1) drop_last_hold(use->block, w);
}

}  // namespace firn
