// Single behaviours of the engine that the property test would only meet by chance.
#include <gtest/gtest.h>

#include <vector>

#include "tests/allocator/heard.h"
#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {
SimulationOptions budget_16mib() {
  SimulationOptions o;
  o.budget_bytes = 16u << 20;
  o.host_bytes = 64u << 20;
  return o;
}
void* make(Engine& engine, size_t bytes, CUstream stream = nullptr) {
  Result<void*> block = engine.allocate(bytes, stream);
  EXPECT_TRUE(block) << describe(block.error());
  return block ? *block : nullptr;
}
void use(Engine& engine, void* block, Access access = Access::write, CUstream stream = nullptr) {
  Result<Hold> hold = engine.touch(block, stream, access);
  ASSERT_TRUE(hold) << describe(hold.error());
  engine.release(*hold, stream);
}
std::string state(Engine& engine, void* block) { return engine.find(block)->state; }
}  // namespace

TEST(Engine, zero_bytes_are_a_null_block) {
  Simulation sim({});
  Result<void*> block = sim.engine(0).allocate(0, nullptr);
  ASSERT_TRUE(block);
  EXPECT_EQ(*block, nullptr);
  EXPECT_TRUE(sim.engine(0).free(nullptr));
}

TEST(Engine, absurd_sizes_are_out_of_memory_and_change_nothing) {
  Simulation sim({});
  for (size_t bytes : {size_t{1} << 40, size_t{1} << 62, SIZE_MAX}) {
    Result<void*> block = sim.engine(0).allocate(bytes, nullptr);
    ASSERT_FALSE(block);
    EXPECT_EQ(block.error().code, Code::out_of_memory);
  }
  EXPECT_EQ(sim.counts(0).frame_bytes, 0u);
}

TEST(Engine, a_block_that_no_operator_used_is_never_spilled) {
  Simulation sim(budget_16mib());
  Engine& engine = sim.engine(0);
  void* raw = make(engine, 10u << 20);
  Result<void*> second = engine.allocate(10u << 20, nullptr);
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().text.find("not yet seen in an operator"), std::string::npos)
      << second.error().text;
  EXPECT_EQ(state(engine, raw), "resident");
}

TEST(Engine, the_oldest_block_leaves_first_and_comes_back_by_use) {
  Simulation sim(budget_16mib());
  Engine& engine = sim.engine(0);
  void* a = make(engine, 6u << 20);
  void* b = make(engine, 6u << 20);
  use(engine, a);
  use(engine, b);
  void* c = make(engine, 6u << 20);
  use(engine, c);
  EXPECT_NE(state(engine, a), "resident");
  EXPECT_EQ(state(engine, b), "resident");
  use(engine, a, Access::read);
  EXPECT_EQ(state(engine, a), "resident");
  EXPECT_GT(engine.stats().faulted_bytes, 0u);
}

TEST(Engine, a_large_block_leaves_and_comes_back_bit_by_bit) {
  SimulationOptions options = budget_16mib();
  options.span_bytes = options.piece_bytes = 2u << 20;
  Simulation sim(options);
  Engine& engine = sim.engine(0);
  void* large = make(engine, 12u << 20);
  use(engine, large);
  ASSERT_TRUE(sim.fill(0, large, 12u << 20, 7, nullptr));
  void* other = make(engine, 8u << 20);  // 4 MiB more than there are
  EXPECT_EQ(state(engine, large), "hosted");
  EXPECT_EQ(engine.stats().spilled_bytes, 4u << 20);
  EXPECT_EQ(engine.stats().resident_bytes, 16u << 20);
  use(engine, other);
  engine.check();
  ASSERT_TRUE(engine.free(other));
  use(engine, large, Access::read);
  EXPECT_EQ(engine.stats().faulted_bytes, 4u << 20);
  ASSERT_TRUE(sim.verify(0, large, 12u << 20, 7, nullptr));
  sim.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
  // And freed while a part of it is away.
  other = make(engine, 8u << 20);
  use(engine, other);
  EXPECT_EQ(state(engine, large), "hosted");
  ASSERT_TRUE(engine.free(large));
  ASSERT_TRUE(engine.free(other));
  engine.trim();
  engine.check();
  EXPECT_EQ(sim.counts(0).frame_bytes, 0u);
}

TEST(Engine, a_block_only_read_leaves_again_without_a_copy) {
  Simulation sim(budget_16mib());
  Engine& engine = sim.engine(0);
  void* a = make(engine, 6u << 20);
  use(engine, a);
  engine.spill_all();
  use(engine, a, Access::read);
  uint64_t spilled = engine.stats().spilled_bytes;
  engine.spill_all();
  EXPECT_NE(state(engine, a), "resident");
  EXPECT_EQ(engine.stats().spilled_bytes, spilled);
  EXPECT_GE(engine.stats().clean_dropped_bytes, 6u << 20);
  use(engine, a, Access::write);
  engine.spill_all();
  EXPECT_EQ(engine.stats().spilled_bytes, spilled + (6u << 20));
}

TEST(Engine, a_held_block_is_not_spilled) {
  Simulation sim(budget_16mib());
  Engine& engine = sim.engine(0);
  void* a = make(engine, 6u << 20);
  Result<Hold> hold = engine.touch(a, nullptr, Access::write);
  ASSERT_TRUE(hold);
  engine.spill_all();
  EXPECT_EQ(state(engine, a), "resident");
  Result<void*> too_much = engine.allocate(12u << 20, nullptr);
  ASSERT_FALSE(too_much);
  EXPECT_NE(too_much.error().text.find("held by operators"), std::string::npos);
  // (A library does with less; a tensor that does not fit beside it is in host memory.)
  Result<void*> beside = engine.allocate(12u << 20, nullptr, 0, Told::always);
  ASSERT_TRUE(beside) << describe(beside.error());
  EXPECT_EQ(engine.stats().zero_copy_bytes, 12u << 20);
  EXPECT_EQ(state(engine, a), "resident");
  ASSERT_TRUE(engine.free(*beside));
  engine.release(*hold, nullptr);
  engine.spill_all();
  EXPECT_NE(state(engine, a), "resident");
}

TEST(Engine, a_small_tensor_without_room_for_a_segment_is_in_host_memory) {
  Simulation sim(budget_16mib());
  Engine& engine = sim.engine(0);
  void* a = make(engine, 16u << 20);
  Result<Hold> hold = engine.touch(a, nullptr, Access::write);
  ASSERT_TRUE(hold);
  ASSERT_FALSE(engine.allocate(4096, nullptr)) << "a library does with less";
  Result<void*> small = engine.allocate(4096, nullptr, 0, Told::always);
  ASSERT_TRUE(small) << describe(small.error());
  Result<Hold> used = engine.touch_anyway(*small, nullptr, Access::write);
  ASSERT_TRUE(used) << describe(used.error());
  EXPECT_TRUE(sim.fill(0, *small, 4096, 7, nullptr));
  engine.release(*used, nullptr);
  engine.release(*hold, nullptr);
  engine.spill_all();
  used = engine.touch(*small, nullptr, Access::read);
  ASSERT_TRUE(used) << describe(used.error());
  EXPECT_TRUE(sim.verify(0, *small, 4096, 7, nullptr));
  engine.release(*used, nullptr);
  sim.synchronize();
  EXPECT_EQ(sim.wrong_bytes, 0u);
  EXPECT_GT(engine.stats().zero_copy_bytes, 0u);
  EXPECT_EQ(engine.stats().allocated_bytes, (16u << 20) + 4096);
  ASSERT_TRUE(engine.free(*small));
  EXPECT_EQ(engine.stats().allocated_bytes, 16u << 20);
  void* again = make(engine, 4096);
  EXPECT_EQ(state(engine, a), "hosted") << "there is room for a segment again";
  ASSERT_TRUE(engine.free(again));
  engine.check();
}

TEST(Engine, small_tensors_in_host_memory_are_bounded) {
  SimulationOptions options = budget_16mib();
  Simulation sim(options);
  Engine& engine = sim.engine(0);
  void* a = make(engine, 16u << 20);
  Result<Hold> hold = engine.touch(a, nullptr, Access::write);
  ASSERT_TRUE(hold);
  std::vector<void*> made;
  for (;;) {
    Result<void*> small = engine.allocate(4096, nullptr, 0, Told::always);
    if (!small) {
      EXPECT_EQ(small.error().code, Code::out_of_memory);
      break;
    }
    made.push_back(*small);
    ASSERT_LT(made.size(), 1000u) << "without a bound";
  }
  EXPECT_LE(made.size(), options.host_bytes / (2u << 20)) << "each takes a frame at least";
  EXPECT_GE(made.size(), options.host_bytes / (8u << 20));
  EXPECT_EQ(engine.stats().zero_copy_bytes, made.size() * 4096);
  engine.release(*hold, nullptr);
  for (void* each : made) ASSERT_TRUE(engine.free(each));
  engine.check();
}

TEST(Engine, a_pinned_block_stays_and_is_named_with_its_reason) {
  Simulation sim(budget_16mib());
  Engine& engine = sim.engine(0);
  void* a = make(engine, 10u << 20);
  use(engine, a);
  ASSERT_TRUE(engine.pin(a, "exported by the test"));
  Result<void*> more = engine.allocate(10u << 20, nullptr);
  ASSERT_FALSE(more);
  EXPECT_NE(more.error().text.find("exported by the test"), std::string::npos);
  ASSERT_TRUE(engine.unpin(a));
  EXPECT_FALSE(engine.unpin(a));
  EXPECT_TRUE(engine.allocate(10u << 20, nullptr));
}

TEST(Engine, who_pins_a_block_may_write_it) {
  Simulation sim(budget_16mib());
  Engine& engine = sim.engine(0);
  void* a = make(engine, 6u << 20);
  use(engine, a);
  ASSERT_TRUE(sim.fill(0, a, 6u << 20, 1, nullptr));
  engine.spill_all();
  ASSERT_NE(state(engine, a), "resident");
  ASSERT_TRUE(engine.pin(a, "by the test"));
  // On another stream, which nobody told to wait for the bytes.
  ASSERT_TRUE(sim.fill(0, a, 6u << 20, 2, sim.make_stream(0)));
  sim.synchronize();
  ASSERT_TRUE(engine.unpin(a));
  engine.spill_all();
  use(engine, a, Access::read);
  ASSERT_TRUE(sim.verify(0, a, 6u << 20, 2, nullptr));
  sim.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
}

TEST(Engine, a_block_whose_address_was_given_stays_until_it_is_freed) {
  Simulation sim(budget_16mib());
  Engine& engine = sim.engine(0);
  auto* a = static_cast<char*>(make(engine, 6u << 20));
  use(engine, a);
  engine.spill_all();
  ASSERT_NE(state(engine, a), "resident");
  ASSERT_TRUE(engine.give_address(a + 12345, "given by the test"));
  ASSERT_TRUE(engine.pin(a, "by the test"));
  ASSERT_TRUE(engine.give_address(a, "given by the test"));
  ASSERT_TRUE(engine.unpin(a));
  engine.spill_all();
  EXPECT_EQ(state(engine, a), "resident");
  ASSERT_EQ(engine.stats().pinned.size(), 1u);
  EXPECT_EQ(engine.stats().pinned[0].reason, "given by the test");
  // The next allocation there is another block.
  ASSERT_TRUE(engine.free(a));
  ASSERT_EQ(make(engine, 6u << 20), a);
  use(engine, a);
  engine.spill_all();
  EXPECT_NE(state(engine, a), "resident");
  // And it can be taken back.
  ASSERT_TRUE(engine.give_address(a, "given by the test"));
  ASSERT_TRUE(engine.unpin(a));
  EXPECT_FALSE(engine.unpin(a));
  engine.spill_all();
  EXPECT_NE(state(engine, a), "resident");
  engine.check();
  int elsewhere = 0;
  EXPECT_TRUE(engine.give_address(&elsewhere, "given by the test"));
}

TEST(Engine, memory_freed_on_a_stream_is_reused_at_once_there_and_elsewhere_after_its_event) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  CUstream one = sim.make_stream(0), two = sim.make_stream(0);
  void* a = make(engine, 4u << 20, one);
  ASSERT_TRUE(engine.free(a));
  EXPECT_EQ(make(engine, 4u << 20, one), a);
  ASSERT_TRUE(engine.free(a));
  EXPECT_NE(make(engine, 4u << 20, two), a);
}

TEST(Engine, a_recorded_block_waits_for_the_other_stream) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  CUstream one = sim.make_stream(0), two = sim.make_stream(0);
  void* a = make(engine, 4u << 20, one);
  {
    Driver::ContextGuard context(sim.driver(), sim.context(0));
    ASSERT_EQ(sim.gpu().busy(two, 50'000'000), 0);
  }
  ASSERT_TRUE(engine.record_stream(a, two));
  ASSERT_TRUE(engine.free(a));
  EXPECT_NE(make(engine, 4u << 20, one), a);
  sim.synchronize();
  engine.pump();
  EXPECT_EQ(make(engine, 4u << 20, one), a);
}

TEST(Engine, prefetch_brings_back_ahead_of_use) {
  Simulation sim(budget_16mib());
  Engine& engine = sim.engine(0);
  void* a = make(engine, 6u << 20);
  use(engine, a);
  ASSERT_TRUE(sim.fill(0, a, 6u << 20, 7, nullptr));
  sim.synchronize();
  engine.spill_all();
  ASSERT_TRUE(engine.prefetch(a, 6u << 20, nullptr));
  for (int i = 0; i < 100 && state(engine, a) != "resident"; ++i) {
    engine.pump();
    sim.clock().wait(100'000);
  }
  EXPECT_EQ(state(engine, a), "resident");
  EXPECT_EQ(engine.stats().prefetched_bytes, 6u << 20);
  EXPECT_EQ(engine.stats().faulted_bytes, 0u);
  use(engine, a, Access::read);
  ASSERT_TRUE(sim.verify(0, a, 6u << 20, 7, nullptr));
  sim.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u);
}

TEST(Engine, without_a_store_a_full_host_tier_stops_eviction_and_says_so) {
  SimulationOptions o = budget_16mib();
  o.with_store = false;
  o.host_bytes = 8u << 20;
  Simulation sim(o);
  Engine& engine = sim.engine(0);
  std::vector<void*> blocks;
  Result<void*> made = static_cast<void*>(nullptr);
  for (int i = 0; i < 10; ++i) {
    made = engine.allocate(6u << 20, nullptr);
    if (!made) break;
    use(engine, *made);
    ASSERT_TRUE(sim.fill(0, *made, 6u << 20, 40 + i, nullptr));
    blocks.push_back(*made);
  }
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().text.find("firn_host"), std::string::npos) << made.error().text;
  ASSERT_GE(blocks.size(), 2u);
}

TEST(Engine, a_lasting_corruption_is_lost_loudly_and_never_handed_over) {
  SimulationOptions o = budget_16mib();
  o.host_bytes = 16u << 20;
  o.store.lasting_corrupt_rate = 1;
  Simulation sim(o);
  Engine& engine = sim.engine(0);
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(make(engine, 6u << 20));
    use(engine, blocks.back());
  }
  bool lost = false;
  for (void* block : blocks) {
    Result<Hold> hold = engine.touch(block, nullptr, Access::read);
    if (hold) {
      engine.release(*hold, nullptr);
      continue;
    }
    EXPECT_EQ(hold.error().code, Code::lost);
    lost = true;
    break;
  }
  EXPECT_TRUE(lost);
  EXPECT_GT(engine.stats().lost_blocks, 0u);
}

TEST(Engine, watching_starts_once_memory_nears_the_budget) {
  SimulationOptions o;
  o.watch_fraction = 0.5;
  o.budget_bytes = 32u << 20;
  Simulation sim(o);
  Engine& engine = sim.engine(0);
  int called = 0;
  Heard heard;
  heard.on_watch = [&] { ++called; };
  engine.observe(&heard);
  make(engine, 8u << 20);
  EXPECT_EQ(called, 0);
  make(engine, 12u << 20);
  EXPECT_EQ(called, 1);
  make(engine, 4u << 20);
  EXPECT_EQ(called, 1);
  EXPECT_TRUE(engine.watching());
}

TEST(Engine, a_reused_block_counts_what_is_asked_for_now) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  ASSERT_TRUE(engine.free(make(engine, 1u << 20)));
  make(engine, (1u << 20) + 1);
  EXPECT_EQ(engine.tallies().allocated_bytes[0].current, (1 << 20) + 512);
}

TEST(Engine, the_peak_of_all_is_not_the_sum_of_the_pools_peaks) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  ASSERT_TRUE(engine.free(make(engine, 1000)));
  ASSERT_TRUE(engine.free(make(engine, 4u << 20)));
  PoolTallies t = engine.tallies();
  EXPECT_EQ(t.allocation[0].peak, 1);
  EXPECT_EQ(t.allocation[1].peak, 1);
  EXPECT_EQ(t.requested_bytes[0].peak, 4 << 20);
}

TEST(Engine, statistics_balance) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  void* small = make(engine, 1000);
  void* large = make(engine, 3u << 20);
  PoolTallies t = engine.tallies();
  EXPECT_EQ(t.allocation[0].current, 2);
  EXPECT_EQ(t.requested_bytes[0].current, 1000 + (3 << 20));
  EXPECT_EQ(t.reserved_bytes[0].current, static_cast<int64_t>(sim.counts(0).frame_bytes));
  ASSERT_TRUE(engine.free(small));
  ASSERT_TRUE(engine.free(large));
  t = engine.tallies();
  EXPECT_EQ(t.allocation[0].current, 0);
  EXPECT_EQ(t.allocated_bytes[0].current, 0);
  EXPECT_GE(t.allocated_bytes[0].peak, 3 << 20);
  engine.reset_peaks();
  EXPECT_EQ(engine.tallies().allocated_bytes[0].peak, 0);
  engine.trim();
  EXPECT_EQ(sim.counts(0).frame_bytes, 0u);
}
