// A block's way out and in again, where nothing fails.
#include "tests/allocator/movement/movement_fixture.h"

using namespace firn;
using namespace firn::test;

namespace {

using Words = std::vector<std::string>;

TEST(Movement, a_block_leaves_once_all_of_it_has_a_copy) {
  OneMovement m;
  Block& block = m.block();
  ASSERT_TRUE(m.movement.start_spill(block, true));
  EXPECT_EQ(block.state(), State::spilling);
  EXPECT_EQ(m.copies(), (Words{"dtoh", "dtoh"}));
  EXPECT_EQ(m.left, std::vector{&block});
  EXPECT_GT(m.works, 0u);
  EXPECT_TRUE(m.movement.busy());
  EXPECT_EQ(m.movement.leaving_pages(), block.pages);
  EXPECT_EQ(Movement::leaving_pages(block), block.pages);
  m.gpu.finish(m.transfers.out_stream(), 1);  // one piece of two
  m.rounds();
  EXPECT_EQ(m.came.size(), 1u);
  EXPECT_EQ(block.state(), State::spilling);
  EXPECT_EQ(block.mapped, block.pages);
  m.finish_out();
  EXPECT_TRUE(m.round());
  EXPECT_EQ(block.state(), State::hosted);
  EXPECT_EQ(block.mapped, 0u);
  EXPECT_TRUE(m.gpu.mapped.empty());
  EXPECT_EQ(m.traced, (Words{"spill", "copied_out"}));
  EXPECT_EQ(m.movement.moved().spilled_bytes, 2 * piece_bytes);
  EXPECT_EQ(m.movement.moved().clean_dropped_bytes, 0u);
  EXPECT_EQ(m.movement.host_copies().unwritten(), 2u);
  EXPECT_EQ(m.movement.leaving_pages(), 0u);
  EXPECT_FALSE(m.movement.busy());
  EXPECT_FALSE(m.round()) << "nothing is left to do";
  EXPECT_TRUE(m.troubles.empty());
  EXPECT_TRUE(m.taken_back.empty()) << "it is no segment";
}

TEST(Movement, nothing_is_unmapped_before_the_program_s_work_is_over) {
  OneMovement m;
  Block& block = m.block();
  m.use(block);
  ASSERT_TRUE(m.movement.start_spill(block, true));
  const auto waits = [&] {
    return std::count_if(m.gpu.waits.begin(), m.gpu.waits.end(), [&](const auto& wait) {
      return wait.first == m.transfers.out_stream();
    });
  };
  EXPECT_EQ(waits(), 1) << "a copy is behind the work that wrote what it copies, once for all";
  m.rounds_out();
  EXPECT_EQ(m.came.size(), 2u);
  EXPECT_EQ(block.state(), State::spilling);
  EXPECT_EQ(block.mapped, block.pages);
  m.finish_program();
  (void)m.streams.poll();
  EXPECT_TRUE(m.movement.advance());
  EXPECT_EQ(block.state(), State::hosted);
}

TEST(Movement, work_on_recorded_streams_is_waited_for_too) {
  OneMovement m;
  Block& block = m.block();
  m.gpu.give(OneMovement::program_stream);
  block.recorded_streams.push_back(static_cast<uint16_t>(
      m.streams.find(OneMovement::program_stream)));
  block.word.set(word::recorded);
  ASSERT_TRUE(m.movement.start_spill(block, true));
  m.rounds_out();
  EXPECT_EQ(block.state(), State::spilling);
  m.finish_program();
  m.rounds();
  EXPECT_EQ(block.state(), State::hosted);
}

TEST(Movement, a_part_leaves_from_the_tail_on) {
  OneMovement m;
  Block& block = m.block(3 * span_granules);
  ASSERT_TRUE(m.movement.start_spill(block, true, 1));
  EXPECT_EQ(m.copies().size(), 2u);
  EXPECT_EQ(m.movement.leaving_pages(), block.pages / 3);
  m.rounds_out();
  EXPECT_EQ(block.state(), State::hosted);
  EXPECT_TRUE(block.spans[0].mapped() && block.spans[1].mapped());
  EXPECT_FALSE(block.spans[2].mapped());
  m.send_out(block);  // the rest
  EXPECT_EQ(m.movement.moved().spilled_bytes, 6 * piece_bytes);
}

TEST(Movement, what_was_copied_ahead_leaves_without_a_copy) {
  OneMovement m;
  Block& block = m.block();
  ASSERT_TRUE(m.movement.start_spill(block, false));
  EXPECT_TRUE(m.left.empty());
  EXPECT_EQ(m.movement.leaving_pages(), 0u);
  m.rounds_out();
  EXPECT_EQ(block.state(), State::resident);
  EXPECT_EQ(block.mapped, block.pages);
  EXPECT_EQ(m.copies().size(), 2u);
  ASSERT_TRUE(m.movement.start_spill(block, true));
  m.movement.finish_spills();
  EXPECT_EQ(block.state(), State::hosted);
  EXPECT_TRUE(m.copies().empty());
  EXPECT_EQ(m.movement.moved().clean_dropped_bytes, 2 * piece_bytes);
  EXPECT_EQ(m.traced, (Words{"spill ahead", "kept", "spill", "copied_out"}));
}

TEST(Movement, what_lacks_one_copy_is_copied_once) {
  OneMovement m;
  Block& block = m.block();
  ASSERT_TRUE(m.movement.start_spill(block, false));
  m.rounds_out();
  EXPECT_EQ(m.copies().size(), 2u);
  m.movement.host_copies().drop(block.pieces[1]);
  ASSERT_TRUE(m.movement.start_spill(block, false));
  EXPECT_EQ(m.copies().size(), 1u);
  EXPECT_EQ(m.movement.moved().clean_dropped_bytes, 0u) << "nothing leaves";
}

TEST(Movement, spans_side_by_side_are_unmapped_in_one_call) {
  OneMovement m;
  Block& block = m.block(2 * span_granules);
  m.gpu.memory.clear();
  m.send_out(block);
  EXPECT_EQ(std::count_if(m.gpu.memory.begin(), m.gpu.memory.end(), [](const auto& call) {
    return call.call == "unmap";
  }), 1);
}

TEST(Movement, copies_made_ahead_give_way_unless_the_plan_wants_them) {
  for (const bool planned : {false, true})
    for (const bool full : {false, true}) {
      OneMovement m({.host_bytes = 2 * piece_bytes});
      Block& ahead = m.block(1);
      Block& other = m.block(1);
      ASSERT_TRUE(m.movement.start_spill(ahead, false));
      m.rounds_out();
      if (full) {
        m.plan = 100;  // (Else what is on the device is not written.)
        m.writes = true;
        m.store.no_slot = Code::no_space;
        m.round();
        ASSERT_TRUE(m.movement.writes().full());
      }
      m.plan = planned ? std::optional<uint64_t>(100) : std::nullopt;
      m.copies();
      ASSERT_TRUE(m.movement.start_spill(other, true));
      const bool waits = planned && !full;  // until it is written
      EXPECT_EQ(m.copies().empty(), waits);
      EXPECT_EQ(ahead.pieces[0].host_valid, waits);
    }
}

TEST(Movement, what_is_copied_ahead_may_begin_to_leave) {
  OneMovement m;
  Block& block = m.block();
  ASSERT_TRUE(m.movement.start_spill(block, false));
  EXPECT_FALSE(m.movement.start_spill(block, false)) << "it is spilling already";
  ASSERT_TRUE(m.movement.start_spill(block, true));
  EXPECT_EQ(m.copies().size(), 2u) << "not once more";
  m.rounds_out();
  EXPECT_EQ(block.state(), State::hosted);
}

TEST(Movement, a_block_that_is_touched_stays_and_keeps_its_copies) {
  OneMovement m;
  Block& block = m.block();
  ASSERT_TRUE(m.movement.start_spill(block, true));
  m.movement.keep(block);
  EXPECT_EQ(block.state(), State::resident);
  EXPECT_TRUE(m.movement.spilling().empty());
  m.rounds_out();
  EXPECT_EQ(block.mapped, block.pages);
  EXPECT_EQ(m.movement.moved().spilled_bytes, 2 * piece_bytes);
  EXPECT_TRUE(block.pieces[0].elsewhere() && block.pieces[1].elsewhere());
}

TEST(Movement, a_block_that_was_written_has_no_copies) {
  OneMovement m;
  Block& block = m.block();
  ASSERT_TRUE(m.movement.start_spill(block, false));
  m.movement.keep(block);
  m.movement.drop_copies(block);
  EXPECT_FALSE(block.word.load() & word::copies);
  m.rounds_out();
  EXPECT_TRUE(m.came.empty()) << "the copies under way are of other bytes";
  EXPECT_FALSE(block.pieces[0].elsewhere());
  EXPECT_EQ(m.host.used(), 0u);
}

TEST(Movement, what_may_not_leave_stays) {
  OneMovement m;
  Block& held = m.block();
  ASSERT_TRUE(hold_live(held));
  EXPECT_FALSE(m.movement.start_spill(held, true));
  EXPECT_EQ(held.state(), State::resident);
  held.word.drop_hold();
  m.stays = true;
  EXPECT_FALSE(m.movement.start_spill(held, true));
  EXPECT_TRUE(m.movement.start_spill(held, false)) << "it only gets copies";
  m.rounds_out();
  held.word.set(word::zero_copy);
  EXPECT_TRUE(m.movement.start_spill(held, true)) << "it is in host memory, not on the device";
  m.movement.keep(held);
  held.word.clear(word::zero_copy);
  m.stays = false;
  held.coming = 1;
  EXPECT_FALSE(m.movement.start_spill(held, true));
  held.coming = 0;
  m.health.end("a call", CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_FALSE(m.movement.start_spill(held, true));
}

TEST(Movement, a_segment_is_set_aside_first_and_taken_back) {
  OneMovement m;
  Block& whole = m.block();
  whole.segment = 1;
  m.goes_aside = false;
  EXPECT_FALSE(m.movement.start_spill(whole, true));
  EXPECT_FALSE(m.movement.start_spill(whole, false)) << "it has no copies while it is there";
  EXPECT_EQ(whole.state(), State::resident);
  EXPECT_EQ(m.asides, 1u);
  m.goes_aside = true;
  ASSERT_TRUE(m.movement.start_spill(whole, true));
  EXPECT_TRUE(m.taken_back.empty());
  m.movement.keep(whole);
  EXPECT_EQ(m.taken_back.size(), 1u);
  m.rounds_out();
  m.send_out(whole);
  EXPECT_EQ(m.taken_back.size(), 1u);
  m.bring_back(whole);
  EXPECT_EQ(m.taken_back.size(), 2u);
  whole.segment = 0;
}

TEST(Movement, a_block_comes_back_from_host_memory) {
  OneMovement m;
  Block& block = m.block();
  m.send_out(block);
  m.copies();
  m.traced.clear();
  const unsigned works = m.works;
  m.map(block);
  EXPECT_EQ(m.movement.arriving_bytes(), 0u);
  m.movement.arrive(block, false);
  EXPECT_EQ(m.copies(), (Words{"htod", "htod"}));
  EXPECT_EQ(block.state(), State::resident);
  EXPECT_TRUE(block.word.load() & word::unsettled);
  EXPECT_EQ(block.arrival.stream(), m.transfers.in());
  EXPECT_FALSE(m.streams.over(block.arrival));
  EXPECT_EQ(m.traced, (Words{"fault", "arrived"}));
  EXPECT_EQ(m.young, std::vector{&block});
  EXPECT_GT(m.works, works);
  EXPECT_EQ(m.movement.arriving_bytes(), 2 * piece_bytes);
  m.rounds_in();
  EXPECT_EQ(m.movement.arriving_bytes(), 0u);
  EXPECT_TRUE(m.streams.over(block.arrival));
  const Moved moved = m.movement.moved();
  EXPECT_EQ(moved.faults, 1u);
  EXPECT_EQ(moved.faulted_bytes, 2 * piece_bytes);
  EXPECT_EQ(moved.forwarded_bytes, 2 * piece_bytes);
  EXPECT_EQ(moved.prefetched_bytes, 0u);
  EXPECT_EQ(m.movement.host_copies().returned(), 0u) << "without a plan nobody asks for them";
  EXPECT_TRUE(m.taken_back.empty());
  EXPECT_TRUE(std::none_of(m.gpu.memory.begin(), m.gpu.memory.end(), [](const auto& call) {
    return call.reads_only;
  }));
}

TEST(Movement, copies_in_of_a_block_that_was_written_meanwhile_are_nobody_s) {
  OneMovement m;
  Block& block = m.block();
  m.send_out(block);
  m.plan = 100;
  m.bring_back(block);
  m.movement.drop_copies(block);
  m.rounds_in();
  EXPECT_EQ(m.movement.host_copies().returned(), 0u);
  EXPECT_EQ(m.host.used(), 0u);
}

TEST(Movement, a_block_that_comes_already_goes_on_to_come) {
  OneMovement m;
  Block& block = m.block(2 * span_granules);
  m.send_on(block);
  m.map(block, span_granules);
  m.movement.arrive(block, true);
  EXPECT_EQ(m.store.requests.size(), 2u);
  EXPECT_EQ(m.movement.arriving_bytes(), 2 * piece_bytes) << "the rest has nowhere to go yet";
  m.bring_back(block);
  EXPECT_EQ(m.store.requests.size(), 4u);
  EXPECT_EQ(m.movement.faulting(), std::vector{&block});
  EXPECT_EQ(m.movement.moved().faults, 1u);
  while (!m.store.requests.empty()) m.store.answer(0);
  m.round();
  EXPECT_EQ(block.state(), State::resident);
  EXPECT_EQ(m.movement.moved().faulted_bytes, 4 * piece_bytes);
}

TEST(Movement, a_part_that_was_fetched_ahead_waits_for_the_rest) {
  OneMovement m;
  Block& block = m.block(2 * span_granules);
  m.send_out(block);
  m.copies();
  m.traced.clear();
  m.plan = 100;
  m.map(block, span_granules);
  m.movement.arrive(block, true);
  EXPECT_EQ(m.copies().size(), 2u);
  EXPECT_EQ(block.state(), State::hosted);
  EXPECT_EQ(m.traced, (Words{"prefetch", "unfault"}));
  EXPECT_TRUE(m.movement.faulting().empty());
  m.gpu.give(OneMovement::program_stream);  // (It worked with what came, in host memory.)
  m.uses.add(block, m.streams.now(static_cast<unsigned>(
                        m.streams.find(OneMovement::program_stream))));
  m.bring_back(block, true);
  EXPECT_EQ(block.state(), State::resident);
  EXPECT_EQ(block.arrival.stream(), m.transfers.in());
  EXPECT_EQ(m.copies().size(), 2u);
  EXPECT_EQ(m.movement.moved().prefetched_bytes, 4 * piece_bytes);
  EXPECT_EQ(m.movement.moved().faulted_bytes, 0u);
  m.rounds_in();
  EXPECT_EQ(m.movement.host_copies().returned(), 4u);
}

TEST(Movement, a_block_comes_back_from_the_store) {
  OneMovement m;
  Block& block = m.block();
  m.send_on(block);
  EXPECT_EQ(m.host.used(), 0u);
  m.bring_back(block);
  EXPECT_EQ(block.state(), State::faulting);
  EXPECT_EQ(m.movement.faulting(), std::vector{&block});
  EXPECT_TRUE(m.movement.busy());
  EXPECT_EQ(m.movement.arriving_bytes(), 2 * piece_bytes);
  ASSERT_EQ(m.store.requests.size(), 2u);
  EXPECT_EQ(m.store.requests[0].kind, StoreCompletion::Kind::read);
  m.rounds();
  EXPECT_EQ(m.store.requests.size(), 2u) << "each is asked for once";
  m.store.answer(1, {}, Sum{1, 2});
  m.round();
  EXPECT_EQ(m.copies(), Words{"htod"});
  EXPECT_EQ(block.state(), State::faulting);
  EXPECT_EQ(m.movement.arriving_bytes(), 2 * piece_bytes);
  EXPECT_FALSE(block.pieces[1].summed);
  m.store.answer(0);
  m.round();
  EXPECT_EQ(m.copies(), Words{"htod"});
  EXPECT_EQ(block.state(), State::resident);
  const Moved moved = m.movement.moved();
  EXPECT_EQ(moved.store_read_bytes, 2 * piece_bytes);
  EXPECT_EQ(moved.faulted_bytes, 2 * piece_bytes);
  EXPECT_EQ(moved.forwarded_bytes, 0u);
  EXPECT_EQ(m.traced, (Words{"fault", "arrived"}));
}

TEST(Movement, a_piece_is_read_to_host_memory_ahead_of_its_use) {
  OneMovement m;
  Block& block = m.block(1);
  m.send_on(block);
  ASSERT_TRUE(m.movement.start_read(block, 0));
  m.store.answer(0);
  m.round();
  EXPECT_TRUE(block.pieces[0].host_valid && block.pieces[0].slot_valid);
  EXPECT_EQ(block.state(), State::spilled);
  m.bring_back(block);
  EXPECT_EQ(block.state(), State::resident);
  EXPECT_TRUE(m.store.requests.empty());
}

TEST(Movement, pieces_are_of_what_was_asked_for_in_this_life) {
  OneMovement m;
  Block& block = m.block(1);
  block.requested = piece_bytes / 2 + 1;
  ASSERT_TRUE(m.movement.start_spill(block, false));
  ASSERT_EQ(block.pieces.size(), 1u);
  EXPECT_EQ(block.pieces[0].bytes, piece_bytes / 2 + store_alignment) << "what was asked for";
  m.rounds_out();
  block.requested = piece_bytes;  // another life begins without copies
  m.movement.drop_copies(block);
  ASSERT_TRUE(m.movement.start_spill(block, false));
  ASSERT_EQ(block.pieces.size(), 1u);
  EXPECT_EQ(block.pieces[0].bytes, piece_bytes);
}

}  // namespace
