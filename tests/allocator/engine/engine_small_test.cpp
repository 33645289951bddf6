// The pool of small blocks is as tight as a pool that joins what is freed: it grows only where no
// freed memory would do.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "firn/range_map.h"
#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr size_t KiB = 1024, MiB = 1024 * KiB;

struct Small : testing::Test {
  Simulation sim{[] {
    SimulationOptions o;
    o.budget_bytes = 1u << 30;
    return o;
  }()};
  Engine& engine() { return sim.engine(0); }

  void* make(size_t bytes, CUstream stream = nullptr) {
    Result<void*> made = engine().allocate(bytes, stream);
    EXPECT_TRUE(made) << describe(made.error());
    return made ? *made : nullptr;
  }
  std::vector<void*> make_many(size_t count, size_t bytes) {
    std::vector<void*> all(count);
    std::ranges::generate(all, [&] { return make(bytes); });
    return all;
  }
  void free_all(const std::vector<void*>& all) {
    for (void* each : all) ASSERT_TRUE(engine().free(each));
  }
  uint64_t reserved() { return sim.counts(0).frame_bytes; }
};

TEST_F(Small, what_was_freed_serves_larger_and_smaller_ones) {
  free_all(make_many(40 * MiB / (64 * KiB), 64 * KiB));
  EXPECT_EQ(reserved(), 40 * MiB);
  free_all(make_many(40 * MiB / (256 * KiB), 256 * KiB));
  EXPECT_EQ(reserved(), 40 * MiB);
  const std::vector<void*> last = make_many(40 * MiB / (4 * KiB), 4 * KiB);
  EXPECT_EQ(reserved(), 40 * MiB);
  free_all(last);
  engine().check();
}

TEST_F(Small, another_streams_is_not_taken) {
  CUstream other = sim.make_stream(0);
  free_all(make_many(40 * MiB / (64 * KiB), 64 * KiB));
  std::vector<void*> others;
  for (int i = 0; i < 40 * 4; ++i) others.push_back(make(256 * KiB, other));
  EXPECT_EQ(reserved(), 80 * MiB);
  others.push_back(make(256 * KiB, other));  // its pool would join now, and has nothing
  EXPECT_EQ(reserved(), 82 * MiB);
  free_all(others);
  engine().check();
}

TEST_F(Small, large_ones_that_wait_to_be_used_again_stay_so) {
  const std::vector<void*> small = make_many(40 * MiB / (64 * KiB), 64 * KiB);
  std::vector<void*> large = make_many(4, 2 * MiB);
  std::ranges::sort(large);
  free_all(large);
  free_all(small);
  const std::vector<void*> joined = make_many(40 * MiB / (256 * KiB), 256 * KiB);
  EXPECT_EQ(reserved(), 48 * MiB);
  std::vector<void*> again = make_many(4, 2 * MiB);
  std::ranges::sort(again);
  EXPECT_EQ(again, large);
  free_all(joined);
  free_all(again);
  engine().check();
}

// Blocks that stay between those that go: nothing joins to what is asked for, and each size finds
// its own again.
TEST_F(Small, where_nothing_joins_the_pool_grows_and_what_was_freed_is_found_again) {
  std::vector<void*> all = make_many(40 * MiB / (4 * KiB), 4 * KiB);
  for (size_t i = 0; i < all.size(); i += 2) ASSERT_TRUE(engine().free(all[i]));
  const std::vector<void*> larger = make_many(2 * MiB / (8 * KiB), 8 * KiB);
  EXPECT_EQ(reserved(), 42 * MiB);
  for (size_t i = 0; i < all.size(); i += 2) all[i] = make(4 * KiB);
  EXPECT_EQ(reserved(), 42 * MiB);
  free_all(larger);
  free_all(all);
  engine().check();
}

/// A pool that joins at each free, as the native one does.
struct JoiningPool {
  RangeMap ranges;
  uint64_t next = 0;
  uint64_t take(size_t bytes) {
    auto address = ranges.take(bytes);
    if (!address) {
      ranges.add(next, 2 * MiB);
      next += 2 * MiB;
      address = ranges.take(bytes);
    }
    return *address;
  }
};

/// What 40,000 steps of a program reserve whose temporaries have other sizes from phase to phase: here,
/// and in a pool that joins at each free.
std::pair<uint64_t, uint64_t> reserved_by(uint64_t seed) {
  Simulation sim{[] {
    SimulationOptions o;
    o.budget_bytes = 1u << 30;
    return o;
  }()};
  Engine& engine = sim.engine(0);
  std::mt19937_64 random(seed);
  const auto size = [&](unsigned phase) {
    return (512 << random() % 9) * (1 + (phase + random() % 3) % 4);
  };
  struct Live {
    void* block;
    uint64_t there;
    size_t bytes;
  };
  JoiningPool joining;
  uint64_t alive = 0;
  std::vector<Live> live;
  for (unsigned step = 0; step < 40'000; ++step) {
    if (!live.empty() && (alive > 24 * MiB || random() % 3 == 0)) {
      std::swap(live[random() % live.size()], live.back());
      const Live gone = live.back();
      live.pop_back();
      EXPECT_TRUE(engine.free(gone.block));
      joining.ranges.release(gone.there, gone.bytes, 2 * MiB);
      alive -= gone.bytes;
      continue;
    }
    const size_t bytes = size(step / 2'000);
    Result<void*> made = engine.allocate(bytes, nullptr);
    EXPECT_TRUE(made);
    live.push_back({*made, joining.take(bytes), bytes});
    alive += bytes;
  }
  engine.check();
  return {sim.counts(0).frame_bytes, joining.ranges.total()};
}

TEST(SmallPools, phases_of_other_sizes_reserve_little_more_than_a_pool_that_joins_at_each_free) {
  uint64_t here = 0, there = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const auto [reserved, joined] = reserved_by(seed);
    here += reserved;
    there += joined;
  }
  EXPECT_LE(here, there + there / 5) << here / MiB << " and " << there / MiB << " MiB";
  std::printf("reserved %.3f of what joining at each free does\n",
              static_cast<double>(here) / static_cast<double>(there));
}

}  // namespace
