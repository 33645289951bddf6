// Small blocks leave with their segments and come back; what may be used without a word stays, and
// nothing new comes into a segment that is away.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr size_t KiB = 1024, MiB = 1024 * KiB;
constexpr uint64_t granule = 2 * MiB;

struct Small {
  void* at = nullptr;
  size_t bytes = 0;
  uint64_t pattern = 0;
};

class Segments : public testing::Test {
 protected:
  explicit Segments(SimulationOptions options = small_budget()) : sim(options) {}
  Engine& engine() { return sim.engine(0); }

  void* allocate(size_t bytes, CUstream stream = nullptr) {
    Result<void*> made = engine().allocate(bytes, stream);
    EXPECT_TRUE(made) << describe(made.error());
    return made ? *made : nullptr;
  }
  void use(const Small& small, Access access, CUstream stream = nullptr) {
    Result<Hold> hold = engine().touch(small.at, stream, access);
    ASSERT_TRUE(hold) << describe(hold.error());
    const bool enqueued =
        access == Access::write ? sim.fill(0, small.at, small.bytes, small.pattern, stream)
                                : sim.verify(0, small.at, small.bytes, small.pattern, stream);
    EXPECT_TRUE(enqueued);
    engine().release(*hold, stream);
  }
  Small make(size_t bytes, CUstream stream = nullptr) {
    Small small{allocate(bytes, stream), bytes, ++pattern_};
    use(small, Access::write, stream);
    return small;
  }
  std::string state(const Small& small) { return engine().find(small.at)->state; }
  bool there(const Small& small) { return state(small) == "resident"; }
  void none_wrong() {
    sim.synchronize();
    EXPECT_EQ(sim.wrong_bytes, 0u) << sim.first_wrong;
    engine().check();
  }
  static constexpr uint64_t busy_ns = 5'000'000;
  void keep_busy(CUstream stream) {
    const auto busy = reinterpret_cast<decltype(&firnGpuBusy)>(
        ::dlsym(sim.driver().handle, "firnGpuBusy"));
    ASSERT_EQ(busy(stream, busy_ns), 0);
  }
  static uint64_t segment(const Small& small) {
    return reinterpret_cast<uint64_t>(small.at) / granule;
  }

  Simulation sim;

 private:
  uint64_t pattern_ = 0;
};

struct TwoFrames : Segments {
  TwoFrames() : Segments(options()) {}
  static SimulationOptions options() {
    SimulationOptions o = small_budget();
    o.budget_bytes = 2 * granule;
    o.host_bytes = 128 * MiB;
    return o;
  }
};

}  // namespace

TEST_F(Segments, leave_with_their_blocks_and_come_back) {
  std::vector<Small> all;
  for (int i = 0; i < 100; ++i) all.push_back(make(64 * KiB));
  const uint64_t held = engine().stats().device_bytes;
  EXPECT_GE(held, 4 * granule);
  engine().spill_all();
  EXPECT_EQ(engine().stats().resident_bytes, 0u);
  for (const Small& small : all) EXPECT_FALSE(there(small));
  for (const Small& small : all) use(small, Access::read);
  for (const Small& small : all) EXPECT_TRUE(there(small));
  none_wrong();
  EXPECT_GE(engine().stats().faulted_bytes, 4 * granule);
}

TEST_F(TwoFrames, a_job_of_small_blocks_runs_beyond_the_budget) {
  std::mt19937_64 random(7);
  std::vector<Small> all;
  const auto below = [&](uint64_t n) { return random() % n; };
  for (int step = 0; step < 4000; ++step) {
    if (all.size() < 150 || (all.size() < 300 && below(4) == 0)) {
      all.push_back(make(1 + below(below(4) ? 100 * KiB : 900 * KiB)));
    } else if (below(3) == 0) {
      std::swap(all[below(all.size())], all.back());
      ASSERT_TRUE(engine().free(all.back().at));
      all.pop_back();
    } else {
      Small& small = all[below(all.size())];
      const bool writes = below(2) == 0;
      if (writes) small.pattern += 1000;
      use(small, writes ? Access::write : Access::read);
    }
    ASSERT_EQ(sim.wrong_bytes, 0u) << sim.first_wrong << ", step " << step;
    if (step % 64 == 0) engine().check();
  }
  EXPECT_GT(engine().stats().spilled_bytes, 100 * MiB);
  none_wrong();
  for (const Small& small : all) ASSERT_TRUE(engine().free(small.at));
  engine().trim();
  for (int round = 0; round < 1000 && (engine().pump() || engine().busy()); ++round)
    sim.clock().wait(100'000);
  engine().trim();
  EXPECT_EQ(engine().stats().host_used_bytes, 0u);
  EXPECT_EQ(engine().stats().resident_bytes, 0u);
  engine().check();
}

TEST_F(Segments, stay_while_a_block_of_theirs_may_be_used_without_a_word) {
  const Small seen = make(4 * KiB);
  void* unseen = allocate(4 * KiB);
  engine().spill_all();
  EXPECT_TRUE(there(seen));
  Result<Hold> hold = engine().touch(unseen, nullptr, Access::write, Seen::this_time);
  ASSERT_TRUE(hold);
  engine().release(*hold, nullptr);
  engine().spill_all();
  EXPECT_TRUE(there(seen)) << "it was seen that time only";
  ASSERT_TRUE(engine().free(unseen));
  engine().spill_all();
  EXPECT_FALSE(there(seen));
  use(seen, Access::read);
  none_wrong();
}

TEST_F(Segments, stay_while_a_block_of_theirs_is_held) {
  const Small one = make(4 * KiB), other = make(4 * KiB);
  Result<Hold> hold = engine().touch(other.at, nullptr, Access::read);
  ASSERT_TRUE(hold && hold->block);
  engine().spill_all();
  EXPECT_TRUE(there(one));
  engine().release(*hold, nullptr);
  const Hold apart = engine().hold_apart(other.at);
  engine().spill_all();
  EXPECT_TRUE(there(one));
  engine().release_apart(apart);
  engine().spill_all();
  EXPECT_FALSE(there(one));
}

TEST_F(Segments, come_back_for_a_pin_and_stay_for_it) {
  const Small one = make(4 * KiB), other = make(4 * KiB);
  engine().spill_all();
  ASSERT_FALSE(there(one));
  ASSERT_TRUE(engine().pin(other.at, "a test"));
  EXPECT_TRUE(there(one));
  engine().spill_all();
  EXPECT_TRUE(there(one));
  ASSERT_TRUE(engine().unpin(other.at));
  engine().spill_all();
  EXPECT_FALSE(there(one));
  ASSERT_TRUE(engine().give_address(one.at, "a test"));
  engine().spill_all();
  EXPECT_TRUE(there(other));
  ASSERT_TRUE(engine().free(one.at));
  engine().spill_all();
  EXPECT_FALSE(there(other));
  use(other, Access::read);
  none_wrong();
}

TEST_F(Segments, take_nothing_new_while_they_are_away) {
  std::vector<Small> old;
  for (int i = 0; i < 8; ++i) old.push_back(make(64 * KiB));
  ASSERT_TRUE(engine().free(old.back().at));  // its place is free, and away
  old.pop_back();
  engine().spill_all();
  std::set<uint64_t> away;
  for (const Small& small : old) away.insert(segment(small));
  std::vector<Small> fresh;
  for (int i = 0; i < 8; ++i) {
    Small small{allocate(64 * KiB), 64 * KiB, 77};
    EXPECT_TRUE(there(small));
    EXPECT_FALSE(away.contains(segment(small)));
    fresh.push_back(small);
  }
  use(old.front(), Access::read);  // back again, with its place
  bool taken = false;  // by who allocates enough
  for (int i = 0; i < 64 && !taken; ++i) taken = away.contains(segment(make(64 * KiB)));
  EXPECT_TRUE(taken);
  none_wrong();
}

TEST_F(Segments, end_with_their_last_block_wherever_they_are) {
  std::vector<Small> all;
  for (int i = 0; i < 64; ++i) all.push_back(make(64 * KiB));
  engine().spill_all();
  EXPECT_GT(engine().stats().host_used_bytes, 0u);
  for (const Small& small : all) ASSERT_TRUE(engine().free(small.at));
  engine().pump();
  sim.synchronize();
  engine().trim();
  const EngineStats stats = engine().stats();
  EXPECT_EQ(stats.host_used_bytes, 0u);
  EXPECT_EQ(stats.nvme_bytes, 0u);
  EXPECT_EQ(stats.device_bytes, 0u);
  engine().check();
  const Small again = make(64 * KiB);
  use(again, Access::read);
  none_wrong();
}

TEST_F(Segments, are_not_unmapped_under_a_kernel_of_a_block_that_was_freed) {
  const CUstream slow = sim.make_stream(0);
  const Small kept = make(4 * KiB, slow);
  sim.synchronize();
  Small freed{allocate(64 * KiB, slow), 64 * KiB, 5};
  // (Nobody says so: it is the program's own until it is freed.)
  keep_busy(slow);
  ASSERT_TRUE(sim.fill(0, freed.at, freed.bytes, freed.pattern, slow));
  ASSERT_TRUE(engine().free(freed.at));
  const uint64_t before = sim.clock().now_ns();
  engine().spill_all();
  EXPECT_FALSE(there(kept));
  EXPECT_GE(sim.clock().now_ns() - before, busy_ns);
  use(kept, Access::read, slow);
  none_wrong();
}

TEST_F(Segments, are_not_unmapped_under_a_recorded_stream) {
  const CUstream other = sim.make_stream(0);
  const Small kept = make(4 * KiB);
  Small recorded = make(64 * KiB);
  sim.synchronize();
  keep_busy(other);
  ASSERT_TRUE(sim.verify(0, recorded.at, recorded.bytes, recorded.pattern, other));
  ASSERT_TRUE(engine().record_stream(recorded.at, other, nullptr));
  engine().spill_all();
  ASSERT_FALSE(there(kept));
  use(kept, Access::read);
  keep_busy(other);
  ASSERT_TRUE(engine().free(recorded.at));
  engine().spill_all();
  none_wrong();
}

// Bytes that come in are not written over those of the next owner of a freed place.
TEST_F(Segments, come_back_before_their_streams_next_block) {
  std::vector<Small> all;
  for (int i = 0; i < 30; ++i) all.push_back(make(64 * KiB));
  for (int round = 0; round < 20; ++round) {
    engine().spill_all();
    use(all[round], Access::read);
    ASSERT_TRUE(engine().free(all.back().at));
    all.pop_back();
    Small fresh{allocate(64 * KiB), 64 * KiB, 900u + static_cast<unsigned>(round)};
    // Without a word at first, as a library may.
    ASSERT_TRUE(sim.fill(0, fresh.at, fresh.bytes, fresh.pattern, nullptr));
    use(fresh, Access::read);
    all.insert(all.begin(), fresh);
  }
  none_wrong();
}

TEST(SegmentsWatched, of_before_anybody_watched_leave_once_their_blocks_were_seen) {
  SimulationOptions options = small_budget();
  options.watch_fraction = .5;
  Simulation later(options);
  Engine& engine = later.engine(0);
  std::vector<void*> early;
  for (int i = 0; i < 40; ++i) {
    Result<void*> made = engine.allocate(64 * KiB, nullptr);
    ASSERT_TRUE(made);
    ASSERT_TRUE(later.fill(0, *made, 64 * KiB, 3, nullptr));
    early.push_back(*made);
  }
  EXPECT_FALSE(engine.watching());
  Result<void*> large = engine.allocate(12 * MiB, nullptr);
  ASSERT_TRUE(large);
  EXPECT_TRUE(engine.watching());
  engine.spill_all();
  EXPECT_STREQ(engine.find(early[0])->state, "resident");
  for (void* block : early) {
    Result<Hold> hold = engine.touch(block, nullptr, Access::read);
    ASSERT_TRUE(hold && hold->block);
    engine.release(*hold, nullptr);
  }
  engine.spill_all();
  EXPECT_STRNE(engine.find(early[0])->state, "resident");
  for (void* block : early) {
    Result<Hold> hold = engine.touch(block, nullptr, Access::read);
    ASSERT_TRUE(hold) << describe(hold.error());
    ASSERT_TRUE(later.verify(0, block, 64 * KiB, 3, nullptr));
    engine.release(*hold, nullptr);
  }
  later.synchronize();
  EXPECT_EQ(later.wrong_bytes, 0u) << later.first_wrong;
  engine.check();
}
