#include "allocator/blocks/block_word.h"

#include "firn/check.h"

namespace firn {

namespace {
uint64_t moved(uint64_t w, Event event, uint64_t address) {
  const int to = next_state(word::state(w), event);
  FIRN_CHECK(to >= 0, "block %llx: %s in state %s", (unsigned long long)address,
             event_names[static_cast<int>(event)],
             state_names[static_cast<int>(word::state(w))]);
  return word::with_state(w, static_cast<State>(to));
}
}  // namespace

void BlockWord::move(Event event, word::Flags clear, uint64_t address) {
  uint64_t w = load();
  while (!exchange(w, moved(w & ~clear.bits, event, address))) {
  }
}

void BlockWord::move_own(Event event, word::Flags set, uint64_t address) {
  const uint64_t w = load(std::memory_order_relaxed);
  bits_.store(moved(w, event, address) | set.bits, std::memory_order_release);
}

bool BlockWord::try_spill(uint64_t& seen, uint64_t address) {
  return exchange(seen, moved(seen, Event::spill, address) | word::copies);
}

}  // namespace firn
