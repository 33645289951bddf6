// carry_out.h: what leaves the device, and what arrives there.
#include "tests/allocator/lifetimes/carry_out_machine.h"

namespace firn::lifetimes::testing {

/// carry_out.h's own example.
TEST_F(CarryOutTest, the_example_of_three_blocks) {
  machine.blocks = {{'A', {.clean = 4, .next_use = 9}}, {'B', {.next_use = 1}},
                    {'C', {.mapped = 0, .next_use = 2}}};
  plan.fetch = {candidate('C', 2)};
  plan.farthest = {candidate('A', 9), candidate('B', 1)};
  plan.leaving = {candidate('B', 1)};
  EXPECT_TRUE(carry().fetch_ahead());
  EXPECT_EQ(did(), "A-4 C+4 ");
  EXPECT_TRUE(carry().clean_ahead());
  EXPECT_EQ(did(), "B~4 ");
  machine.blocks['A'] = {.clean = 0, .next_use = 9};
  machine.blocks['A'].touched = 5;  // the plan does not mean it any more
  EXPECT_EQ(carry().evict(4, {}), 4u);
  EXPECT_EQ(did(), "B-4 ") << "being copied out: free the soonest";
}

TEST_F(CarryOutTest, for_a_fetch_only_clean_blocks_that_are_used_later_leave) {
  machine.blocks = {{'A', {.clean = 4, .next_use = 3}}, {'B', {.next_use = 9}},
                    {'C', {.mapped = 0, .next_use = 4}}};
  plan.fetch = {candidate('C', 4)};
  plan.farthest = {candidate('B', 9), candidate('A', 3)};
  EXPECT_FALSE(carry().fetch_ahead());
  EXPECT_EQ(did(), "");
  EXPECT_EQ(plan.fetch.size(), 1u);  // tried again later
}

TEST_F(CarryOutTest, where_disks_read_all_the_time_swaps_wait_for_the_last_part_of_a_period) {
  machine.blocks = {{'A', {.clean = 4, .next_use = 100}}, {'C', {.mapped = 0, .next_use = 50}}};
  machine.reading = .9;
  machine.spare = machine.host;  // transfers only pass through
  plan.fetch = {candidate('C', 50)};
  plan.farthest = {candidate('A', 100)};
  ASSERT_TRUE(carry().host_is_passage());
  EXPECT_FALSE(carry().fetch_ahead());
  machine.at = 48;  // within 256 / 128 events of its use
  EXPECT_TRUE(carry().fetch_ahead());
  EXPECT_EQ(did(), "A-4 C+4 ");
}

TEST_F(CarryOutTest, one_that_the_processor_uses_comes_behind_that) {
  machine.blocks = {{'A', {.mapped = 0, .at_host = true}}, {'C', {.mapped = 0}}};
  machine.free = 8;
  plan.fetch = {candidate('A', 1), candidate('C', 2)};
  EXPECT_TRUE(carry().fetch_ahead());
  machine.blocks['A'].at_host = false;
  EXPECT_TRUE(carry().fetch_ahead());
  EXPECT_EQ(did(), "C+4 A+4 ");
}

TEST_F(CarryOutTest, little_arrives_at_a_time) {
  machine.blocks = {{'C', {.size = 40, .mapped = 0}}};
  machine.free = 40;
  machine.in = 16;  // four spans
  plan.fetch = {candidate('C', 5, 40)};
  EXPECT_FALSE(carry().fetch_ahead());
}

/// Else urgent transfers would queue behind it.
TEST_F(CarryOutTest, a_slow_link_has_ten_milliseconds_of_work_ahead) {
  machine.blocks = {{'A', {}}, {'C', {.size = 40, .mapped = 0}}};
  machine.free = 40;
  plan.fetch = {candidate('C', 5, 40)};
  plan.leaving = {candidate('A', 9)};
  for (const Channel channel : {Channel::host_in, Channel::host_out})
    machine.bytes_s[static_cast<size_t>(channel)] = 600;  // 6 bytes of 16 in, and of 8 out
  machine.in = machine.out = 6;
  EXPECT_FALSE(carry().fetch_ahead());
  EXPECT_FALSE(carry().clean_ahead());
  machine.in = machine.out = 5;
  EXPECT_TRUE(carry().fetch_ahead());
  EXPECT_TRUE(carry().clean_ahead());
  EXPECT_EQ(did(), "C+4 A~4 ");
}

TEST_F(CarryOutTest, a_link_that_seems_slow_has_an_eighth_of_a_span_ahead) {
  machine.span = 80;
  machine.blocks = {{'C', {.size = 160, .mapped = 0}}};
  machine.free = 160;
  plan.fetch = {candidate('C', 5, 160)};
  machine.bytes_s[static_cast<size_t>(Channel::host_in)] = 100;  // one byte in 10 ms
  machine.in = 10;
  EXPECT_FALSE(carry().fetch_ahead());
  machine.in = 9;
  EXPECT_TRUE(carry().fetch_ahead());
}

TEST_F(CarryOutTest, a_fast_link_has_four_spans_ahead_and_two_of_copies_out) {
  machine.blocks = {{'A', {}}, {'C', {.size = 40, .mapped = 0}}};
  machine.free = 40;
  plan.fetch = {candidate('C', 5, 40)};
  plan.leaving = {candidate('A', 9)};
  for (double& bytes_s : machine.bytes_s) bytes_s = 1e9;
  machine.in = 16;
  machine.out = 8;
  EXPECT_FALSE(carry().fetch_ahead());
  EXPECT_FALSE(carry().clean_ahead());
  machine.in = 15;
  machine.out = 7;
  EXPECT_TRUE(carry().fetch_ahead());
  EXPECT_TRUE(carry().clean_ahead());
}

TEST_F(CarryOutTest, a_block_that_was_touched_is_not_meant) {
  machine.blocks = {{'A', {.clean = 4, .next_use = 99}}, {'C', {.mapped = 0}}};
  plan.fetch = {candidate('C', 5)};
  plan.farthest = {candidate('A', 99)};
  machine.blocks['A'].touched = machine.blocks['C'].touched = 7;
  EXPECT_FALSE(carry().fetch_ahead());
  EXPECT_TRUE(plan.fetch.empty());
  EXPECT_EQ(carry().evict(4, {}), 0u);
  machine.blocks['A'].touched = 0;
  machine.blocks['A'].life = 2;  // another block by now
  plan.evicted = 0;
  EXPECT_EQ(carry().evict(4, {}), 0u);
  EXPECT_EQ(did(), "");
}

TEST_F(CarryOutTest, clean_blocks_used_late_leave_first_then_dirty_ones_then_those_used_soon) {
  machine.blocks = {{'A', {.next_use = 90}}, {'B', {.clean = 4, .next_use = 80}},
                    {'C', {.clean = 4, .next_use = 5}}, {'D', {.next_use = 4}}};
  plan.farthest = {candidate('A', 90), candidate('B', 80), candidate('C', 5), candidate('D', 4)};
  EXPECT_EQ(carry().evict(16, 'D'), 12u);
  EXPECT_EQ(did(), "B-4 A-4 C-4 ");
  EXPECT_EQ(carry().evict(1, 'A'), 1u);
  EXPECT_EQ(did(), "D-1 ");
}

TEST_F(CarryOutTest, blocks_that_nobody_can_wait_for_stay) {
  machine.blocks = {{'A', {.next_use = 90, .captured = true}},
                    {'B', {.clean = 4, .next_use = 80, .used = true}}};
  plan.farthest = {candidate('A', 90), candidate('B', 80)};
  EXPECT_EQ(carry().evict_farthest(4, {}, 0, true), 0u) << "its uses are not over";
  EXPECT_EQ(carry().evict_farthest(4, {}, 0, false), 4u);
  EXPECT_EQ(did(), "B-4 ");
}

TEST_F(CarryOutTest, blocks_in_use_do_not_hold_up_the_others_that_are_made_clean) {
  machine.blocks = {{'A', {.used = true}}, {'B', {}}, {'C', {.clean = 4}}};
  plan.leaving = {candidate('C', 7), candidate('A', 9), candidate('B', 8)};
  EXPECT_TRUE(carry().clean_ahead());
  EXPECT_EQ(did(), "A? B~4 ");
  EXPECT_EQ(plan.cleaned, 1u);  // past C, which is clean; A comes again
  machine.blocks['A'].used = false;
  EXPECT_TRUE(carry().clean_ahead());
  EXPECT_EQ(did(), "A~4 ");
}

TEST_F(CarryOutTest, spare_copies_wait_while_the_store_is_behind) {
  machine.blocks = {{'A', {}}};
  plan.leaving = {candidate('A', 9, 4, true)};
  machine.host = 64;
  machine.spare = 64;  // all of it: transfers only pass through
  machine.written = 8;  // two spans
  EXPECT_FALSE(carry().clean_ahead());
  machine.written = 7;
  EXPECT_TRUE(carry().clean_ahead());
}

TEST_F(CarryOutTest, a_decision_is_taken_as_of_when_it_was_asked_for) {
  machine.blocks = {{'A', {}}, {'B', {.size = 40, .mapped = 0}}};
  machine.at = 30;  // ten events later
  Decision decision;
  decision.next_use = {no_use, 7};
  decision.next_change = {no_use, no_use};
  decision.window = 5;
  decision.farthest = {0};
  decision.fetch = {1};
  decision.last_pages = 12;  // less than is in flight anyway: not worth its room
  const std::vector<Named<char>> names{{'A', 1, 0}, {'B', 1, 0}};
  carry().adopt(decision, names, 20);
  EXPECT_EQ(plan.window, 25u);
  ASSERT_EQ(plan.farthest.size(), 1u);
  EXPECT_EQ(plan.farthest[0].next_use, no_use);
  EXPECT_TRUE(plan.fetch.empty());
  decision.last_pages = 20;
  carry().adopt(decision, names, 20);
  ASSERT_EQ(plan.fetch.size(), 1u);
  EXPECT_EQ(plan.fetch[0].next_use, 27u);
  EXPECT_EQ(plan.fetch[0].pages, 20u);
}

TEST_F(CarryOutTest, a_part_arrives_span_by_span_and_no_more_than_is_planned) {
  machine.blocks = {{'C', {.size = 16, .mapped = 0, .copied = true}}};
  machine.ready = 16;
  plan.fetch = {candidate('C', 5, 8)};
  EXPECT_TRUE(carry().fetch_ahead());
  EXPECT_EQ(did(), "C! C+4 C+4 ");
  EXPECT_TRUE(plan.fetch.empty());
}

TEST_F(CarryOutTest, a_block_used_at_the_windows_end_belongs_to_it) {
  machine.blocks = {{'A', {.next_use = 10}}, {'B', {.next_use = 11}}};
  plan.farthest = {candidate('B', 11), candidate('A', 10)};
  EXPECT_EQ(carry().evict_farthest(8, {}, 10, false), 4u);
  EXPECT_EQ(did(), "B-4 ");
  machine.blocks['A'].copied = machine.blocks['B'].copied = true;
  machine.blocks['B'].leaves = false;
  EXPECT_EQ(carry().evict_going(8, {}, 10), 4u);
  EXPECT_EQ(did(), "B-4 ");
}

TEST_F(CarryOutTest, blocks_being_copied_out_leave_before_dirty_ones) {
  machine.blocks = {{'A', {.next_use = 90}}, {'B', {.next_use = 80, .copied = true}}};
  plan.farthest = {candidate('A', 90), candidate('B', 80)};
  EXPECT_EQ(carry().evict(4, {}), 4u);
  EXPECT_EQ(did(), "B-4 ");
}

TEST_F(CarryOutTest, little_leaves_at_a_time_and_no_more_than_is_planned) {
  machine.blocks = {{'A', {.size = 12, .mapped = 12, .clean = 4}}, {'B', {}}};
  plan.leaving = {candidate('A', 9, 4)};
  EXPECT_FALSE(carry().clean_ahead()) << "so much of it is clean";
  plan.leaving.push_back(candidate('B', 8));
  machine.out = 8;  // two spans
  EXPECT_FALSE(carry().clean_ahead());
  machine.out = 7;
  EXPECT_TRUE(carry().clean_ahead());
}

}  // namespace firn::lifetimes::testing
