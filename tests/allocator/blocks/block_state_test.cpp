// The transition table: what it allows, what it forbids, and that it can be walked only along life.
#include "allocator/blocks/block_state.h"

#include <gtest/gtest.h>

#include "allocator/blocks/block.h"
#include "tests/allocator/blocks/block_word_inspector.h"

using namespace firn;

TEST(BlockState, every_state_but_free_can_end_in_free) {
  for (int start = 0; start < state_count; ++start) {
    std::vector<bool> reached(state_count);
    std::vector<State> open{static_cast<State>(start)};
    while (!open.empty()) {
      State state = open.back();
      open.pop_back();
      if (reached[static_cast<int>(state)]) continue;
      reached[static_cast<int>(state)] = true;
      for (int event = 0; event < event_count; ++event)
        if (int to = next_state(state, static_cast<Event>(event)); to >= 0)
          open.push_back(static_cast<State>(to));
    }
    EXPECT_TRUE(reached[static_cast<int>(State::free)]) << state_names[start];
  }
}

TEST(BlockState, frames_are_unmapped_only_after_the_bytes_are_elsewhere) {
  // From resident the only way without frames leads through spilling and copied_out.
  for (int event = 0; event < event_count; ++event) {
    int to = next_state(State::resident, static_cast<Event>(event));
    EXPECT_TRUE(to != static_cast<int>(State::hosted) && to != static_cast<int>(State::spilled))
        << event_names[event];
  }
  EXPECT_EQ(next_state(State::spilling, Event::copied_out), static_cast<int>(State::hosted));
}

TEST(BlockState, a_block_without_a_copy_comes_back_by_its_recipe_alone) {
  EXPECT_EQ(next_state(State::spilling, Event::drop), static_cast<int>(State::dropped));
  for (int event = 0; event < event_count; ++event) {
    const int from_dropped = next_state(State::dropped, static_cast<Event>(event));
    EXPECT_TRUE(from_dropped < 0 || from_dropped == static_cast<int>(State::remaking) ||
                from_dropped == static_cast<int>(State::draining) ||
                from_dropped == static_cast<int>(State::lost))
        << event_names[event];
    for (int from = 0; from < state_count; ++from)
      EXPECT_TRUE(next_state(static_cast<State>(from), static_cast<Event>(event)) !=
                      static_cast<int>(State::dropped) ||
                  from == static_cast<int>(State::spilling) ||
                  from == static_cast<int>(State::remaking))
          << state_names[from] << " " << event_names[event];
  }
  // Freed where the device died while a thread made it again.
  EXPECT_EQ(next_state(State::remaking, Event::release), static_cast<int>(State::draining));
}

TEST(BlockState, every_transition_is_in_the_table_once) {
  int entries = 0;
  for (int from = 0; from < state_count; ++from)
    for (int event = 0; event < event_count; ++event)
      entries += next_state(static_cast<State>(from), static_cast<Event>(event)) >= 0;
  EXPECT_EQ(entries, static_cast<int>(std::size(transitions)));
}

TEST(BlockStateDeathTest, what_is_not_in_the_table_aborts) {
  for (int from = 0; from < state_count; ++from) {
    for (int event = 0; event < event_count; ++event) {
      if (next_state(static_cast<State>(from), static_cast<Event>(event)) >= 0) continue;
      Block block;
      BlockWordInspector::put(block.word, static_cast<uint64_t>(from));
      EXPECT_DEATH(transit(block, static_cast<Event>(event)), event_names[event]);
      event += 3;  // a death costs a fork: a sample of each row
    }
  }
}

TEST(BlockState, flags_and_holds_survive_a_transition) {
  Block block;
  BlockWordInspector::put(block.word, static_cast<uint64_t>(State::spilling) | word::copies |
                                          word::proven | 3 * word::hold_one);
  transit(block, Event::keep);
  EXPECT_EQ(block.state(), State::resident);
  EXPECT_EQ(word::holds(block.word.load()), 3u);
  EXPECT_TRUE(block.word.load() & word::copies);
  transit(block, Event::release, life_flags);
  EXPECT_FALSE(block.word.load() & (word::copies | word::proven));
}
