// A launch's blocks, touched and released at once: for each block one compare-and-swap, one
// fetch-and-subtract, and one tick where there is a history (else one for all). No lock, no
// allocation where all are resident.
#include <algorithm>

#include "allocator/engine/hot.h"

namespace firn {

namespace {
// How many of the last holds are searched for a block: a second hold of one is harmless, and costs
// less than a longer search.
constexpr size_t looked_back = 4;
}  // namespace

size_t EngineImpl::touch_many(std::span<const uint64_t> addresses, Access access, Hold* holds,
                              size_t& held, Seen seen) {
  uint64_t blocked = word::unsettled | word::freed;
  if (access == Access::write) blocked |= word::copies | word::recipes;
  const auto kind = access == Access::write ? EventKind::touch_write : EventKind::touch_read;
  const size_t before = held;
  const bool noted = noting();
  uint64_t tick = 0;
  size_t done = 0;
  for (; done < addresses.size(); ++done) {
    if (!arena_->contains(addresses[done])) continue;
    const uint32_t number = arena_->at(addresses[done]);
    if (number == 0) continue;
    const bool small = number & SmallBlocks::segment_mark;
    Block* found =
        small ? whole_at(number, addresses[done], seen) : large_at(number, addresses[done]);
    if (!found) continue;
    Block& block = *found;
    const Hold* end = holds + held;
    const Hold* first = held > looked_back ? end - looked_back : holds;
    if (std::any_of(first, end, [&](Hold h) { return h.block == &block; })) continue;
    uint64_t w = block.word.load();
    bool taken = false;
    while (!taken && word::state(w) == State::resident && !(w & blocked))
      taken = block.word.try_hold(w, proves(seen, w));
    if (!taken) break;
    if (noted && !small) {
      block.age.store(note(kind, block), std::memory_order_relaxed);
    } else {
      if (tick == 0) tick = ticks_.fetch_add(addresses.size() - done, std::memory_order_relaxed);
      block.age.store(tick++, std::memory_order_relaxed);
    }
    if (traced_) trace("touch", block, access == Access::write ? "write" : "read");
    holds[held++] = Hold{&block};
  }
  thread_holds() += static_cast<int>(held - before);
  return done;
}

void EngineImpl::release_many(std::span<const Hold> holds, CUstream stream) {
  if (holds.empty()) return;
  if (const int index = index_of(stream); index >= 0) [[likely]] {
    const Use use = streams_.now(static_cast<unsigned>(index));
    for (Hold hold : holds) set_use(*hold.block, use);
  } else {
    wait_for_stream(stream);
  }
  thread_holds() -= static_cast<int>(holds.size());
  for (Hold hold : holds) drop_hold(*hold.block);
}

void EngineImpl::used_on(std::span<const Hold> holds, CUstream stream) {
  Lock lock(mutex_);
  const int index = see_stream(stream);
  FIRN_CHECK(index >= 0, "more than %u streams", Streams::capacity);
  streams_.set_aside(static_cast<unsigned>(index));
  const Use use = streams_.now(static_cast<unsigned>(index));
  for (Hold hold : holds)
    if (hold.block) uses_.add(*hold.block, use);
}

void EngineImpl::saw_stream(CUstream stream) {
  if (!streams_told_.load(std::memory_order_relaxed)) streams_told_ = true;
  if (streams_.find(Streams::key_of(stream, nullptr)) >= 0) return;
  Lock lock(mutex_);
  (void)see_stream(stream);
}

void EngineImpl::release_unused(std::span<const Hold> holds) {
  thread_holds() -= static_cast<int>(holds.size());
  for (Hold hold : holds) drop_hold(*hold.block);
}

Hold EngineImpl::hold_apart(const void* pointer) {
  Block* block = live_at(pointer, true);
  if (block) block = moved_with(block);
  return block && hold_live(*block) ? Hold{block} : Hold{};
}

void EngineImpl::release_apart(Hold hold) {
  if (hold.block) drop_hold(*hold.block);
}

void EngineImpl::stream_ends(CUstream stream) {
  if (!Streams::plain(stream) || streams_.find(stream) < 0) return;
  Entered context(*this);
  if (!can_use(context)) return;
  Lock lock(mutex_);
  streams_.ends(static_cast<unsigned>(streams_.find(stream)));
}

CUstream EngineImpl::stream_of(CUstream stream, CUcontext context) {
  if (!context || context == options_.context) return stream;
  const CUstream key = Streams::key_of(stream, context);
  if (streams_.find(key) >= 0) return key;
  Lock lock(mutex_);
  (void)see_stream(stream, context);
  return key;
}

}  // namespace firn
