// firn_verify: what changes in host memory, or on its way there or back, is never handed over.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr size_t block_bytes = 2u << 20;  // one piece
constexpr size_t blocks_made = 6;         // more than half of host memory: written, with a store

/// The driver with a fault of the way in, one of the way out, and a record of where copies out went.
struct Link {
  static inline std::map<CUdeviceptr, std::byte*> copies;  // by device address
  static inline bool flips_in = false;                     // the next copy in
  static inline CUdeviceptr strays = 0, stray = 0;  // the next copy out of the one has the other's
  static inline decltype(Driver::memcpy_dtoh_async) out = nullptr;
  static inline decltype(Driver::memcpy_htod_async) in = nullptr;
  static inline std::vector<std::byte> wrong;

  static CUresult copy_out(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
    copies[from] = static_cast<std::byte*>(to);
    if (from == strays) {
      strays = 0;
      from = stray;
    }
    return out(to, from, bytes, stream);
  }
  static CUresult copy_in(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
    if (!std::exchange(flips_in, false)) return in(to, from, bytes, stream);
    wrong.assign(static_cast<const std::byte*>(from), static_cast<const std::byte*>(from) + bytes);
    wrong[bytes / 2] ^= std::byte{16};
    return in(to, wrong.data(), bytes, stream);
  }
};

struct Job {
  Job(bool sums, bool verify, bool with_store, uint64_t writes_fail_until_ns = 0)
      : Job(options(sums, verify, with_store, writes_fail_until_ns)) {}
  /// With `strays` the copy of the first block to host memory has the bytes of the last.
  explicit Job(const SimulationOptions& options, bool strays = false) : sim(options) {
    EXPECT_TRUE(sim.ok()) << sim.error;
    Link::copies.clear();
    Link::flips_in = false;
    Link::strays = 0;
    Link::out = std::exchange(sim.driver().memcpy_dtoh_async, Link::copy_out);
    Link::in = std::exchange(sim.driver().memcpy_htod_async, Link::copy_in);
    Engine& engine = sim.engine(0);
    for (uint64_t i = 0; i < blocks_made; ++i) {
      Result<void*> made = engine.allocate(block_bytes, nullptr);
      EXPECT_TRUE(made);
      blocks.push_back(*made);
      Result<Hold> hold = engine.touch(*made, nullptr, Access::write);
      EXPECT_TRUE(hold);
      EXPECT_TRUE(sim.fill(0, *made, block_bytes, 100 + i, nullptr));
      engine.release(*hold, nullptr);
    }
    if (strays) {
      Link::strays = reinterpret_cast<CUdeviceptr>(blocks.front());
      Link::stray = reinterpret_cast<CUdeviceptr>(blocks.back());
    }
    engine.spill_all();
    for (int i = 0; i < 1000 && (engine.pump() || engine.busy()); ++i) sim.clock().wait(100'000);
  }  // (0.1 s: a slow disk still writes)

  static SimulationOptions options(bool sums, bool verify, bool with_store,
                                   uint64_t writes_fail_until_ns) {
    SimulationOptions options;
    options.sums = sums;
    options.verify = verify;
    options.with_store = with_store;
    options.host_bytes = 16u << 20;
    options.store.writes_fail_until_ns = writes_fail_until_ns;
    return options;
  }

  Result<void> read(size_t i) {
    Result<Hold> hold = sim.engine(0).touch(blocks[i], nullptr, Access::read);
    if (!hold) return hold.error();
    EXPECT_TRUE(sim.verify(0, blocks[i], block_bytes, 100 + i, nullptr));
    sim.engine(0).release(*hold, nullptr);
    sim.synchronize();
    return {};
  }

  std::byte& in_host_memory(size_t i) {
    return Link::copies.at(reinterpret_cast<CUdeviceptr>(blocks[i]))[block_bytes / 2];
  }

  EngineStats stats() { return sim.engine(0).stats(); }

  Simulation sim;
  std::vector<void*> blocks;
};

}  // namespace

TEST(EngineSums, what_changes_in_host_memory_is_lost_loudly_and_the_others_go_on) {
  Job job(true, false, false);
  job.in_host_memory(1) ^= std::byte{1};
  const Result<void> read = job.read(1);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::lost);
  EXPECT_NE(read.error().text.find("host memory has changed"), std::string::npos)
      << read.error().text;
  for (const size_t other : {0, 2, 3}) EXPECT_TRUE(job.read(other));
  EXPECT_EQ(Simulation::wrong_bytes, 0u);
  EXPECT_EQ(job.stats().lost_blocks, 1u);
  EXPECT_EQ(job.stats().host_corrupt, 1u);
  EXPECT_FALSE(job.read(1));
}

TEST(EngineSums, without_them_it_is_handed_over) {
  Job job(false, false, false);
  job.in_host_memory(1) ^= std::byte{1};
  EXPECT_TRUE(job.read(1));
  EXPECT_GT(Simulation::wrong_bytes, 0u);
  EXPECT_EQ(job.stats().summed_bytes, 0u);
}

TEST(EngineSums, what_the_store_has_too_is_read_from_there) {
  Job job(true, false, true);
  const uint64_t read_before = job.stats().store_read_bytes;
  for (size_t i = 0; i < blocks_made; ++i) job.in_host_memory(i) ^= std::byte{1};
  for (size_t i = 0; i < blocks_made; ++i) {
    const Result<void> read = job.read(i);
    ASSERT_TRUE(read) << describe(read.error());
  }
  EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
  EXPECT_EQ(job.stats().lost_blocks, 0u);
  EXPECT_EQ(job.stats().host_corrupt, blocks_made);
  EXPECT_EQ(job.stats().store_read_bytes - read_before, blocks_made * block_bytes);
}

TEST(EngineSums, what_changes_before_it_is_written_is_found_by_the_store) {
  Job job(true, false, true, 1'000'000'000);  // there is time to change
  ASSERT_LT(job.sim.clock().now_ns(), 900'000'000u);
  ASSERT_EQ(job.sim.store()->stats().slots_in_use, 0u);
  for (size_t i = 0; i < blocks_made; ++i) job.in_host_memory(i) ^= std::byte{4};
  while (job.sim.clock().now_ns() < 3'000'000'000) {
    job.sim.engine(0).pump();
    job.sim.clock().wait(10'000'000);
  }
  EXPECT_EQ(job.stats().host_corrupt, blocks_made);
  EXPECT_EQ(job.sim.store()->stats().slots_in_use, 0u);  // nothing wrong is kept as right
  EXPECT_STREQ(job.sim.engine(0).find(job.blocks[3])->state, "hosted");
  const Result<void> read = job.read(3);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::lost);
}

/// Bytes being written may be right on the disk, whatever host memory holds by now.
TEST(EngineSums, nothing_is_lost_before_its_write_is_over) {
  std::byte* changed = nullptr;
  SimulationOptions options = Job::options(true, false, true, 0);
  options.store.write_bytes_s = 1e7;  // 200 ms each
  options.on_wait = [&] {  // (the store looks whether its bytes stay what they are)
    if (changed) *std::exchange(changed, nullptr) ^= std::byte{2};
  };
  Job job(options);
  const auto state = [&](size_t i) { return std::string(job.sim.engine(0).find(job.blocks[i])->state); };
  ASSERT_GT(job.sim.store()->in_flight(0), 0u);
  size_t written = 0;
  while (written < blocks_made && state(written) != "hosted") ++written;
  ASSERT_LT(written, blocks_made);
  changed = &job.in_host_memory(written);
  *changed ^= std::byte{2};
  const Result<void> read = job.read(written);
  EXPECT_TRUE(read) << describe(read.error());
  EXPECT_EQ(job.stats().lost_blocks, 0u);
  EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
}

TEST(EngineSums, what_came_to_the_device_wrong_comes_again) {
  Job job(true, true, false);
  Link::flips_in = true;
  const Result<void> read = job.read(2);
  ASSERT_TRUE(read) << describe(read.error());
  EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
  EXPECT_EQ(job.stats().device_corrupt, 1u);
  EXPECT_EQ(job.stats().lost_blocks, 0u);
}

TEST(EngineSums, of_host_memory_only_say_nothing_of_the_way_in) {
  Job job(true, false, false);
  Link::flips_in = true;
  EXPECT_TRUE(job.read(2));
  EXPECT_GT(Simulation::wrong_bytes, 0u);
}

/// It is compared with the device's before that is unmapped, and copied out again.
TEST(EngineSums, what_came_to_host_memory_wrong_comes_again) {
  for (const bool with_store : {false, true}) {
    Job job(Job::options(true, true, with_store, 0), true);
    EXPECT_EQ(Link::strays, 0u) << "it was copied";
    for (size_t i = 0; i < blocks_made; ++i) {
      const Result<void> read = job.read(i);
      ASSERT_TRUE(read) << describe(read.error());
    }
    EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
    EXPECT_EQ(job.stats().unseen_writes, 1u);
    EXPECT_GE(job.stats().verified_bytes, blocks_made * block_bytes);
    EXPECT_EQ(job.stats().lost_blocks, 0u);
  }
}

TEST(EngineSums, of_host_memory_only_say_nothing_of_the_way_out) {
  Job job(Job::options(true, false, false, 0), true);
  EXPECT_EQ(Link::strays, 0u) << "it was copied";
  EXPECT_TRUE(job.read(0));
  EXPECT_GT(Simulation::wrong_bytes, 0u);
}
