// Touches, holds and pins. touch() and release() of a resident block: one compare-and-swap
// and one fetch-and-subtract on its word, two relaxed stores, no lock, no allocation.
#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "allocator/engine/hot.h"
#include "allocator/movement/host_use.h"
#include "firn/canary.h"

namespace firn {

Result<Hold> EngineImpl::touch(const void* pointer, CUstream stream, Access access, Seen seen) {
  auto address = reinterpret_cast<uint64_t>(pointer);
  if (!arena_->contains(address)) return Hold{};
  uint32_t number = arena_->at(address);
  if (number == 0) return Hold{};
  if (number & SmallBlocks::segment_mark) return touch_small(number, address, stream, access, seen);
  Block* found = large_at(number, address);
  if (!found) return Hold{};
  Block& block = *found;
  uint64_t blocked = word::unsettled | word::freed;
  if (access == Access::write) blocked |= word::copies | word::recipes;
  uint64_t w = block.word.load();
  while (word::state(w) == State::resident && !(w & blocked)) {
    if (!block.word.try_hold(w, proves(seen, w))) continue;
    block.age.store(
        note(access == Access::write ? EventKind::touch_write : EventKind::touch_read, block),
        std::memory_order_relaxed);
    ++thread_holds();
    if (traced_) trace("touch", block, access == Access::write ? "write" : "read");
    return Hold{&block};
  }
  return touch_slow(block, address, stream, access, seen, For::program);
}

Result<Hold> EngineImpl::touch_anyway(const void* pointer, CUstream stream, Access access,
                                      Seen seen) {
  Block* block = live_at(pointer, false);
  if (block && block->pages == 0)
    block = whole_at(arena_->at(block->address), reinterpret_cast<uint64_t>(pointer), seen);
  if (!block) return Hold{};
  (void)frames_.host_granted();  // before the lock: the first time it takes a while
  return touch_slow(*block, reinterpret_cast<uint64_t>(pointer), stream, access, seen,
                    For::program_anyway);
}

/// `address`: in the block; of a segment, in the small block that is meant.
Result<Hold> EngineImpl::touch_slow(Block& block, uint64_t address, CUstream stream, Access access,
                                    Seen seen, For whom) {
  const bool anyway = whom == For::program_anyway || whom == For::recipe_anyway;
  const uint64_t ended =
      whom == For::recipe || whom == For::recipe_anyway ? uint64_t{0} : word::freed;
  Entered context(*this);
  if (Result<void> usable = can_use(context); !usable) return usable.error();
  Lock lock(mutex_);
  int index = see_stream(stream);
  if (index < 0)
    return make_error(Code::invalid_argument, 0,
                      fmt::format("the program uses more than {} streams, the most that Firn "
                                  "tracks", Streams::capacity));
  const uint32_t failures = block.fault_failures, refusals = block.read_refusals;
  const uint32_t generation = block.generation;
  std::optional<uint64_t> stall_begin;
  OpenWait open(open_waits_);
  // (A wait for an input is a part of the wait for what is made from it.)
  const bool counted = whom == For::program || whom == For::program_anyway;
  const auto begin_waiting = [&]() FIRN_HELD {
    if (stall_begin || !counted) return;
    stall_begin = clock_.now_ns();
    begin_stall();
    open.begin(*stall_begin);
  };
  const auto waited = [&]() FIRN_HELD {
    if (stall_begin) count_stall(*stall_begin, &block);
  };
  while (block.generation == generation) {
    if (health_.dead()) return health_.error();
    if (block.fault_failures > failures + 3)
      return make_error(Code::driver, 0,
                        fmt::format("block {:#x} could not be brought back: {}", block.address,
                                    block.fault_error.text));
    if (block.read_refusals != refusals) return unreadable(block, stall_begin);
    uint64_t w = block.word.load();
    if (w & ended) break;
    switch (word::state(w)) {
      case State::resident: {
        if (w & word::many_uses) (void)uses_.over(block);  // forgets those that are over
        if (w & word::unsettled) {
          if (streams_.over(block.arrival)) {
            block.word.clear(word::unsettled);
            block.arrival = {};
          } else {
            if (!stall_begin && counted) begin_stall();
            if (Result<void> ordered = order_behind(index, block.arrival); !ordered) {
              if (ordered.error().code != Code::busy) return ordered.error();
              if (!stall_begin && counted) open.begin(*(stall_begin = clock_.now_ns()));
              await(lock, block.arrival);
              break;
            }
            if (learner_ && learner_->timing()) learner_->clock().waits_for(block.arrival);
          }
        }
        if (access == Access::write && (w & word::recipes)) {
          if (Block* named = named_by(block, address); named && recipes_.reader_away(*named))
            begin_waiting();
          const Result<bool> alone = written(lock, block, address, stream, index, anyway);
          if (!alone) {
            waited();
            return alone.error();
          }
          if (!*alone) break;
        }
        if (access == Access::write && (w & word::copies)) {
          if (options_.guard && !movement_.open_guarded(block)) return health_.error();
          movement_.drop_copies(block);
        }
        w = block.word.load();
        while (word::state(w) == State::resident && !(w & ended)) {
          if (!block.word.try_hold(w, proves(seen, w))) continue;
          const auto kind =
              access == Access::write ? EventKind::touch_write : EventKind::touch_read;
          // (What the program did not do is no event for the learner.)
          const bool noted = counted && block.segment == 0;
          block.age.store(noted ? note(kind, block) : next_tick(), std::memory_order_relaxed);
          if (block.prefetched) block.prefetched = false;
          waited();
          ++thread_holds();
          if (traced_) trace("touch", block, access == Access::write ? "write" : "read");
          return Hold{&block};
        }
        break;
      }
      case State::spilling:
        movement_.keep(block);
        break;
      case State::hosted:
      case State::spilled:
      case State::faulting:
        if (!stall_begin && counted && word::state(w) != State::faulting) note_needed(block);
        begin_waiting();
        if (block.at_host) {
          if (Result<void> awaited = await_host_use(lock, block); !awaited) {
            waited();
            return awaited.error();
          }
          break;
        }
        // Faulting and not all mapped: a part is being prefetched.
        if (word::state(w) != State::faulting || block.mapped < block.pages) {
          if (Result<void> begun = begin_fault(lock, block, anyway); !begun) {
            waited();
            return begun.error();
          }
          break;
        }
        pump_locked();
        if (!movement_.carry_out_sums(lock) && block.state() == State::faulting)
          wait(lock, poll_ns);
        break;
      case State::dropped:
      case State::remaking:
        if (Recipe* recipe = recipes_.of(block);
            recipe && recipe->maker == std::this_thread::get_id())
          return Hold{};  // by the remaker itself: it has the block
        begin_waiting();
        if (Result<void> made =
                make_again(lock, block, stream, static_cast<unsigned>(index), anyway);
            !made) {
          waited();
          return made.error();
        }
        break;
      case State::lost:
        return make_error(Code::lost, 0,
                          fmt::format("block {:#x} ({} bytes) is lost: {}", block.address,
                                      block.requested, block.fault_error.text));
      default:
        return Hold{};  // freed under our hands: not a block any more
    }
  }
  return Hold{};
}

/// The stream's later work waits for the use, which Firn may have enqueued on it. Code::busy: no
/// event can be had; or the stream is captured, whose graph knows nothing of work before it.
Result<void> EngineImpl::order_behind(unsigned index, Use use) {
  if (use.stream() == index && !streams_.over(use) && !streams_.takes_work(index))
    return make_error(Code::busy, 0, "the stream is captured behind its work");
  return streams_.order(index, use);
}

/// The block itself, or the small block at this address of a segment; null: it has been freed.
Block* EngineImpl::named_by(Block& block, uint64_t address) const {
  return block.segment != 0 ? block_at(address) : &block;
}

/// The block, which is on the device, is about to be written on the stream: recipes that it is part
/// of end, and the stream waits for reads that the program does not know of. False: the lock was
/// released meanwhile, and the caller looks again.
Result<bool> EngineImpl::written(Lock& lock, Block& block, uint64_t address, CUstream stream,
                                 int index, bool anyway) {
  if (FIRN_CANARY(41)) return true;
  Block* named = named_by(block, address);
  if (!named) return true;  // freed under our hands
  if (named != &block && !(named->word.load() & word::recipes)) {  // another of its segment is meant
    bool any = false;
    SmallBlocks::each(segment_of(block), table_, [&](const Block& small) FIRN_HELD {
      any |= (small.word.load() & word::recipes) != 0;
      return true;
    });
    if (!any) block.word.clear(word::recipes);
    return true;
  }
  if (Block* reader = recipes_.reader_away(*named)) {
    if (recipes_.of(*reader)->maker == std::this_thread::get_id())
      return make_error(Code::invalid_argument, 0,
                        fmt::format("block {:#x} is written by the recipe that reads it",
                                    named->address));
    Result<void> back = bring_back_reader(lock, *reader, stream, anyway);
    if (!back) return back.error();
    return false;
  }
  for (const Use read : named->remake_reads) {
    if (FIRN_CANARY(44)) continue;
    Result<void> ordered = order_behind(static_cast<unsigned>(index), read);
    if (ordered) continue;
    if (ordered.error().code != Code::busy) return ordered.error();
    await(lock, read);
    return false;
  }
  std::erase_if(named->remake_reads, [this](Use read) FIRN_HELD { return streams_.over(read); });
  end_readers(*named);
  end_recipe(*named);
  if (named->remake_reads.empty()) named->word.clear(word::recipes);
  return true;
}

/// A touch of a block that the processor uses: a little of the wait for its end.
Result<void> EngineImpl::await_host_use(Lock& lock, Block& block) {
  if (block.at_host->thread == std::this_thread::get_id())
    return make_error(Code::invalid_argument, 0,
                      fmt::format("block {:#x} ({} bytes) is used on the device by the thread that "
                                  "uses it in host memory: end_on_host() comes first",
                                  block.address, size_t{block.requested}));
  // (Who uses it there may wait for the room that this thread holds.)
  const int mine = thread_holds();
  waiting_holds_ += mine;
  pump_locked();
  wait(lock, poll_ns);
  waiting_holds_ -= mine;
  return {};
}

/// The error for a thread that waited for a block whose bytes cannot be had now.
Error EngineImpl::unreadable(const Block& block, std::optional<uint64_t> stall_begin) {
  if (stall_begin) count_stall(*stall_begin, &block);
  const bool memory = block.fault_error.code == Code::out_of_memory;
  return make_error(
      memory ? Code::out_of_memory : Code::lost, 0,
      fmt::format("block {:#x} ({} bytes) could not be read back for {} s (firn_io_patience): {}; "
                  "Firn keeps its copy, and the next use tries again",
                  block.address, block.requested, options_.io_patience_ns / 1'000'000'000,
                  block.fault_error.text));
}

int EngineImpl::find_index(CUstream stream) {
  int index = streams_.find(stream);
  if (index < 0) {
    Lock lock(mutex_);
    index = see_stream(stream);
    if (index < 0) return index;
  }
  streams_.used(static_cast<unsigned>(index));
  if (program_stream_.load(std::memory_order_relaxed) != index)
    program_stream_.store(index, std::memory_order_release);
  return index;
}

/// For a stream without an index: waits until its work so far is over.
void EngineImpl::wait_for_stream(CUstream stream) {
  Entered context(*this);
  none_held("cuStreamSynchronize");
  const CUresult result = driver_.stream_synchronize(stream);
  Lock lock(mutex_);
  if (result != CUDA_SUCCESS) (void)health_.failed("cuStreamSynchronize", result);
  trouble(fmt::format("the program uses more than {} streams, the most that Firn tracks: it waits "
                      "for the work on each further stream", Streams::capacity));
}

void EngineImpl::change_use(Block& block, Use use) {
  uint64_t last = block.use.load(std::memory_order_acquire);
  for (;;) {
    Use before{last};
    if (before && before.stream() == use.stream() && before.epoch() >= use.epoch()) break;
    if (before && before.stream() != use.stream() && !streams_.over(before)) {
      Lock lock(mutex_);
      uses_.add(block, before);
    }
    if (block.use.compare_exchange_weak(last, use.bits, std::memory_order_acq_rel)) break;
  }
}

void EngineImpl::last_hold_dropped(Block& block, uint64_t word_before) {
  Entered context(*this);
  if (context.result() == CUDA_ERROR_NOT_PERMITTED) {
    if (word_before & word::freed) settle_later(block);
    return;
  }
  Lock lock(mutex_);
  drop_last_hold(block, word_before);
}

/// Ends what waited for the last hold, with the lock.
void EngineImpl::drop_last_hold(Block& block, uint64_t word_before) {
  if (word_before & word::freed)
    finish_free(block);
  else
    movement_.start_spill(block, true);  // back to where it was as soon as the work is over
}

void EngineImpl::release(Hold hold, CUstream stream) {
  if (!hold.block) return;
  if (const int index = index_of(stream); index >= 0) [[likely]]
    set_use(*hold.block, streams_.now(static_cast<unsigned>(index)));
  else
    wait_for_stream(stream);
  --thread_holds();
  drop_hold(*hold.block);
}

Hold EngineImpl::hold_new(const void* pointer, const char* maker) {
  Block* block = live_at(pointer, true);
  if (!block) return {};
  if (!hold_live(*block)) return {};
  ++thread_holds();
  if (maker) {
    block->maker.store(maker, std::memory_order_relaxed);
    block->maker_of.store(block->generation, std::memory_order_relaxed);
  }
  return Hold{block};
}

void EngineImpl::allocated_outside(const void* pointer) {
  Block* block = live_at(pointer, true);
  if (block)
    block->word.set(word::outside);
}

/// For pin() and give_address(): makes the block resident, its bytes valid for every stream, its
/// copies dropped, and reads over that the program does not know of. `mark` is called with the lock
/// held. (A small block comes with its segment; before watching begins it is there anyway.)
template <class Mark>
Result<void> EngineImpl::pin_with(Block& block, Mark&& mark) {
  const auto* pointer = reinterpret_cast<const void*>(block.address);
  Result<Hold> hold = touch(pointer, nullptr, Access::write, Seen::always);
  if (!hold) return hold.error();
  Result<void> arrived;
  {
    Entered context(*this);
    if (Result<void> usable = can_use(context); !usable) arrived = usable;
    Lock lock(mutex_);
    const Block* moved = hold->block;
    const auto wait_for = [&](Use use) FIRN_HELD {  // (Others go on meanwhile.)
      while (arrived && !streams_.over(use)) {
        if (health_.dead())
          arrived = health_.error();
        else
          await(lock, use);
      }
    };
    if (moved) wait_for(moved->arrival);
    const std::vector<Use> reads = block.remake_reads;  // (It changes while others go on.)
    for (const Use read : reads) wait_for(read);
    if (arrived) mark();
  }
  release(*hold, nullptr);
  return arrived;
}

Result<void> EngineImpl::pin(const void* pointer, const char* reason) {
  Block* block = live_at(pointer, false);
  if (!block)
    return make_error(Code::invalid_argument, 0,
                      fmt::format("cannot pin {}: it is outside Firn's live blocks", pointer));
  return pin_with(*block, [&]() FIRN_HELD {
    block->pin_reason = reason;
    ++block->pin_count;
    block->word.set(word::pinned);
    trace("pin", *block, reason);
    if (block->pages != 0) placed_.bar(*block);
  });
}

Result<void> EngineImpl::give_address(const void* pointer, const char* reason) {
  Block* block = live_at(pointer, false);
  if (!block || (block->word.load() & word::given)) return {};
  return pin_with(*block, [&]() FIRN_HELD {
    block->given_reason = reason;
    block->word.set(word::pinned | word::given);
    trace("pin", *block, reason);
    if (block->pages != 0) placed_.bar(*block);
  });
}

Result<void> EngineImpl::unpin(const void* pointer) {
  Block* block = live_at(pointer, false);
  if (!block || !(block->word.load() & (word::pinned | word::small)))
    return make_error(Code::invalid_argument, 0,
                      fmt::format("cannot unpin {}: it is not pinned", pointer));
  Lock lock(mutex_);
  if (block->pin_count > 0)
    --block->pin_count;
  else if (!block->exported)
    block->word.clear(word::given);
  if (block->pin_count > 0) return {};
  block->pin_reason = nullptr;
  if (block->word.load() & word::given) return {};
  block->word.clear(word::pinned);
  trace("unpin", *block);
  return {};
}

}  // namespace firn
