// What the program did with its blocks, told by any thread, read by one.
#include "allocator/policy/event_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

using namespace firn;
using lifetimes::EventKind;

namespace {
constexpr size_t small_ring = 64;

std::vector<uint32_t> blocks_read(EventRing& ring, uint64_t end = UINT64_MAX) {
  std::vector<uint32_t> blocks;
  for (EventRing::Event event; ring.pop(event, end);) blocks.push_back(event.block);
  return blocks;
}
}  // namespace

TEST(EventRing, events_come_in_the_order_of_their_numbers) {
  EventRing ring(small_ring);
  EventRing::Event event;
  EXPECT_FALSE(ring.pop(event));
  for (uint32_t round = 0; round < 5; ++round) {  // more than once around
    for (uint32_t i = 0; i < 40; ++i)
      EXPECT_EQ(ring.push(i % 2 ? EventKind::touch_write : EventKind::free, i), round * 40 + i);
    for (uint32_t i = 0; i < 40; ++i) {
      ASSERT_TRUE(ring.pop(event));
      EXPECT_EQ(event.block, i);
      EXPECT_EQ(event.kind, i % 2 ? EventKind::touch_write : EventKind::free);
    }
    EXPECT_FALSE(ring.pop(event));
  }
  EXPECT_EQ(ring.pushed(), 200u);
}

TEST(EventRing, what_is_told_after_the_end_is_left_for_the_next_time) {
  EventRing ring(small_ring);
  for (uint32_t i = 0; i < 10; ++i) ring.push(EventKind::touch_read, i);
  EXPECT_EQ(blocks_read(ring, 4), (std::vector<uint32_t>{0, 1, 2, 3}));
  EXPECT_TRUE(blocks_read(ring, 4).empty());
  EXPECT_TRUE(blocks_read(ring, 0).empty());
  EXPECT_EQ(blocks_read(ring), (std::vector<uint32_t>{4, 5, 6, 7, 8, 9}));
}

TEST(EventRing, what_was_overwritten_is_passed_over) {
  EventRing ring(small_ring);
  for (uint32_t i = 0; i < 1000; ++i) ring.push(EventKind::allocate, i);
  const std::vector<uint32_t> read = blocks_read(ring);
  ASSERT_FALSE(read.empty());
  EXPECT_GE(read.size(), small_ring / 2 - 1);
  EXPECT_LE(read.size(), small_ring);
  for (size_t i = 0; i < read.size(); ++i) EXPECT_EQ(read[i], 1000 - read.size() + i);
  ring.push(EventKind::free, 7);
  EXPECT_EQ(blocks_read(ring), std::vector<uint32_t>{7});
}

TEST(EventRing, a_writer_that_sleeps_is_waited_for_one_round) {
  EventRing ring(small_ring);
  ring.push(EventKind::allocate, 1);
  const uint64_t asleep = ring.take();
  for (uint32_t i = 2; i < 10; ++i) ring.push(EventKind::allocate, i);
  EXPECT_EQ(blocks_read(ring), std::vector<uint32_t>{1}) << "in the order of their numbers";
  ring.write(asleep, EventKind::allocate, 100);
  EXPECT_EQ(blocks_read(ring), (std::vector<uint32_t>{100, 2, 3, 4, 5, 6, 7, 8, 9}));
  (void)ring.take();  // and is never heard of again
  for (uint32_t i = 0; i < small_ring - 1; ++i) ring.push(EventKind::free, 200 + i);
  EXPECT_TRUE(blocks_read(ring).empty());
  ring.push(EventKind::free, 300);
  const std::vector<uint32_t> read = blocks_read(ring);
  EXPECT_GE(read.size(), small_ring / 2 - 1);
  EXPECT_EQ(read.back(), 300u);
}

TEST(EventRing, one_that_writes_a_lap_too_late_holds_nobody_up) {
  EventRing ring(small_ring);
  const uint64_t asleep = ring.take();
  for (uint32_t i = 0; i < small_ring + 10; ++i) ring.push(EventKind::allocate, i);
  EXPECT_FALSE(blocks_read(ring).empty());
  for (uint32_t i = 0; i < small_ring - 10; ++i) ring.push(EventKind::allocate, 1000 + i);
  ring.write(asleep, EventKind::free, 7);  // onto number 2 * small_ring
  for (uint32_t i = 0; i < small_ring; ++i) ring.push(EventKind::allocate, 2000 + i);
  const std::vector<uint32_t> read = blocks_read(ring);
  EXPECT_EQ(read.back(), 2000 + small_ring - 1);
  EXPECT_EQ(std::count(read.begin(), read.end(), 7u), 0);
}

// A word is a thread and how many it had told before: whatever is read, each thread's are in order,
// and none is missing where the reader was never a round behind.
TEST(EventRing, threads_tell_while_one_reads) {
  constexpr uint32_t threads = 4, each = 50'000;
  for (size_t entries : {size_t{1} << 18, small_ring}) {
    EventRing ring(entries);
    std::vector<std::thread> pool;
    std::atomic<uint32_t> ended{0};
    for (uint32_t t = 0; t < threads; ++t)
      pool.emplace_back([&, t] {
        for (uint32_t i = 0; i < each; ++i) ring.push(EventKind::touch_read, t << 20 | i);
        ended.fetch_add(1);
      });
    std::vector<int64_t> last(threads, -1);
    uint64_t read = 0, disorder = 0;
    bool more = true;
    while (more) {
      more = ended.load() != threads;
      const uint64_t end = ring.pushed();
      for (EventRing::Event event; ring.pop(event, end); ++read) {
        int64_t& before = last[event.block >> 20];
        const int64_t now = event.block & ((1u << 20) - 1);
        disorder += now <= before;
        before = now;
      }
    }
    for (std::thread& thread : pool) thread.join();
    EXPECT_EQ(disorder, 0u);
    if (entries > uint64_t{threads} * each) {
      EXPECT_EQ(read, uint64_t{threads} * each);
    } else {
      EXPECT_GT(read, 0u);
    }
  }
}
