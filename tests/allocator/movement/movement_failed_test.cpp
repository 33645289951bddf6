// A block's ways where something fails: copies and reads; where host memory is full; and where the
// block is freed meanwhile.
#include "allocator/movement/io_pause.h"
#include "tests/allocator/movement/movement_fixture.h"

using namespace firn;
using namespace firn::test;

namespace {

TEST(MovementFailed, a_block_whose_copy_is_refused_stays) {
  OneMovement m;
  Block& block = m.block();
  m.gpu.refusals["cuMemcpyDtoHAsync"] = 1;
  EXPECT_FALSE(m.movement.start_spill(block, true));
  EXPECT_EQ(block.state(), State::resident);
  EXPECT_TRUE(m.told("stays on the device because it could not be copied out"));
  EXPECT_EQ(m.young, std::vector{&block}) << "others are tried first";
  EXPECT_EQ(m.host.used(), 0u);
  m.send_out(block);
}

TEST(MovementFailed, a_block_whose_uses_cannot_be_ordered_stays) {
  OneMovement m;
  Block& block = m.block();
  m.use(block);
  m.gpu.refusals = {{"cuEventRecord", 10}, {"cuStreamSynchronize", 10}};
  EXPECT_FALSE(m.movement.start_spill(block, true));
  m.gpu.refusals.clear();
  EXPECT_EQ(block.state(), State::resident);
  EXPECT_TRUE(m.copies().empty());
  EXPECT_EQ(m.host.used(), 0u);
}

TEST(MovementFailed, eviction_stops_where_host_memory_is_full_and_there_is_no_store) {
  OneMovement m({.host_bytes = 2 * piece_bytes, .store = false});
  Block& first = m.block(1);
  Block& second = m.block(1);
  ASSERT_TRUE(m.movement.start_spill(first, true));
  EXPECT_TRUE(m.movement.start_spill(second, true)) << "a copy under way may make room";
  EXPECT_FALSE(m.movement.stuck());
  EXPECT_TRUE(m.movement.staging_wanted());
  m.rounds_out();
  EXPECT_EQ(first.state(), State::hosted);
  EXPECT_EQ(second.state(), State::resident);
  EXPECT_TRUE(m.movement.stuck());
  EXPECT_TRUE(m.told("host memory for spilled blocks is full (2MiB of firn_host) and no firn_dir "
                     "is set: eviction stops"))
      << m.troubles.back();
  m.round();
  EXPECT_FALSE(m.movement.staging_wanted()) << "nobody wants some any more";
  m.movement.room_came();
  EXPECT_FALSE(m.movement.stuck());
  EXPECT_FALSE(m.movement.start_spill(second, true));
  EXPECT_TRUE(m.movement.stuck());
  m.bring_back(first);
  m.movement.drop_copies(first);
  EXPECT_FALSE(m.movement.stuck()) << "there is room again";
  m.rounds_in();
  m.send_out(second);
}

TEST(MovementFailed, eviction_stops_where_host_memory_has_no_room_for_a_piece_at_all) {
  OneMovement m({.host_bytes = piece_bytes});  // (A quarter stays for reads.)
  EXPECT_FALSE(m.movement.start_spill(m.block(1), true));
  EXPECT_TRUE(m.movement.stuck());
}

TEST(MovementFailed, a_read_that_fails_for_a_while_is_tried_again) {
  OneMovement m;
  Block& block = m.block(1);
  m.send_on(block);
  m.clock.now += 1'000 * patience_ns;
  m.bring_back(block);
  m.store.answer(0, m.failed(Code::io));
  m.rounds();
  EXPECT_TRUE(m.store.requests.empty()) << "there is a pause";
  EXPECT_EQ(m.host.used(), 0u);
  uint64_t pause = io_pause_least_ns;
  for (uint64_t waited = 0; waited < Movement::said_after_ns; pause *= 2) {
    EXPECT_TRUE(m.troubles.empty());
    m.clock.now += std::min(pause, io_pause_most_ns);
    waited += std::min(pause, io_pause_most_ns);
    m.round();
    ASSERT_EQ(m.store.requests.size(), 1u);
    m.store.answer(0, m.failed(Code::io));
    m.round();
  }
  EXPECT_TRUE(m.told("a spilled block cannot be read back; Firn retries for 10 s"));
  m.clock.now += io_pause_most_ns;
  m.round();
  m.store.answer(0, m.failed(Code::io));
  m.round();
  EXPECT_EQ(m.troubles.size(), 1u) << "it was said once";
  m.clock.now += io_pause_most_ns;
  m.round();
  ASSERT_EQ(m.store.requests.size(), 1u);
  m.store.answer(0);
  m.round();
  EXPECT_EQ(block.state(), State::resident);
  EXPECT_EQ(block.read_refusals, 0u);
  EXPECT_EQ(m.movement.failed().lost_blocks, 0u);
  EXPECT_EQ(m.movement.moved().store_read_bytes, piece_bytes);
}

TEST(MovementFailed, a_read_that_does_not_begin_is_tried_again) {
  OneMovement m;
  Block& block = m.block(1);
  m.send_on(block);
  m.store.refuses = true;
  m.bring_back(block);
  m.store.refuses = false;
  EXPECT_EQ(m.host.used(), 0u);
  m.rounds();
  EXPECT_TRUE(m.store.requests.empty()) << "there is a pause";
  m.clock.now += io_pause_least_ns;
  m.round();
  EXPECT_EQ(m.store.requests.size(), 1u);
}

TEST(MovementFailed, a_read_ahead_that_fails_is_no_loss) {
  OneMovement m;
  Block& block = m.block(1);
  m.send_on(block);
  ASSERT_TRUE(m.movement.start_read(block, 0));
  m.store.answer(0, m.failed(Code::corrupt));
  m.round();
  EXPECT_EQ(block.state(), State::spilled);
  EXPECT_EQ(block.failing, Block::Failing::nothing);
  EXPECT_EQ(block.pieces[0].unread_ns, 0u);
  EXPECT_FALSE(m.movement.start_read(block, 0)) << "there is a pause";
  EXPECT_TRUE(m.said.empty());
}

TEST(MovementFailed, nothing_is_lost_with_a_dead_device) {
  OneMovement m;
  Block& block = m.block(1);
  m.send_on(block);
  m.bring_back(block);
  m.health.end("a call", CUDA_ERROR_ILLEGAL_ADDRESS);
  m.store.answer(0, m.failed(Code::corrupt));
  m.rounds();
  EXPECT_EQ(block.state(), State::faulting);
  EXPECT_EQ(m.movement.failed().lost_blocks, 0u);
}

TEST(MovementFailed, a_block_that_cannot_be_read_for_the_whole_patience_goes_back_and_may_come) {
  OneMovement m;
  Block& block = m.block(1);
  m.send_on(block);
  const auto fails = [&](uint64_t ns) {
    m.bring_back(block);
    for (const uint64_t until = m.clock.now + ns; block.state() == State::faulting;) {
      EXPECT_LE(m.clock.now, until + io_pause_most_ns);
      if (!m.store.requests.empty()) m.store.answer(0, m.failed(Code::io));
      m.clock.now += 500'000'000;
      m.rounds();
    }
  };
  fails(patience_ns);
  EXPECT_EQ(block.state(), State::spilled);
  EXPECT_EQ(block.mapped, 0u);
  EXPECT_EQ(block.read_refusals, 1u);
  EXPECT_TRUE(block.unreadable);
  EXPECT_EQ(m.movement.failed().lost_blocks, 1u);
  EXPECT_TRUE(m.said_once("cannot be read and counts as LOST until a read succeeds"));
  EXPECT_EQ(m.traced, (std::vector<std::string>{"fault", "unfault", "written"}));
  m.clock.now += io_pause_most_ns;
  fails(Movement::said_after_ns);  // it was given up once
  EXPECT_EQ(block.read_refusals, 2u);
  EXPECT_EQ(m.movement.failed().lost_blocks, 1u);
  m.clock.now += io_pause_most_ns;
  m.bring_back(block);
  ASSERT_EQ(m.store.requests.size(), 1u);
  m.store.answer(0);
  m.round();
  EXPECT_EQ(block.state(), State::resident);
  EXPECT_FALSE(block.unreadable);
  EXPECT_EQ(m.movement.failed().lost_blocks, 0u);
  EXPECT_TRUE(m.said_once("was read at last"));
}

TEST(MovementFailed, an_unreadable_block_that_is_lost_in_the_end_is_counted_once) {
  OneMovement m;
  Block& block = m.block(1);
  m.send_on(block);
  m.bring_back(block);
  while (block.state() == State::faulting) {
    if (!m.store.requests.empty()) m.store.answer(0, m.failed(Code::io));
    m.clock.now += 500'000'000;
    m.rounds();
  }
  EXPECT_EQ(m.movement.failed().lost_blocks, 1u);
  m.clock.now += io_pause_most_ns;
  m.bring_back(block);
  const unsigned works = m.works;
  m.store.answer(0, m.failed(Code::lost));
  m.round();
  EXPECT_EQ(block.state(), State::lost);
  EXPECT_EQ(m.movement.failed().lost_blocks, 1u);
  EXPECT_FALSE(block.unreadable);
  EXPECT_GT(m.works, works) << "its memory is to be unmapped";
}

TEST(MovementFailed, a_block_with_a_wrong_piece_is_lost_once_its_copies_are_over) {
  for (const Code code : {Code::corrupt, Code::lost}) {
    OneMovement m;
    Block& block = m.block();
    m.send_on(block);
    m.bring_back(block);
    ASSERT_EQ(m.store.requests.size(), 2u);
    m.store.answer(0);
    m.round();
    m.store.answer(0, m.failed(code));
    m.rounds();
    EXPECT_EQ(block.state(), State::faulting) << "a copy goes to its memory";
    EXPECT_EQ(block.mapped, block.pages);
    m.rounds_in();
    EXPECT_EQ(block.state(), State::lost);
    EXPECT_EQ(block.mapped, 0u);
    EXPECT_TRUE(m.movement.faulting().empty());
    EXPECT_EQ(m.movement.failed().lost_blocks, 1u);
    EXPECT_EQ(m.lost_blocks, std::vector{&block});
    EXPECT_TRUE(m.said_once("is LOST"));
    EXPECT_EQ(m.store.discarded.size(), 2u);
    EXPECT_EQ(m.host.used(), 0u);
  }
}

TEST(MovementFailed, a_read_goes_beyond_host_memory_where_nothing_will_make_room_in_it) {
  OneMovement m({.host_bytes = 2 * piece_bytes});
  Block& away = m.block(1);
  m.send_on(away);
  Block& stays = m.block(1);
  m.send_out(stays);
  Staging* full = m.host.acquire(piece_bytes);
  ASSERT_TRUE(full);
  m.bring_back(away);
  EXPECT_TRUE(m.store.requests.empty()) << "a write may make room";
  EXPECT_TRUE(m.movement.staging_wanted());
  m.writes = true;
  m.store.no_slot = Code::no_space;
  m.rounds();
  EXPECT_EQ(m.store.requests.size(), 1u);
  EXPECT_EQ(m.host.used(), 3 * piece_bytes);
  m.store.answer(0);
  m.round();
  EXPECT_EQ(away.state(), State::resident);
  m.host.unref(full);
}

TEST(MovementFailed, a_refused_copy_in_returns_the_block_and_the_next_use_tries_again) {
  OneMovement m;
  Block& block = m.block();
  m.send_out(block);
  m.gpu.passes["cuMemcpyHtoDAsync"] = 1;
  m.gpu.refusals["cuMemcpyHtoDAsync"] = 1;
  m.bring_back(block);
  EXPECT_EQ(block.state(), State::faulting) << "one copy is under way";
  m.rounds_in();
  EXPECT_EQ(block.state(), State::hosted);
  EXPECT_EQ(block.fault_failures, 1u);
  EXPECT_TRUE(m.told("the driver refused a copy to the device; Firn tries again"));
  EXPECT_TRUE(block.pieces[0].host_valid && block.pieces[1].host_valid);
  m.bring_back(block);
  EXPECT_EQ(block.state(), State::resident);
}

TEST(MovementFailed, spans_that_have_come_whole_stay_where_others_fail) {
  OneMovement m;
  Block& block = m.block(3 * span_granules);
  m.send_out(block);
  m.gpu.passes["cuMemcpyHtoDAsync"] = 3;
  m.gpu.refusals["cuMemcpyHtoDAsync"] = 1;
  m.map(block, 2 * span_granules);
  m.movement.arrive(block, false);
  m.rounds_in();
  EXPECT_EQ(block.state(), State::hosted);
  EXPECT_TRUE(block.spans[0].mapped());
  EXPECT_FALSE(block.spans[1].mapped() || block.spans[2].mapped());
}

TEST(MovementFailed, what_is_under_way_for_a_freed_block_ends_for_nobody) {
  OneMovement m;
  Block& out = m.block(1);
  Block& in = m.block(1);
  Block& on = m.block(1);
  m.send_on(in);
  m.send_out(on);
  m.writes = true;
  m.round();
  ASSERT_TRUE(m.movement.start_spill(out, true));
  m.bring_back(in);
  ASSERT_EQ(m.store.requests.size(), 2u);
  const size_t came = m.came.size();
  for (Block* block : {&out, &in, &on}) {
    m.movement.drop_copies(*block);
    if (block->state() == State::spilling) m.movement.keep(*block);
    ++block->generation;
    m.movement.forget(*block);
  }
  EXPECT_TRUE(m.movement.faulting().empty());
  m.store.answer(0);
  m.store.answer(0);
  m.rounds_out();
  EXPECT_EQ(m.came.size(), came);
  EXPECT_EQ(m.host.used(), 0u);
  for (Block* block : {&out, &in, &on}) EXPECT_FALSE(block->pieces[0].elsewhere());
  EXPECT_EQ(m.copies(), (std::vector<std::string>{"dtoh", "dtoh"})) << "and none in";
}

TEST(MovementFailed, a_request_without_an_answer_is_said) {
  OneMovement m;
  Block& block = m.block(1);
  m.send_on(block);
  m.bring_back(block);
  m.clock.now += Movement::unanswered_ns;
  m.round();
  EXPECT_TRUE(m.troubles.empty());
  m.clock.now += 1'000'000'000;
  m.round();
  EXPECT_TRUE(m.told("a read of a spill file has had no answer for 30 s"));
  m.store.answer(0);
  m.round();
  Block& other = m.block(1);
  m.send_out(other);
  m.writes = true;
  m.round();
  m.clock.now += Movement::unanswered_ns + 1'000'000'000;
  m.round();
  EXPECT_TRUE(m.told("a write of a spill file has had no answer for 30 s"));
}

}  // namespace
