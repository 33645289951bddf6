// A store that is ill for a while: what it holds is waited for, nothing is lost that can be read
// later, and nobody waits for longer than firn_io_patience.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/allocator/engine/store_job.h"

using namespace firn;
using namespace firn::test;

namespace {

using Job = StoreJob;

/// The disk is ill from a moment that every job of fill_all() has reached.
constexpr uint64_t ill_from = 2 * second;

}  // namespace

class EnginePatience : public testing::TestWithParam<uint64_t> {};

TEST_P(EnginePatience, reads_that_fail_for_a_while_lose_nothing) {
  SimulationOptions options = with_ill_store();
  options.io_patience_ns = 60 * second;
  options.store.reads_fail_from_ns = ill_from;
  options.store.reads_fail_until_ns = ill_from + GetParam() * ms;
  Job job(options);
  job.fill_all();
  ASSERT_LT(job.sim.clock().now_ns(), ill_from);
  job.wait_until(ill_from);
  const Result<void> read = job.read(0);
  ASSERT_TRUE(read) << describe(read.error());
  EXPECT_GE(job.waited_ns, GetParam() * ms);
  EXPECT_LE(job.waited_ns, GetParam() * ms + second + 100 * ms);
  const EngineStats stats = job.sim.engine(0).stats();
  EXPECT_EQ(stats.lost_blocks, 0u);
  EXPECT_EQ(said(stats, "firn_io_patience"), GetParam() >= 3000);
  for (size_t i = 1; i < 8; ++i) EXPECT_TRUE(job.read(i)) << i;
}

INSTANTIATE_TEST_SUITE_P(milliseconds, EnginePatience, testing::Values(3, 100, 1000, 10'000));

TEST(EnginePatience, what_is_not_read_in_time_is_an_error_and_is_read_later) {
  SimulationOptions options = with_ill_store();
  options.store.reads_fail_from_ns = ill_from;
  options.store.reads_fail_until_ns = ill_from + 30 * second;
  Job job(options);
  job.fill_all();
  job.wait_until(ill_from);
  const Result<void> refused = job.read(0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::lost) << describe(refused.error());
  EXPECT_NE(refused.error().text.find("firn_io_patience"), std::string::npos)
      << refused.error().text;
  EXPECT_GE(job.waited_ns, options.io_patience_ns);
  EXPECT_LE(job.waited_ns, options.io_patience_ns + second + 100 * ms);
  EXPECT_EQ(job.sim.engine(0).stats().lost_blocks, 1u);
  ASSERT_FALSE(job.read(0));  // still ill
  EXPECT_LE(job.waited_ns, 2 * second + 100 * ms);
  EXPECT_EQ(job.sim.engine(0).stats().lost_blocks, 1u);
  ASSERT_LT(job.sim.clock().now_ns(), options.store.reads_fail_until_ns);
  job.wait_until(options.store.reads_fail_until_ns + 2 * second);
  for (size_t i = 0; i < 8; ++i) {
    const Result<void> read = job.read(i);
    EXPECT_TRUE(read) << i << ": " << describe(read.error());
  }
  EXPECT_EQ(job.sim.engine(0).stats().lost_blocks, 0u);
  job.sim.engine(0).check();
}

TEST(EnginePatience, a_block_that_cannot_be_read_is_freed_as_any_other) {
  SimulationOptions options = with_ill_store();
  options.io_patience_ns = 0;
  options.store.reads_fail_from_ns = ill_from;
  options.store.reads_fail_until_ns = UINT64_MAX;
  Job job(options);
  job.fill_all();
  job.wait_until(ill_from);
  ASSERT_FALSE(job.read(0));
  const uint64_t slots = job.sim.store()->stats().slots_in_use;
  ASSERT_TRUE(job.sim.engine(0).free(job.blocks[0]));
  job.settle();
  EXPECT_LT(job.sim.store()->stats().slots_in_use, slots);
  EXPECT_EQ(job.sim.engine(0).stats().lost_blocks, 1u);  // the program was told so
  ASSERT_TRUE(job.make(1));  // (whoever has its descriptor now)
  job.sim.engine(0).check();
}

TEST(EnginePatience, writes_that_fail_for_a_while_are_waited_for) {
  SimulationOptions options = with_ill_store();
  options.store.writes_fail_from_ns = 0;
  options.store.writes_fail_until_ns = 3 * second;
  Job job(options);
  for (uint64_t i = 0; i < 8; ++i) {
    const Result<void> made = job.make(100 + i);
    ASSERT_TRUE(made) << i << ": " << describe(made.error());
  }
  EXPECT_GE(job.sim.clock().now_ns(), 3 * second);
  EXPECT_LE(job.sim.clock().now_ns(), 4 * second + 100 * ms);
  EXPECT_EQ(job.sim.engine(0).stats().trouble.size(), 1u) << "said once, not of each piece";
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(job.read(i)) << i;
}

TEST(EnginePatience, writes_that_fail_for_long_are_out_of_memory_and_tried_again_later) {
  SimulationOptions options = with_ill_store();
  options.store.writes_fail_from_ns = 0;
  options.store.writes_fail_until_ns = 60 * second;
  Job job(options);
  Result<void> made;
  size_t count = 0;
  while (count < 8 && (made = job.make(100 + count))) ++count;
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::out_of_memory) << describe(made.error());
  EXPECT_GE(job.sim.clock().now_ns(), options.io_patience_ns);
  EXPECT_LE(job.sim.clock().now_ns(), 2 * options.io_patience_ns);
  job.blocks.resize(count);
  for (size_t i = 0; i < count; ++i) {  // there may be no room; but nothing is lost
    if (const Result<void> read = job.read(i); !read) {
      EXPECT_EQ(read.error().code, Code::out_of_memory) << describe(read.error());
    }
  }
  EXPECT_EQ(job.sim.engine(0).stats().lost_blocks, 0u);
  job.wait_until(options.store.writes_fail_until_ns + 2 * second);
  while (count < 8) {
    made = job.make(100 + count++);
    ASSERT_TRUE(made) << count << ": " << describe(made.error());
  }
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(job.read(i)) << i;
}

/// Two failures of which the second comes long after the first are no outage of that length.
TEST(EnginePatience, a_failure_is_not_held_against_a_write_much_later) {
  constexpr uint64_t later = 20 * second;
  SimulationOptions options = with_ill_store();
  options.store.full_until_ns = second / 2;
  options.store.writes_fail_from_ns = later;
  options.store.writes_fail_until_ns = later + 2 * second;
  Job job(options);
  const auto refused = [&] {
    return said(job.sim.engine(0).stats(), "spilled blocks stay in host memory");
  };
  for (uint64_t i = 0; !refused() && i < 5; ++i) ASSERT_TRUE(job.make(1));
  ASSERT_TRUE(refused());
  for (void* block : job.blocks) ASSERT_TRUE(job.sim.engine(0).free(block));  // nothing to write
  job.blocks.clear();
  job.sim.synchronize();
  job.settle();
  job.wait_until(later);
  ASSERT_EQ(job.sim.store()->stats().written_bytes, 0u);
  for (uint64_t i = 0; i < 8; ++i) {
    const Result<void> made = job.make(100 + i);
    ASSERT_TRUE(made) << i << ": " << describe(made.error());
  }
  EXPECT_GE(job.sim.clock().now_ns(), later + 2 * second);
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(job.read(i)) << i;
}

/// Blocks could not leave while an extent was to be given back: they leave when it is used again.
TEST(EnginePatience, blocks_leave_again_when_memory_is_short_no_more) {
  HostRoom room;
  room.extent_bytes = 16u << 20;
  SimulationOptions options = with_ill_store();
  options.with_store = false;
  options.host_bytes = 32u << 20;  // two extents
  options.host_room = &room;
  Job* waiting = nullptr;
  options.on_wait = [&] {
    if (waiting) waiting->make_host_memory();
  };
  Job job(options);
  waiting = &job;
  uint64_t count = 0;
  while (count < 6) {  // three there, three in host memory
    const Result<void> made = job.make(100 + count++);
    ASSERT_TRUE(made) << describe(made.error());
  }
  ASSERT_GT(job.sim.engine(0).stats().host_used_bytes, options.host_bytes / 2);
  room.left_bytes = 0;
  (void)job.sim.engine(0).give_host_back(true);
  const Result<void> refused = job.make(0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::out_of_memory);
  (void)job.sim.engine(0).give_host_back(false);
  const Result<void> made = job.make(100 + count);
  EXPECT_TRUE(made) << describe(made.error());
}

TEST(EnginePatience, though_all_host_memory_was_given_back_a_block_comes_back) {
  HostRoom room;
  room.extent_bytes = 16u << 20;
  SimulationOptions options = with_ill_store();
  options.host_room = &room;
  Job* waiting = nullptr;
  uint64_t begin = UINT64_MAX;
  options.on_wait = [&] {
    if (!waiting) return;
    waiting->make_host_memory();
    ASSERT_TRUE(waiting->sim.clock().now_ns() < begin ||
                waiting->sim.clock().now_ns() - begin < 10 * second);
  };
  Job job(options);
  waiting = &job;
  job.fill_all();
  room.left_bytes = 0;
  for (int round = 0; round < 100; ++round) {
    (void)job.sim.engine(0).give_host_back(true);
    job.settle();
  }
  EXPECT_EQ(job.sim.engine(0).stats().host_used_bytes, 0u);
  begin = job.sim.clock().now_ns();
  const Result<void> read = job.read(0);
  EXPECT_TRUE(read) << describe(read.error());
}

/// Where the system has no host memory for its way back a block is not lost: nothing is wrong with
/// what the store has.
TEST(EnginePatience, without_host_memory_it_is_out_of_memory_and_not_lost) {
  HostRoom room;
  room.extent_bytes = 16u << 20;
  SimulationOptions options = with_ill_store();
  options.host_room = &room;
  Job* waiting = nullptr;
  options.on_wait = [&] {
    if (waiting) waiting->make_host_memory();
  };
  Job job(options);
  waiting = &job;
  job.fill_all();
  room.left_bytes = 0;
  for (int round = 0; round < 100; ++round) {
    (void)job.sim.engine(0).give_host_back(true);
    job.settle();
  }
  ASSERT_EQ(job.sim.engine(0).stats().host_used_bytes, 0u);
  (void)::mallopt(M_MMAP_THRESHOLD, 64 << 20);
  (void)::mallopt(M_TRIM_THRESHOLD, 256 << 20);
  std::free(std::calloc(32 << 20, 1));  // for the process's own needs meanwhile
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlimit none{pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &none), 0);
  const Result<void> refused = job.read(0);
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::out_of_memory) << describe(refused.error());
  for (const char* words : {"2MiB", "firn_host", "the system refused host memory for staging"})
    EXPECT_NE(refused.error().text.find(words), std::string::npos) << refused.error().text;
  EXPECT_GE(job.waited_ns, options.io_patience_ns);
  EXPECT_LE(job.waited_ns, options.io_patience_ns + second + 100 * ms);
  EXPECT_EQ(job.sim.engine(0).stats().lost_blocks, 0u);
  room.left_bytes = UINT64_MAX;
  const Result<void> read = job.read(0);
  EXPECT_TRUE(read) << describe(read.error());
  EXPECT_EQ(job.sim.engine(0).stats().lost_blocks, 0u);
}

TEST(EnginePatience, nobody_is_held_up_by_who_does_not_read_stderr) {
  SimulationOptions options = with_ill_store();
  options.io_patience_ns = 0;
  options.store.reads_fail_from_ns = ill_from;
  options.store.reads_fail_until_ns = UINT64_MAX;
  Job job(options);
  job.fill_all();
  job.wait_until(ill_from);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int before = ::dup(STDERR_FILENO);
  ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
  size_t filled = 0;
  const std::string some(4096, '.');
  for (ssize_t n; (n = ::write(ends[1], some.data(), some.size())) > 0;) filled += n;
  ::fcntl(ends[1], F_SETFL, 0);
  ::dup2(ends[1], STDERR_FILENO);
  EXPECT_FALSE(job.read(0));  // it is said that it is lost, though nobody reads
  std::string text(filled, '\0');
  for (size_t have = 0; have < filled;)
    have += static_cast<size_t>(std::max<ssize_t>(::read(ends[0], &text[have], filled - have), 0));
  job.sim.engine(0).pump();
  text.resize(4096);
  text.resize(static_cast<size_t>(std::max<ssize_t>(::read(ends[0], text.data(), text.size()), 0)));
  ::dup2(before, STDERR_FILENO);
  for (const int fd : {before, ends[0], ends[1]}) ::close(fd);
  EXPECT_NE(text.find("cannot be read and counts as LOST"), std::string::npos) << text;
}
