// Sums of copies in host memory and of what comes to the device; the net under uses that nobody
// reported.
#include "tests/allocator/movement/movement_fixture.h"

using namespace firn;
using namespace firn::test;

namespace {

TEST(MovementSums, a_sum_is_taken_of_each_copy_before_it_counts_and_compared_as_it_leaves) {
  OneMovement m({.sums = true, .host_has_bytes = true});
  Block& block = m.block(1);
  ASSERT_TRUE(m.movement.start_spill(block, true));
  m.finish_out();
  (void)m.streams.poll();
  EXPECT_TRUE(m.movement.reap_copies());
  EXPECT_TRUE(m.came.empty());
  EXPECT_TRUE(m.movement.busy());
  m.rounds();
  EXPECT_EQ(block.state(), State::hosted);
  EXPECT_TRUE(block.pieces[0].summed);
  EXPECT_EQ(m.movement.moved().summed_bytes, piece_bytes);
  m.copies();
  m.bring_back(block);
  EXPECT_TRUE(m.copies().empty()) << "it is compared first";
  m.rounds();
  EXPECT_EQ(m.copies(), std::vector<std::string>{"htod"});
  EXPECT_EQ(block.state(), State::resident);
  EXPECT_EQ(m.movement.moved().summed_bytes, 2 * piece_bytes);
}

TEST(MovementSums, a_copy_that_has_changed_in_host_memory_is_a_loss_where_it_is_the_only_one) {
  OneMovement m({.sums = true, .host_has_bytes = true});
  Block& block = m.block(1);
  m.send_out(block);
  block.pieces[0].host->data[17] = std::byte{1};
  m.copies();
  m.bring_back(block);
  m.rounds();
  EXPECT_EQ(block.state(), State::lost);
  EXPECT_TRUE(m.copies().empty());
  EXPECT_EQ(m.movement.failed().host_corrupt, 1u);
  EXPECT_EQ(m.movement.failed().lost_blocks, 1u);
  ASSERT_EQ(m.said.size(), 2u);
  EXPECT_EQ(m.said[0].find("host memory has changed within 2097152 bytes at offset 0"), 0u);
  EXPECT_TRUE(m.said_once("is LOST"));
}

TEST(MovementSums, a_copy_that_has_changed_in_host_memory_is_read_where_the_store_has_it) {
  OneMovement m({.sums = true, .host_has_bytes = true});
  Block& block = m.block(1);
  m.send_on(block, false);
  block.pieces[0].host->data[17] = std::byte{1};
  m.bring_back(block);
  m.rounds();
  EXPECT_TRUE(m.copies().empty());
  ASSERT_EQ(m.store.requests.size(), 1u);
  EXPECT_EQ(m.movement.failed().host_corrupt, 1u);
  m.store.answer(0);
  m.rounds();
  EXPECT_EQ(block.state(), State::resident);
  EXPECT_EQ(m.movement.failed().lost_blocks, 0u);
}

TEST(MovementSums, a_copy_that_changes_while_it_is_written_is_judged_behind_the_write) {
  OneMovement m({.sums = true, .host_has_bytes = true});
  Block& block = m.block(1);
  m.send_out(block);
  m.writes = true;
  m.round();
  ASSERT_EQ(m.store.requests.size(), 1u);
  block.pieces[0].host->data[17] = std::byte{1};
  m.bring_back(block);
  m.rounds();
  EXPECT_EQ(block.state(), State::faulting);
  EXPECT_EQ(m.movement.failed().host_corrupt, 0u) << "the store may have it as it was";
  EXPECT_EQ(m.movement.moved().summed_bytes, 2 * piece_bytes) << "compared once";
  m.store.answer(0, {}, block.pieces[0].sum);
  m.rounds();
  EXPECT_EQ(m.movement.failed().host_corrupt, 1u);
  ASSERT_EQ(m.store.requests.size(), 1u);
  EXPECT_EQ(m.store.requests[0].kind, StoreCompletion::Kind::read);
  m.store.answer(0);
  m.rounds();
  EXPECT_EQ(block.state(), State::resident);
}

TEST(MovementSums, a_write_of_other_bytes_than_arrived_is_no_copy) {
  OneMovement m({.sums = true, .host_has_bytes = true});
  Block& block = m.block(1);
  ASSERT_TRUE(m.movement.start_spill(block, false));
  m.rounds_out();
  ASSERT_EQ(block.state(), State::resident);
  m.writes = true;
  m.plan = 100;  // (Else what is on the device is not written.)
  m.round();
  ASSERT_EQ(m.store.requests.size(), 1u);
  m.store.answer(0, {}, Sum{1, 2});
  m.round();
  EXPECT_EQ(m.movement.failed().host_corrupt, 1u);
  EXPECT_EQ(m.store.discarded.size(), 1u);
  EXPECT_FALSE(block.pieces[0].elsewhere()) << "it is copied from the device again";
  m.writes = false;
  ASSERT_TRUE(m.movement.start_spill(block, false));
  m.rounds_out();
  m.writes = true;
  m.round();
  ASSERT_EQ(m.store.requests.size(), 1u);
  m.store.answer(0, {}, block.pieces[0].sum);
  m.round();
  EXPECT_TRUE(block.pieces[0].slot_valid);
}

TEST(MovementSums, a_copy_that_is_the_only_one_stays_whatever_was_written) {
  OneMovement m({.sums = true, .host_has_bytes = true});
  Block& block = m.block(1);
  m.send_out(block);
  m.writes = true;
  m.round();
  m.store.answer(0, {}, Sum{1, 2});
  m.round();
  m.writes = false;
  EXPECT_EQ(m.movement.failed().host_corrupt, 1u);
  EXPECT_TRUE(block.pieces[0].host_valid);
  EXPECT_FALSE(block.pieces[0].slot);
  EXPECT_EQ(block.state(), State::hosted);
  m.bring_back(block);
  m.rounds();
  EXPECT_EQ(block.state(), State::resident) << "it is as it came";
}

TEST(MovementSums, a_write_that_nobody_saw_is_found_as_the_block_leaves) {
  OneMovement m({.verify = true, .host_has_bytes = true});
  Block& block = m.block(1);
  ASSERT_TRUE(m.movement.start_spill(block, false));
  m.rounds_out();
  block.pieces[0].host->data[17] = std::byte{1};  // (The device's bytes are zeroes here.)
  ASSERT_TRUE(m.movement.start_spill(block, true));
  m.round();
  EXPECT_EQ(m.movement.failed().unseen_writes, 1u);
  EXPECT_TRUE(m.said_once("was written UNSEEN while Firn kept a copy of it"));
  EXPECT_TRUE(m.said_once("from offset 17 on, 1 bytes of the 2097152"));
  EXPECT_TRUE(m.said_once("(its events)"));
  EXPECT_EQ(block.state(), State::spilling);
  EXPECT_EQ(block.mapped, block.pages);
  m.round();
  ASSERT_TRUE(block.pieces[0].copying_out) << "it is copied again";
  block.pieces[0].host->data[17] = std::byte{0};
  m.rounds_out();
  EXPECT_EQ(block.state(), State::hosted);
  EXPECT_EQ(m.movement.failed().unseen_writes, 1u);
  EXPECT_GE(m.movement.moved().verified_bytes, 2 * piece_bytes);
}

TEST(MovementSums, bytes_that_came_wrong_to_the_device_come_again) {
  OneMovement m({.sums = true, .verify = true, .host_has_bytes = true});
  Block& block = m.block(1);
  m.send_out(block);
  Piece& piece = block.pieces[0];
  piece.host->data[17] = std::byte{1};  // (The device's bytes are zeroes here.)
  piece.sum = sum_of(piece.host->data, piece.bytes);
  m.bring_back(block);
  m.rounds();
  EXPECT_EQ(block.state(), State::faulting) << "the copy is not over";
  EXPECT_EQ(m.movement.failed().device_corrupt, 0u);
  m.rounds_in();
  EXPECT_EQ(block.state(), State::hosted);
  EXPECT_EQ(block.fault_failures, 1u);
  EXPECT_EQ(m.movement.failed().device_corrupt, 1u);
  EXPECT_EQ(m.movement.failed().host_corrupt, 0u);
  EXPECT_TRUE(m.said_once("arrived corrupted on the device"));
  piece.host->data[17] = std::byte{0};
  piece.sum = sum_of(piece.host->data, piece.bytes);
  m.bring_back(block);
  m.rounds_in();
  EXPECT_EQ(block.state(), State::resident);
}

TEST(MovementSums, what_cannot_be_compared_on_the_device_is_said_and_taken) {
  OneMovement m({.sums = true, .verify = true, .host_has_bytes = true});
  Block& block = m.block(1);
  m.send_out(block);
  m.bring_back(block);
  m.rounds();
  m.gpu.refusals["cuMemcpyDtoHAsync"] = 1;
  m.rounds_in();
  EXPECT_EQ(block.state(), State::resident);
  EXPECT_TRUE(m.told("firn_verify could not check a block"));
  ASSERT_TRUE(m.movement.start_spill(block, true));
  m.gpu.refusals["cuMemcpyDtoHAsync"] = 1;
  m.rounds();
  EXPECT_EQ(block.state(), State::hosted) << "its copy was compared as it came";
}

TEST(MovementSums, what_has_a_copy_is_open_for_reading_only_until_it_is_written) {
  OneMovement m({.guard = true});
  Block& block = m.block();
  EXPECT_FALSE(m.movement.closed(block));
  ASSERT_TRUE(m.movement.start_spill(block, false));
  m.gpu.memory.clear();
  m.rounds_out();
  ASSERT_EQ(m.gpu.memory.size(), 1u);
  EXPECT_TRUE(m.gpu.memory[0].reads_only);
  EXPECT_TRUE(m.movement.closed(block));
  m.gpu.refusals["cuMemSetAccess"] = 2;
  EXPECT_TRUE(m.movement.open_guarded(block)) << "the use cannot go on without it";
  ASSERT_EQ(m.gpu.memory.size(), 2u);
  EXPECT_FALSE(m.gpu.memory[1].reads_only);
  EXPECT_FALSE(m.movement.closed(block));
}

TEST(MovementSums, what_came_back_is_closed_once_its_copies_are_over) {
  OneMovement m({.guard = true});
  Block& block = m.block();
  m.send_out(block);
  m.bring_back(block);
  m.rounds();
  EXPECT_FALSE(m.movement.closed(block)) << "a copy writes there";
  m.rounds_in();
  EXPECT_TRUE(m.movement.closed(block));
  m.movement.drop_copies(block);
  EXPECT_FALSE(m.movement.closed(block));
}

TEST(MovementSums, what_arrives_is_poisoned_before) {
  OneMovement m({.poison = true});
  Block& block = m.block();
  m.send_out(block);
  m.copies();
  m.bring_back(block);
  EXPECT_EQ(m.copies(), (std::vector<std::string>{"memset", "memset", "htod", "htod"}));
}

}  // namespace
