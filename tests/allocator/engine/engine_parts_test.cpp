// Segments that their owners cut up, and what is counted of parts.
#include <gtest/gtest.h>

#include "tests/allocator/simulation.h"

namespace firn::test {
namespace {

void* make(Engine& engine, size_t bytes) {
  Result<void*> block = engine.allocate(bytes, nullptr);
  FIRN_CHECK(block, "%s", describe(block.error()).c_str());
  return *block;
}

TEST(EngineParts, a_segment_counts_by_its_parts) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  Result<void*> segment = engine.allocate_segment(2u << 20, nullptr, true, "test");
  ASSERT_TRUE(segment);
  PoolTallies t = engine.tallies();
  EXPECT_EQ(t.allocation[0].current, 0);
  EXPECT_EQ(t.allocated_bytes[0].peak, 0);
  EXPECT_EQ(t.segment[0].current, 1);
  EXPECT_EQ(t.segment[1].current, 1);
  EXPECT_EQ(t.segment[2].current, 0);
  EXPECT_EQ(t.reserved_bytes[1].current, 2 << 20);
  EXPECT_FALSE(engine.blocks().front().live);
  EXPECT_EQ(engine.stats().pinned.size(), 1u);

  using Kind = PartEvent::Kind;
  engine.count({Kind::allocated, false, *segment, 1024, 1000});
  engine.count({Kind::inactive, false, nullptr, (2 << 20) - 1024, 0, 1});
  t = engine.tallies();
  EXPECT_EQ(t.allocation[1].current, 1);
  EXPECT_EQ(t.requested_bytes[1].current, 1000);
  EXPECT_EQ(t.inactive_split[0].current, 1);
  EXPECT_EQ(t.inactive_split_bytes[1].current, (2 << 20) - 1024);
  engine.count({Kind::waits, false, *segment, 1024});
  engine.count({Kind::freed, false, *segment, 1024, 1000});
  t = engine.tallies();
  EXPECT_EQ(t.allocation[0].current, 0);
  EXPECT_EQ(t.active_bytes[0].current, 1024);
  engine.count({Kind::waited, false, *segment, 1024});
  engine.count({Kind::inactive, false, nullptr, 1024 - (2 << 20), 0, -1});
  EXPECT_EQ(engine.tallies().active[0].current, 0);

  ASSERT_TRUE(engine.free(*segment));
  EXPECT_FALSE(engine.free(*segment));
  t = engine.tallies();
  EXPECT_EQ(t.allocation[0].allocated, t.allocation[0].freed);
  EXPECT_EQ(t.segment[1].current, 0);
  EXPECT_EQ(t.inactive_split_bytes[0].current, 0);
  void* again = make(engine, 2u << 20);  // it serves as a block like any other
  EXPECT_EQ(again, *segment);
  EXPECT_TRUE(engine.blocks().front().live);
  ASSERT_TRUE(engine.free(again));
  engine.trim();
  EXPECT_EQ(engine.tallies().segment[0].current, 0);
  engine.check();
}

TEST(EngineParts, segments_from_elsewhere_are_counted_beside_its_own) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  using Kind = PartEvent::Kind;
  int somewhere = 0;
  engine.count({Kind::foreign_made, true, &somewhere, 20 << 20});
  engine.count({Kind::allocated, true, &somewhere, 5 << 20, 5 << 20});
  PoolTallies t = engine.tallies();
  EXPECT_EQ(t.segment[2].current, 1);
  EXPECT_EQ(t.reserved_bytes[0].current, 20 << 20);
  EXPECT_EQ(t.allocated_bytes[2].current, 5 << 20);
  engine.count({Kind::freed, true, &somewhere, 5 << 20, 5 << 20});
  engine.count({Kind::foreign_given, true, &somewhere, 20 << 20});
  t = engine.tallies();
  EXPECT_EQ(t.reserved_bytes[0].current, 0);
  EXPECT_EQ(t.segment[0].freed, 1);
}

TEST(EngineParts, what_is_free_among_small_blocks_is_inactive) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  void* first = make(engine, 1000);
  void* second = make(engine, 5000);
  PoolTallies t = engine.tallies();
  const int64_t used = t.active_bytes[1].current;
  EXPECT_EQ(t.inactive_split[1].current, 1);  // the rest of the segment
  EXPECT_EQ(t.inactive_split_bytes[1].current, (2 << 20) - used);
  EXPECT_EQ(t.inactive_split_bytes[2].current, 0);
  ASSERT_TRUE(engine.free(first));
  t = engine.tallies();
  EXPECT_EQ(t.inactive_split[0].current, 2);  // and a cached block
  EXPECT_EQ(t.inactive_split_bytes[0].current, (2 << 20) - t.active_bytes[1].current);
  ASSERT_TRUE(engine.free(second));
  EXPECT_EQ(engine.tallies().inactive_split_bytes[0].current, 0);
  EXPECT_GE(engine.tallies().inactive_split_bytes[0].peak, (2 << 20) - used);
}

}  // namespace
}  // namespace firn::test
