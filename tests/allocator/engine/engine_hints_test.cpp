// Hints act at their places in streams: behind the work that was queued before them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/allocator/capture.h"
#include "tests/allocator/engine/hints.h"

using namespace firn;
using namespace firn::test;

TEST_F(Hints, a_prefetch_without_room_waits_for_what_was_queued_before_it) {
  begin();
  queue(50);
  use(b_);
  use(c_);
  ASSERT_TRUE(engine().prefetch(d_, block_bytes, stream_));
  pump_for(20 * ms);
  EXPECT_FALSE(there(d_)) << "it came before its place";
  EXPECT_TRUE(there(a_)) << "and pushed out what may be used sooner";
  const uint64_t faults = engine().stats().faults;
  use(a_);  // in the stream this is behind the hint, in the program it is sooner
  EXPECT_EQ(engine().stats().faults, faults);
  settle();
  EXPECT_GE(sim_->clock().now_ns(), queued_until_);
  EXPECT_TRUE(there(d_));
  EXPECT_FALSE(there(b_)) << "the longest unused one when it was due";
  read(d_, 1);
  engine().check();
}

TEST_F(Hints, with_room_a_prefetch_begins_at_once) {
  begin();
  ASSERT_TRUE(engine().free(a_));
  settle();
  engine().trim();
  queue(50);
  use(b_);
  use(c_);
  ASSERT_TRUE(engine().prefetch(d_, block_bytes, stream_));
  pump_for(20 * ms);
  EXPECT_TRUE(there(d_));
  EXPECT_TRUE(there(b_) && there(c_));
  settle();
  read(d_, 1);
}

/// It came early and left again: at its place it is fetched once more.
TEST_F(Hints, what_came_early_and_left_comes_again_at_its_place) {
  begin();
  ASSERT_TRUE(engine().free(a_));
  settle();
  engine().trim();
  queue(50);
  ASSERT_TRUE(engine().prefetch(d_, block_bytes, stream_));
  pump_for(10 * ms);
  ASSERT_TRUE(there(d_));
  ASSERT_TRUE(engine().cold(d_, block_bytes));
  pump_for(10 * ms);
  ASSERT_FALSE(there(d_));
  void* other = make(5);  // takes the room
  ASSERT_TRUE(there(other));
  pump_for(10 * ms);
  EXPECT_FALSE(there(d_));
  settle();
  EXPECT_TRUE(there(d_));
}

TEST_F(Hints, what_queued_work_uses_leaves_for_a_prefetch_once_that_work_is_over) {
  begin();
  queue(30);
  for (void* block : {a_, b_, c_}) use(block);
  ASSERT_TRUE(engine().prefetch(d_, block_bytes, stream_));
  queue(30);
  pump_for(25 * ms);
  for (void* block : {a_, b_, c_}) EXPECT_TRUE(there(block));
  pump_for(25 * ms);
  EXPECT_TRUE(there(d_)) << "the work behind it is not waited for";
  EXPECT_FALSE(there(a_));
  settle();
  read(d_, 1);
  read(a_, 2);
}

TEST_F(Hints, where_nothing_is_queued_it_acts_at_the_call) {
  begin();
  sim_->synchronize();
  ASSERT_TRUE(engine().prefetch(d_, block_bytes, stream_));
  EXPECT_FALSE(there(a_)) << "it is on its way out";
  settle();
  EXPECT_TRUE(there(d_));
}

TEST_F(Hints, a_resident_block_is_young_from_its_place_on) {
  begin();
  queue(30);
  ASSERT_TRUE(engine().prefetch(a_, block_bytes, stream_));
  settle();
  const uint64_t away = sim_->clock().now_ns();
  EXPECT_GE(away, queued_until_);
  use(d_);  // comes back: the longest unused one leaves
  settle();
  EXPECT_TRUE(there(a_));
  EXPECT_FALSE(there(b_));
}

TEST_F(Hints, streams_do_not_wait_for_each_other) {
  begin();
  const CUstream other = sim_->make_stream(0);
  queue(100, other);
  ASSERT_TRUE(engine().cold(c_, block_bytes, other));
  queue(20);
  ASSERT_TRUE(engine().prefetch(d_, block_bytes, stream_));
  pump_for(40 * ms);
  EXPECT_TRUE(there(d_));
  EXPECT_TRUE(there(c_));
  settle();
  EXPECT_FALSE(there(c_));
}

TEST_F(Hints, cold_acts_at_its_place) {
  begin();
  queue(30);
  ASSERT_TRUE(engine().cold(c_, block_bytes, stream_));
  pump_for(20 * ms);
  EXPECT_TRUE(there(c_));
  settle();
  EXPECT_FALSE(there(c_));
  EXPECT_TRUE(there(a_));
  read(c_, 4);
}

TEST_F(Hints, cold_is_void_once_the_block_is_used_behind_it) {
  begin();
  queue(30);
  ASSERT_TRUE(engine().cold(c_, block_bytes, stream_));
  use(c_);
  settle();
  EXPECT_TRUE(there(c_));
}

TEST_F(Hints, the_last_hint_of_a_stream_counts) {
  begin();
  queue(30);
  ASSERT_TRUE(engine().cold(b_, block_bytes, stream_));
  ASSERT_TRUE(engine().prefetch(b_, block_bytes, stream_));
  ASSERT_TRUE(engine().prefetch(c_, block_bytes, stream_));
  ASSERT_TRUE(engine().cold(c_, block_bytes, stream_));
  settle();
  EXPECT_TRUE(there(b_));
  EXPECT_FALSE(there(c_));
  // The same of a prefetch that is due, and lacks room.
  for (void* block : {a_, b_}) ASSERT_TRUE(engine().pin(block, "a test"));
  use(c_);
  ASSERT_TRUE(engine().pin(c_, "a test"));
  queue(10);
  ASSERT_TRUE(engine().prefetch(d_, block_bytes, stream_));
  pump_for(20 * ms);
  EXPECT_TRUE(engine().busy());
  queue(10);
  ASSERT_TRUE(engine().cold(d_, block_bytes, stream_));
  pump_for(20 * ms);
  EXPECT_FALSE(engine().busy()) << "it still wants room";
  ASSERT_TRUE(engine().unpin(a_));
  settle();
  EXPECT_FALSE(there(d_));
}

// (The first waited for its place, which the program has seen pass: no pump came in between.)
TEST_F(Hints, they_act_in_their_order_where_the_stream_has_just_ended) {
  begin();
  queue(30);
  ASSERT_TRUE(engine().cold(a_, block_bytes, stream_));
  sim_->synchronize();
  ASSERT_TRUE(engine().prefetch(a_, block_bytes, stream_));
  settle();
  EXPECT_TRUE(there(a_)) << "it is used soon";
}

TEST_F(Hints, a_freed_block_takes_its_hints_along) {
  begin();
  queue(30);
  ASSERT_TRUE(engine().prefetch(d_, block_bytes, stream_));
  ASSERT_TRUE(engine().cold(c_, block_bytes, stream_));
  ASSERT_TRUE(engine().free(d_));
  ASSERT_TRUE(engine().free(c_));
  void* next = make(6);  // in one of their descriptors
  ASSERT_EQ(next, c_);
  settle();
  EXPECT_TRUE(there(next));
  EXPECT_TRUE(there(a_) && there(b_));
  EXPECT_EQ(engine().stats().prefetched_bytes, 0u);
  engine().check();
}

TEST_F(Hints, each_live_block_in_a_range_is_meant) {
  begin();
  ASSERT_TRUE(engine().free(b_));
  settle();
  const Engine::Addresses arena = engine().addresses();
  const auto all = [&](uint64_t base, uint64_t bytes) {
    return engine().cold(reinterpret_cast<void*>(base), bytes);
  };
  // From memory of others through all of the arena, and to the end of all addresses.
  for (const uint64_t bytes : {arena.bytes + 4096, UINT64_MAX}) {
    use(a_);
    use(c_);
    ASSERT_TRUE(all(arena.base - 4096, bytes));
    settle();
    EXPECT_FALSE(there(a_) || there(c_));
  }
  const auto refused = [&](const Result<void>& result, uint64_t address) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Code::invalid_argument);
    EXPECT_NE(result.error().text.find(fmt::format("{:#x}", address)), std::string::npos)
        << result.error().text;
  };
  refused(all(arena.base - 4096, 4096), arena.base - 4096);
  refused(all(arena.base + arena.bytes, 4096), arena.base + arena.bytes);
  refused(engine().prefetch(b_, block_bytes, stream_), reinterpret_cast<uint64_t>(b_));
  // One of several: the others are hinted.
  const auto range = [](void* block) {
    return Engine::Addresses{reinterpret_cast<uint64_t>(block), block_bytes};
  };
  const Engine::Addresses ranges[] = {range(a_), range(b_), range(c_)};
  refused(engine().prefetch(ranges, stream_), ranges[1].base);
  settle();
  EXPECT_TRUE(there(a_) && there(c_));
}

TEST_F(Hints, a_small_block_means_the_segment_that_moves_with_it) {
  begin();
  std::vector<void*> small;
  for (int i = 0; i < 3; ++i) small.push_back(make(10 + i, 100'000));
  settle();
  ASSERT_TRUE(engine().free(small[0]));
  settle();
  ASSERT_TRUE(engine().cold(small[0], 2 * MiB));
  settle();
  EXPECT_FALSE(there(small[1]));
  EXPECT_TRUE(engine().cold(c_, block_bytes));
  settle();
  ASSERT_TRUE(engine().prefetch(small[2], 1, stream_));
  settle();
  EXPECT_TRUE(there(small[1]));
  read(small[1], 11, 100'000);
}

TEST_F(Hints, of_a_large_block_the_range_comes_and_no_more) {
  SimulationOptions options = small_budget();
  options.span_bytes = 2 * MiB;
  begin(options);
  void* large = make(7, 15 * MiB);  // eight spans, the last one shorter
  settle();
  ASSERT_TRUE(engine().cold(large, 15 * MiB));
  settle();
  const EngineStats before = engine().stats();
  char* at = static_cast<char*>(large);
  ASSERT_TRUE(engine().prefetch(at + 5 * MiB, 4 * MiB, stream_));  // spans 2, 3 and 4
  settle();
  EXPECT_FALSE(there(large));
  EXPECT_EQ(engine().stats().prefetched_bytes - before.prefetched_bytes, 6 * MiB);
  ASSERT_TRUE(engine().prefetch(at + 5 * MiB, 2 * MiB, stream_));
  settle();
  EXPECT_EQ(engine().stats().prefetched_bytes - before.prefetched_bytes, 6 * MiB)
      << "it is there already";
  ASSERT_TRUE(engine().prefetch(at + 15 * MiB - 1, 1, stream_));  // the last one
  settle();
  EXPECT_EQ(engine().stats().prefetched_bytes - before.prefetched_bytes, 7 * MiB);
  engine().check();
  read(large, 7, 15 * MiB);
  EXPECT_EQ(engine().stats().faulted_bytes - before.faulted_bytes, 8 * MiB);
  engine().check();
}

TEST_F(Hints, a_capture_is_neither_asked_nor_broken) {
  begin();
  for (const bool of_nobody : {false, true}) {
    if (of_nobody) engine().may_end(stream_);
    Capture capture(*sim_, stream_);
    EXPECT_TRUE(engine().prefetch(d_, block_bytes, stream_));
    EXPECT_TRUE(engine().cold(a_, block_bytes, stream_));
    pump_for(5 * ms);
    EXPECT_TRUE(there(a_));
    EXPECT_FALSE(there(d_));
    EXPECT_FALSE(engine().busy());
    EXPECT_EQ(capture.end(), CUDA_SUCCESS) << "the capture is whole";
    pump_for(5 * ms);
    EXPECT_FALSE(there(d_)) << "it was ignored";
  }
  EXPECT_TRUE(engine().stats().trouble.empty());
}

/// As EngineCapture: the driver refuses to be asked about the default stream then.
TEST_F(Hints, of_the_default_stream_while_a_blocking_one_is_captured) {
  begin();
  CUstream blocking = nullptr;
  {
    Driver::ContextGuard context(sim_->driver(), sim_->context(0));
    ASSERT_EQ(sim_->driver().stream_create(&blocking, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  }
  Capture capture(*sim_, blocking);
  EXPECT_TRUE(engine().prefetch(d_, block_bytes, nullptr));
  pump_for(5 * ms);
  EXPECT_EQ(capture.end(), CUDA_SUCCESS) << "the capture is whole";
  EXPECT_TRUE(engine().prefetch(d_, block_bytes, nullptr));
  settle();
  EXPECT_TRUE(there(d_));
}

TEST_F(Hints, on_a_stream_that_may_end_they_act_at_the_call) {
  begin();
  engine().may_end(stream_);
  queue(30);
  ASSERT_TRUE(engine().prefetch(d_, block_bytes, stream_));
  pump_for(20 * ms);
  EXPECT_TRUE(there(d_));
}

TEST_F(Hints, of_a_stream_that_ended_act_behind_its_work) {
  begin();
  CUstream ended = nullptr;
  {
    Driver::ContextGuard context(sim_->driver(), sim_->context(0));
    ASSERT_EQ(sim_->driver().stream_create(&ended, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  queue(30, ended);
  ASSERT_TRUE(engine().prefetch(d_, block_bytes, ended));
  engine().stream_ends(ended);
  {
    Driver::ContextGuard context(sim_->driver(), sim_->context(0));
    ASSERT_EQ(sim_->driver().stream_destroy(ended), CUDA_SUCCESS);
  }
  pump_for(20 * ms);
  EXPECT_FALSE(there(d_));
  settle();
  EXPECT_TRUE(there(d_));
}

TEST_F(Hints, without_an_event_they_are_ignored) {
  begin();
  queue(10);
  sim_->gpu().fail_at("cuEventRecord", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(engine().prefetch(d_, block_bytes, stream_));
  settle();
  EXPECT_FALSE(there(d_));
  EXPECT_TRUE(engine().prefetch(d_, block_bytes, stream_));
  settle();
  EXPECT_TRUE(there(d_));
}

TEST_F(Hints, what_was_sent_away_stays_away) {
  begin();
  queue(30);
  ASSERT_TRUE(engine().prefetch(d_, block_bytes, stream_));
  engine().spill_away();
  settle();
  for (void* block : {a_, b_, c_, d_}) EXPECT_FALSE(there(block));
}

/// The engine's end waits for no hint.
TEST_F(Hints, an_engine_ends_with_hints_that_wait) {
  begin();
  queue(30);
  ASSERT_TRUE(engine().prefetch(d_, block_bytes, stream_));
  ASSERT_TRUE(engine().cold(a_, block_bytes, stream_));
  sim_->end_engine(0);
  EXPECT_EQ(sim_->counts(0).frame_bytes, 0u);
}
