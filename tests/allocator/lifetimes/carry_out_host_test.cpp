// carry_out.h: host memory as a tier, and the store.
#include "tests/allocator/lifetimes/carry_out_machine.h"

namespace firn::lifetimes::testing {

TEST_F(CarryOutTest, host_copies_give_way_to_copies_out_and_to_reads) {
  machine.blocks = {{'A', {}}, {'B', {.mapped = 0, .pieces = {{.only_stored = true}}}}};
  machine.host = 128;
  machine.used = 100;
  machine.host_copies = 1;
  plan.leaving = {candidate('A', 9)};
  plan.reads = {candidate('B', 3)};
  EXPECT_TRUE(carry().clean_ahead());
  EXPECT_EQ(did(), "h A~4 ");
  EXPECT_FALSE(carry().read_ahead()) << "four times what is in flight stays free";
  machine.host_copies = 9;
  EXPECT_TRUE(carry().read_ahead());
  EXPECT_EQ(did(), "h h h h h h h h B<0 ");
}

TEST_F(CarryOutTest, writes_begin_at_the_tail_and_end_when_enough_is_stored) {
  machine.blocks = {{'A', {.size = 12, .pieces = {{.unwritten = true}, {.unwritten = true},
                                                  {.stored = true}}}}};
  plan.writes = {candidate('A', 9, 8)};
  const auto next = carry().next_write();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->piece, 1u);
  machine.blocks['A'].pieces[1] = {.stored = true};
  EXPECT_FALSE(carry().next_write());
  EXPECT_EQ(plan.written, 1u);
  EXPECT_TRUE(plan.write_looked);
}

TEST_F(CarryOutTest, a_spare_write_waits_for_the_others) {
  machine.blocks = {{'A', {.pieces = {{.unwritten = true}}}}};
  plan.writes = {candidate('A', 9, 4, true)};
  machine.written = 4;
  EXPECT_FALSE(carry().next_write());
  EXPECT_FALSE(plan.write_looked);
  machine.written = 0;
  EXPECT_TRUE(carry().next_write());
}

TEST_F(CarryOutTest, little_is_read_at_a_time) {
  machine.blocks = {{'B', {.mapped = 0, .pieces = {{.only_stored = true}}}}};
  plan.reads = {candidate('B', 3)};
  machine.read = 16;  // four spans
  EXPECT_FALSE(carry().read_ahead());
  machine.read = 15;
  EXPECT_TRUE(carry().read_ahead());
}

TEST_F(CarryOutTest, writes_that_were_searched_are_searched_again_when_a_copy_has_come) {
  machine.blocks = {{'A', {.pieces = {{.unwritten = true}}}}};
  plan.writes = {candidate('A', 9)};
  plan.write_looked = true;
  EXPECT_FALSE(carry().next_write());
  plan.write_looked = false;  // as whoever brings copies does
  EXPECT_TRUE(carry().next_write());
}

TEST_F(CarryOutTest, without_a_planned_write_others_follow_as_host_memory_is_used) {
  machine.blocks = {{'A', {.pieces = {{.unwritten = true}}}}, {'B', {}}, {'C', {}}};
  machine.longest = PieceOf<char>{'B', 0};
  machine.last_used = PieceOf<char>{'C', 0};
  const auto next = [&] {
    const auto found = carry().next_write();
    return found ? found->block : '-';
  };
  EXPECT_EQ(next(), '-') << "host memory keeps them";
  machine.host_wanted = true;
  EXPECT_EQ(next(), 'C');
  machine.spare = machine.host;  // transfers only pass through
  EXPECT_EQ(next(), 'B');
  machine.longest.reset();
  EXPECT_EQ(next(), 'C');
  plan.writes = {candidate('A', 9)};
  plan.write_looked = false;
  EXPECT_EQ(next(), 'A') << "planned ones come first";
}

TEST_F(CarryOutTest, where_nothing_is_copied_out_reads_leave_half_as_much_to_transfers) {
  machine.blocks = {{'A', {}}, {'B', {.mapped = 0, .pieces = {{.only_stored = true}}}}};
  machine.host = 128;
  machine.used = 128 - 2 * 16;  // twice what is in flight is free
  plan.leaving = {candidate('A', 9)};
  plan.reads = {candidate('B', 3)};
  EXPECT_FALSE(carry().read_ahead());
  plan.leaving.clear();
  EXPECT_TRUE(carry().read_ahead());
  EXPECT_EQ(did(), "B<0 ");
}

TEST_F(CarryOutTest, host_memory_with_no_room_to_keep_anything_is_not_read_into) {
  machine.blocks = {{'B', {.mapped = 0, .pieces = {{.only_stored = true}}}}};
  Decision decision;
  decision.next_use = {3};
  decision.fetch = {0};
  const std::vector<Named<char>> names{{'B', 1, 0}};
  carry().adopt(decision, names, 0);
  carry().adopt_for_memory(decision, names, 0, 0);
  EXPECT_FALSE(carry().read_ahead());
  carry().adopt_for_memory(decision, names, 0, 1);
  EXPECT_TRUE(carry().read_ahead());
  EXPECT_EQ(did(), "B<0 ");
}

TEST(HostForKeeping, is_without_what_transfers_and_copies_ahead_need) {
  constexpr uint64_t span = 32, host = 1024, in_flight = 128;
  ASSERT_EQ(in_flight_most(span, host), in_flight);
  EXPECT_EQ(host_for_keeping(span, host, 100, 1000), host - 4 * in_flight - 100 - host / 32);
  EXPECT_EQ(host_for_keeping(span, host, 100, 60), host - 4 * in_flight - 60 - host / 32);
  EXPECT_EQ(host_for_keeping(span, host, 100, 0), host - 2 * in_flight - host / 32);
  EXPECT_EQ(host_for_keeping(span, host, 600, 600), 0u);
  EXPECT_EQ(host_for_keeping(span, 0, 100, 100), 0u);
}

}  // namespace firn::lifetimes::testing
