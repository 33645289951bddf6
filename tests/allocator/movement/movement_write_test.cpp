// Pieces on their way to the store: which are written, and what follows where that fails.
#include "allocator/movement/io_pause.h"
#include "tests/allocator/movement/movement_fixture.h"

using namespace firn;
using namespace firn::test;

namespace {

TEST(MovementWrite, a_piece_is_written_and_keeps_its_copy_until_others_need_the_room) {
  OneMovement m({.host_bytes = 4 * piece_bytes});
  Block& block = m.block(1);
  Block& other = m.block(3);
  m.send_out(block);
  m.round();
  EXPECT_TRUE(m.store.requests.empty()) << "nobody has asked for it";
  m.writes = true;
  EXPECT_TRUE(m.round());
  ASSERT_EQ(m.store.requests.size(), 1u);
  EXPECT_EQ(m.store.requests[0].kind, StoreCompletion::Kind::write);
  EXPECT_EQ(m.store.requests[0].length, piece_bytes);
  EXPECT_TRUE(block.pieces[0].writing);
  m.store.answer(0);
  EXPECT_TRUE(m.round());
  EXPECT_EQ(block.state(), State::spilled);
  EXPECT_EQ(m.movement.moved().store_written_bytes, piece_bytes);
  EXPECT_TRUE(block.pieces[0].host_valid && block.pieces[0].slot_valid);
  m.writes = false;
  ASSERT_TRUE(m.movement.start_spill(other, true));
  EXPECT_FALSE(block.pieces[0].host) << "it has given way";
  EXPECT_TRUE(block.pieces[0].slot_valid);
}

TEST(MovementWrite, as_much_is_written_at_a_time_as_keeps_the_store_busy) {
  OneMovement m({.host_bytes = 8 * piece_bytes});
  Block& block = m.block(4);
  m.send_out(block);
  m.writes = true;
  m.round();
  EXPECT_EQ(m.store.requests.size(), 2u) << "a quarter of host memory";
  m.store.answer(0);
  m.round();
  EXPECT_EQ(m.store.requests.size(), 2u);
  m.plan = 100;
  m.store.answer(0);
  m.round();
  EXPECT_EQ(m.store.requests.size(), 1u) << "with a plan, an eighth";
}

TEST(MovementWrite, what_came_back_is_not_written_without_a_plan) {
  OneMovement m;
  Block& ahead = m.block(1);
  ASSERT_TRUE(m.movement.start_spill(ahead, false));
  m.rounds_out();
  m.writes = true;
  m.round();
  EXPECT_EQ(m.store.requests.size(), 1u) << "it is to leave soon";
  m.store.answer(0);
  m.round();
  m.writes = false;
  m.movement.drop_copies(ahead);
  Block& block = m.block();
  m.send_out(block);
  m.bring_back(block);
  m.rounds_in();
  m.writes = true;
  m.round();
  EXPECT_TRUE(m.store.requests.empty());
  EXPECT_EQ(m.host.used(), 0u);
  m.writes = false;
  m.send_out(block);
  m.plan = 100;
  m.bring_back(block);
  m.rounds_in();
  m.writes = true;
  m.round();
  EXPECT_EQ(m.store.requests.size(), 2u) << "the plan wants it";
}

TEST(MovementWrite, what_is_being_copied_in_is_written_for_its_copy_is_in_use) {
  OneMovement m;
  Block& block = m.block();
  m.send_out(block);
  m.bring_back(block);
  m.writes = true;
  m.round();
  EXPECT_EQ(m.store.requests.size(), 2u);
  EXPECT_TRUE(block.pieces[0].host_valid && block.pieces[1].host_valid);
}

TEST(MovementWrite, copies_that_others_name_are_in_no_list_and_go_once_they_are_written) {
  OneMovement m;
  Block& block = m.block(1);
  m.names_writes = m.goes_on = true;
  m.send_out(block);
  EXPECT_EQ(m.movement.host_copies().unwritten(), 0u);
  m.movement.host_copies().arrived(m.came[0]);
  m.writes = true;
  m.round();
  m.store.answer(0);
  m.round();
  EXPECT_EQ(block.state(), State::spilled);
  EXPECT_FALSE(block.pieces[0].host);
  EXPECT_EQ(m.host.used(), 0u);
}

TEST(MovementWrite, a_block_waits_for_room_in_host_memory_that_writes_make) {
  OneMovement m({.host_bytes = 2 * piece_bytes});
  Block& first = m.block(1);
  Block& second = m.block(1);
  m.send_out(first);
  ASSERT_TRUE(m.movement.start_spill(second, true));
  EXPECT_EQ(m.copies(), std::vector<std::string>{"dtoh"}) << "of the first";
  m.writes = true;
  m.round();
  ASSERT_EQ(m.store.requests.size(), 1u);
  EXPECT_EQ(second.state(), State::spilling);
  m.store.answer(0);
  m.rounds_out();
  EXPECT_EQ(first.state(), State::spilled);
  EXPECT_FALSE(first.pieces[0].host);
  EXPECT_EQ(second.state(), State::hosted);
  EXPECT_FALSE(m.movement.stuck());
}

TEST(MovementWrite, a_write_that_failed_is_written_again_after_a_pause) {
  OneMovement m;
  Block& block = m.block(1);
  m.send_out(block);
  m.writes = true;
  m.round();
  m.store.answer(0, m.failed(Code::io));
  m.round();
  EXPECT_TRUE(m.told("a write to a spill file failed; the bytes stay in host memory"));
  EXPECT_EQ(m.store.discarded.size(), 1u);
  EXPECT_FALSE(block.pieces[0].slot || block.pieces[0].writing);
  EXPECT_TRUE(block.pieces[0].host_valid);
  EXPECT_EQ(m.movement.moved().store_written_bytes, 0u);
  EXPECT_TRUE(m.store.requests.empty());
  EXPECT_TRUE(m.movement.writes().pauses(m.clock.now));
  m.clock.now += io_pause_least_ns;
  m.store.refuses = true;
  m.round();
  EXPECT_EQ(m.store.discarded.size(), 2u);
  m.store.refuses = false;
  m.clock.now += 2 * io_pause_least_ns;
  m.round();
  ASSERT_EQ(m.store.requests.size(), 1u);
  m.store.answer(0);
  m.round();
  EXPECT_EQ(block.state(), State::spilled);
  EXPECT_EQ(m.store.discarded.size(), 2u);
  EXPECT_EQ(m.troubles.size(), 1u);
}

TEST(MovementWrite, a_store_that_grows_is_asked_again_at_once_and_a_full_one_later) {
  OneMovement m;
  Block& block = m.block(1);
  m.send_out(block);
  m.writes = true;
  m.store.no_slot = Code::busy;
  m.round();
  EXPECT_TRUE(m.movement.writes().grows());
  EXPECT_TRUE(m.movement.busy());
  EXPECT_TRUE(m.troubles.empty());
  m.store.no_slot = Code::no_space;
  m.round();
  EXPECT_FALSE(m.movement.writes().grows());
  EXPECT_TRUE(m.movement.writes().full());
  EXPECT_TRUE(m.told("spilled blocks stay in host memory"));
  m.store.no_slot = Code::ok;
  m.round();
  EXPECT_TRUE(m.store.requests.empty());
  m.clock.now += WriteBack::full_pause_ns;
  m.round();
  EXPECT_EQ(m.store.requests.size(), 1u);
}

TEST(MovementWrite, writes_that_others_named_stay_in_host_memory_of_a_full_store) {
  OneMovement m;
  Block& block = m.block(1);
  m.names_writes = true;
  m.send_out(block);
  m.given_up = m.came;
  m.round();
  EXPECT_EQ(m.movement.host_copies().unwritten(), 0u) << "the store is not full";
  Block& other = m.block(1);
  m.names_writes = false;
  m.send_out(other);
  m.writes = true;
  m.store.no_slot = Code::no_space;
  m.round();
  m.round();
  EXPECT_EQ(m.movement.host_copies().unwritten(), 2u);
}

TEST(MovementWrite, a_full_store_that_is_asked_again_ends_being_stuck) {
  OneMovement m({.host_bytes = 2 * piece_bytes});
  Block& first = m.block(1);
  Block& second = m.block(1);
  m.send_out(first);
  m.writes = true;
  m.store.no_slot = Code::no_space;
  m.round();
  EXPECT_FALSE(m.movement.start_spill(second, true));
  EXPECT_TRUE(m.movement.stuck());
  EXPECT_TRUE(m.told("the spill files take no more"));
  m.round();
  EXPECT_TRUE(m.movement.stuck());
  m.clock.now += WriteBack::full_pause_ns;
  m.round();
  EXPECT_FALSE(m.movement.stuck());
}

}  // namespace
