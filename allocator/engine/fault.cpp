// The way in, until its bytes begin to come (movement/arrive.cpp): room is made, and the same
// address is mapped again, on demand or ahead. The whole way of a block that is made again, which
// has no copy. And the end of a block that was freed on that way.
#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "allocator/engine/hot.h"
#include "firn/canary.h"
#include "firn/check.h"
#include "firn/remaker.h"

namespace firn {

/// Maps what is missing of the block and begins to bring its bytes. While room is made the block
/// keeps its state: a part that is still mapped may leave for others too, and the caller checks
/// again when this returns. `anyway`: to host memory when the budget has no room.
Result<void> EngineImpl::begin_fault(Lock& lock, Block& block, bool anyway) {
  const uint32_t generation = block.generation;
  block.age.store(next_tick(), std::memory_order_relaxed);
  Error short_of_memory;  // the device's last refusal of this memory
  for (int attempt = 0;;) {
    if (block.coming > 0) {
      if (!carry_out_mappings(lock)) wait(lock, poll_ns);
      return {};
    }
    if (block.going > 0) {
      if (!carry_out_unmappings(lock, block)) wait(lock, poll_ns);
      return {};
    }
    const uint64_t granules = granules_for(block, block.pages - block.mapped);
    Result<Reservation> room = attempt < refusals_most
                                   ? make_room(lock, {.granules = granules, .block = &block})
                                   : Result<Reservation>(short_of_memory);
    Result<void> provided;
    if (room && room->granules() > 0)
      provided = mapper_.provide(lock,
                                 block.shape.shared()
                                     ? block.shape
                                     : Shape{0, static_cast<uint32_t>(room->granules()), 0},
                                 *room);
    if (block.generation != generation || block.coming > 0 || block.going > 0 || block.at_host)
      return {};
    if (block.state() == State::spilling) movement_.keep(block);
    State state = block.state();
    if (state != State::hosted && state != State::spilled && state != State::faulting &&
        state != State::dropped)
      return {};
    const uint64_t missing = block.pages - block.mapped;
    if (missing == 0) return {};
    if (room && room->granules() < granules_for(block, missing)) continue;
    if (!room && room.error().code == Code::out_of_memory && attempt < refusals_most &&
        granules_for(block, missing) == 0) {  // parts of shared frames came free meanwhile
      ++attempt;
      continue;
    }
    if (!room && room.error().code == Code::out_of_memory && !anyway)
      anyway = places_in_way(granules_for(block, missing));
    if (!room && !(anyway && room.error().code == Code::out_of_memory)) return room.error();
    if (!room && ask_for_host(lock)) continue;
    Result<void> mapped;
    if (!room)
      mapped = map_host_fault(lock, block, room.error());
    else if (!provided)
      mapped = provided.error();
    else if (Result<Mapping> claimed = mapper_.claim(block, missing, std::move(*room)); claimed)
      mapped = carry_out(lock, *claimed);
    else
      mapped = claimed.error();
    if (mapped) return {};
    if (mapped.error().detail != CUDA_ERROR_OUT_OF_MEMORY) return mapped;
    if (attempt == refusals_most) return short_device(granules, &block, mapped.error());
    if (++attempt == refusals_most)
      short_of_memory = short_device(granules, &block, mapped.error());
  }
}

/// Granules to reserve for mapping so many of the block's pages (whole spans), at this moment.
uint64_t EngineImpl::granules_for(const Block& block, uint64_t pages) const {
  return block.shape.shared() ? frames_.granules_for(block.shape) : pages / granule_pages;
}

/// Maps what is missing with host memory, beyond the budget.
Result<void> EngineImpl::map_host_fault(Lock& lock, Block& block, const Error& no_room) {
  std::vector<Frame> frames;
  for (const Span& span : block.spans) {
    if (span.mapped()) continue;
    Result<std::vector<Frame>> one = frames_.take_host(
        block.shape.shared() ? block.shape.granules() : span.pages / granule_pages);
    if (!one) {
      frames_.give(frames);
      if (health_.dead()) return one.error();
      return make_error(Code::out_of_memory, 0, no_room.text + "; " + one.error().text);
    }
    frames.push_back(one->front());
  }
  const uint64_t pages = block.pages - block.mapped;
  const uint32_t generation = block.generation;
  Mapping mapping = Mapper::claim(block, std::move(frames), pages);
  if (Result<void> mapped = carry_out(lock, mapping); !mapped) return mapped;
  if (block.generation == generation) count_zero_copy(pages * page_bytes, no_room);
  // (Else it was freed meanwhile.)
  return {};
}

void EngineImpl::count_zero_copy(uint64_t bytes, const Error& no_room) {
  counted_.zero_copy_bytes += bytes;
  if (counted_.zero_copy_touches++ == 0 && !options_.no_bytes)  // (firn simulate reports the sum.)
    trouble("the tensors of one operator exceed the budget: the GPU used some of them in host "
            "memory, slowly; " + no_room.text);
}

/// A hold that lets nobody end the block, whatever its state.
void EngineImpl::hold_as_it_is(Block& block) {
  uint64_t w = block.word.load();
  while (!block.word.try_hold(w)) {
  }
  ++thread_holds();
}

void EngineImpl::drop_hold_held(Block& block) {
  --thread_holds();
  const uint64_t w = block.word.drop_hold();
  if ((w & (word::freed | word::zero_copy)) && word::holds(w) == 1) drop_last_hold(block, w);
}

/// Makes a dropped block again, for a use on the stream; or waits a little where another thread
/// does. First its inputs come, which may be dropped themselves, and then the block has frames: a
/// chain of them needs room for one link at a time, since the input with the longest chain comes
/// while no other is held. It releases the lock: the caller looks again when this returns.
Result<void> EngineImpl::make_again(Lock& lock, Block& block, CUstream stream, unsigned index,
                                    bool anyway) {
  const Recipe* recipe = recipes_.of(block);
  FIRN_CHECK(recipe, "block %llx (%s) has no way back", (unsigned long long)block.address,
             state_names[static_cast<int>(block.state())]);
  if (block.state() == State::remaking && !FIRN_CANARY(43)) {
    // (Its maker may wait for the room that this thread holds.)
    const int mine = thread_holds();
    waiting_holds_ += mine;
    pump_locked();
    wait(lock, poll_ns);
    waiting_holds_ -= mine;
    return {};
  }
  // Firn's own stream where the program's takes no work: every other stream waits for it.
  const bool own = !streams_.takes_work(index);
  const unsigned on = own ? transfers_.in() : index;
  const CUstream on_stream = own ? transfers_.in_stream() : stream;
  std::vector<Block*> inputs = recipe->inputs;
  std::stable_sort(inputs.begin(), inputs.end(), [this](const Block* a, const Block* b) FIRN_HELD {
    return recipes_.depth_to(*a) > recipes_.depth_to(*b);
  });
  hold_as_it_is(block);  // while it is held and away, its recipe stands
  std::vector<Block*> held;
  Result<void> made;
  for (Block* input : inputs) {
    if (block.state() != State::dropped && !FIRN_CANARY(43)) break;  // another thread was quicker
    Block* moved = moved_with(input);
    Result<Hold> hold = Hold{};
    hold_as_it_is(*moved);
    {
      const UnlockedEngine unlocked(lock);
      hold = touch_slow(*moved, input->address, on_stream, Access::read, Seen::always,
                        anyway ? For::recipe_anyway : For::recipe);
    }
    const bool lost = moved->state() == State::lost && block.state() == State::dropped;
    drop_hold_held(*moved);
    if (!hold) {
      made = make_error(hold.error().code, hold.error().detail,
                        fmt::format("block {:#x} ({} bytes) cannot be made again: {}",
                                    block.address, size_t{block.requested}, hold.error().text));
      if (lost) {
        movement_.lose_with_input(block, made.error());
        end_recipe(block);
      }
      break;
    }
    FIRN_CHECK(hold->block == moved, "block %llx: its input has ended",
               (unsigned long long)block.address);
    held.push_back(moved);
  }
  if (made && (block.state() == State::dropped || FIRN_CANARY(43))) {
    made = begin_fault(lock, block, anyway);
    // (The thread that maps it comes here with the lock still held.)
    Recipe* standing = recipes_.of(block);
    if (made && block.state() == State::remaking &&
        (standing->maker == std::thread::id() || FIRN_CANARY(43))) {
      standing->maker = std::this_thread::get_id();
      // (A capture may have begun on the stream meanwhile: the next look takes Firn's own.)
      if (own || streams_.takes_work(on)) {
        made = remake(lock, block, on_stream, on);
        if (made) note_remake_reads(inputs, streams_.now(on));  // (Else they were waited for.)
      } else {
        undo_remake(lock, block);
      }
      recipes_.of(block)->maker = {};
    }
  }
  // (Where another thread makes it, or has, this one's troubles do not matter.)
  if (!made && block.state() != State::dropped && !health_.dead()) made = {};
  for (Block* input : held) drop_hold_held(*input);
  drop_hold_held(block);
  return made;
}

/// The inputs were read until this use, of which the program knows nothing. It is closed here, like
/// the arrival before it: a capture that begins on its stream would keep it open.
void EngineImpl::note_remake_reads(const std::vector<Block*>& inputs, Use read) {
  for (Block* input : inputs) {
    uses_.add(*moved_with(input), read);
    std::erase_if(input->remake_reads, [&](Use use) FIRN_HELD {
      return use.stream() == read.stream() || streams_.over(use);
    });
    input->remake_reads.push_back(read);
    if (!input->kept || input->pages != 0) continue;
    unkept_.push_back(input);  // (Who held its segment does not end it.)
    work_begins();
  }
  (void)streams_.close(read);
}

/// The frames are there, and the inputs held: its work is enqueued. Without the lock meanwhile.
Result<void> EngineImpl::remake(Lock& lock, Block& block, CUstream stream, unsigned index) {
  const uint64_t recipe = recipes_.of(block)->id;
  trace("remake", block);
  Result<void> made;
  {
    const UnlockedEngine unlocked(lock);
    none_held("Remaker::remake");
    if (options_.poison)
      (void)driver_.memset_d8_async(block.address, 0xFF, block.requested, stream);
    Remaker* remaker = remaker_.load(std::memory_order_acquire);
    if (!remaker)
      made = make_error(Code::lost, 0, "there is no remaker any more");
    else
      made = remaker->remake(recipe, reinterpret_cast<void*>(block.address), block.requested,
                             stream);
  }
  if (health_.dead()) return health_.error();
  if (!made) {
    uses_.add(block, streams_.now(index));
    undo_remake(lock, block);
    return make_error(made.error().code, made.error().detail,
                      fmt::format("block {:#x} ({} bytes) could not be made again (recipe {}): {}; "
                                  "the next use tries again",
                                  block.address, size_t{block.requested}, recipe,
                                  made.error().text));
  }
  block.arrival = streams_.now(index);
  if (!FIRN_CANARY(46)) block.word.set(word::unsettled);
  make_young(block);
  transit(block, Event::arrived);
  trace("remade", block);
  ++counted_.remakes;
  counted_.remade_bytes += block.requested;
  counted_.remade_ns += recipes_.of(block)->device_ns;
  if (!options_.adversarial) lets_inputs_go(*recipes_.of(block));
  clock_.notify();
  return {};
}

/// Back to where it was, once work that was enqueued for it is over.
void EngineImpl::undo_remake(Lock& lock, Block& block) {
  while (!health_.dead() && !uses_.over(block)) {
    (void)uses_.close(block);
    pump_locked();
    if (!uses_.over(block)) wait(lock, poll_ns);
  }
  if (health_.dead()) return;
  unmap_spans(block);
  transit(block, Event::unfault);
  trace("dropped", block);
  clock_.notify();
}

/// An input of a block that is away is about to be written: the block comes first, and its recipe
/// ends. Releases the lock.
Result<void> EngineImpl::bring_back_reader(Lock& lock, Block& reader, CUstream stream,
                                           bool anyway) {
  hold_as_it_is(reader);
  Result<Hold> hold = Hold{};
  {
    const UnlockedEngine unlocked(lock);
    hold = touch_slow(reader, reader.address, stream, Access::read, Seen::always,
                      anyway ? For::recipe_anyway : For::recipe);
  }
  if (hold && hold->block) {
    end_recipe(reader);  // it is held: no one drops it before that
    drop_hold_held(reader);
  }
  const bool lost = reader.state() == State::lost;
  drop_hold_held(reader);
  if (!hold && !lost) return hold.error();
  return {};
}

/// A block freed while its reads were in flight: no thread waits for it, but its frames are mapped
/// until the copies into them are over.
void EngineImpl::finish_drain(Block& block) {
  if (!uses_.over(block)) {
    (void)uses_.close(block);
    return;
  }
  unmap_spans(block);
  std::erase(draining_, &block);
  transit(block, Event::drained, life_flags | word::zero_copy);
  drop_descriptor(block);
}

/// Pages of the unmapped spans among these, from the first on, that fit what is available now and
/// `most`.
uint64_t EngineImpl::prefetchable_pages(const Block& block, uint64_t most,
                                        SpanRange spans) const {
  uint64_t pages = 0;
  const uint64_t available = frames_.available();
  for (size_t i = spans.begin; i < std::min<size_t>(spans.end, block.spans.size()); ++i) {
    const Span& span = block.spans[i];
    if (span.mapped() || span.coming || span.going) continue;
    const uint64_t with = pages + span.pages;
    if (with > most || granules_for(block, with) > available) break;
    pages = with;
  }
  return pages;
}

/// Pages of the spans that are wanted, and not there or on their way.
uint64_t EngineImpl::pages_to_fetch(const Hint& hint) const {
  uint64_t pages = 0;
  const auto& spans = hint.block->spans;
  for (size_t i = hint.spans.begin; i < std::min<size_t>(hint.spans.end, spans.size()); ++i)
    if (!spans[i].mapped() && !spans[i].coming) pages += spans[i].pages;
  return pages;
}

/// A hint is due.
void EngineImpl::take_hint(const Hint& hint) {
  Block& block = *hint.block;
  if (block.generation != hint.generation) return;
  if (hint.kind == Hint::Kind::cold) {
    std::erase_if(prefetches_, [&](const Hint& other) { return other.block == &block; });
    if (block.use.load(std::memory_order_acquire) != hint.last_use) return;
    block.age.store(0, std::memory_order_relaxed);
    movement_.start_spill(block, true);
    return;
  }
  // (Not in host memory, where an operator used it; nor where a thread waits for the room.)
  if (block.state() == State::spilling && waiting_ == 0 &&
      !(block.word.load(std::memory_order_relaxed) & word::zero_copy))
    movement_.keep(block);
  block.age.store(next_tick(), std::memory_order_relaxed);
  if (pages_to_fetch(hint) > 0) prefetches_.push_back(hint);
}

bool EngineImpl::take_hints() {
  bool any = false;
  while (const std::optional<Hint> hint = hints_.next_due(streams_)) {
    take_hint(*hint);
    any = true;
  }
  return any;
}

/// Fetches what prefetches that are due want, as far as there is room without waiting for it. A
/// thread that waits for memory goes first: what both wanted would come and leave in turn for ever.
bool EngineImpl::run_prefetches() {
  bool any = false;
  if (waiting_ > 0) return any;
  while (!prefetches_.empty()) {
    const Hint hint = prefetches_.front();
    Block& block = *hint.block;
    const State state = block.state();
    const uint64_t wanted = block.generation == hint.generation ? pages_to_fetch(hint) : 0;
    if (wanted == 0 ||
        (state != State::hosted && state != State::spilled && state != State::faulting)) {
      prefetches_.pop_front();
      continue;
    }
    if (block.going > 0) break;  // a later pump goes on
    // As many spans as there is room for, from the first on.
    uint64_t pages = prefetchable_pages(block, UINT64_MAX, hint.spans);
    if (pages == 0) {
      park_ready(false);
      reclaim_parked(granules_for(block, wanted));
      pages = prefetchable_pages(block, UINT64_MAX, hint.spans);
    }
    if (pages == 0) {
      const uint64_t soon = pages_soon();
      if (soon < wanted) evict(wanted - soon, &block);
      break;  // a later pump goes on
    }
    if (!claim_ahead(block, pages, hint.spans.begin)) break;
    if (pages == wanted) prefetches_.pop_front();
    any = true;
  }
  return any;
}

}  // namespace firn
