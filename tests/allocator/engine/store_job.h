// A job whose blocks go to a store, through host memory for little more than transfers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/allocator/engine/watched.h"

namespace firn::test {

inline constexpr uint64_t ms = 1'000'000;
inline constexpr size_t block_bytes = 6u << 20;  // three pieces

/// Host memory for little more than transfers: what leaves goes to the store.
inline SimulationOptions with_ill_store() {
  SimulationOptions options;
  options.budget_bytes = 18u << 20;
  options.host_bytes = 16u << 20;
  options.io_patience_ns = 5 * second;
  return options;
}

struct StoreJob {
  explicit StoreJob(const SimulationOptions& options) : sim(options) {
    EXPECT_TRUE(sim.ok()) << sim.error;
  }

  Result<void> make(uint64_t pattern) {
    Result<void*> made = sim.engine(0).allocate(block_bytes, nullptr);
    if (!made) return made.error();
    blocks.push_back(*made);
    Result<Hold> hold = sim.engine(0).touch(*made, nullptr, Access::write);
    if (!hold) return hold.error();
    EXPECT_TRUE(sim.fill(0, *made, block_bytes, pattern, nullptr));
    sim.engine(0).release(*hold, nullptr);
    return {};
  }

  Result<void> read(size_t i) {
    const uint64_t before = sim.clock().now_ns();
    Result<Hold> hold = sim.engine(0).touch(blocks[i], nullptr, Access::read);
    waited_ns = sim.clock().now_ns() - before;
    if (!hold) return hold.error();
    EXPECT_TRUE(sim.verify(0, blocks[i], block_bytes, 100 + i, nullptr));
    sim.engine(0).release(*hold, nullptr);
    sim.synchronize();
    EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
    return {};
  }

  /// Eight blocks where three fit; the first is in the store alone.
  void fill_all() {
    for (uint64_t i = 0; i < 8; ++i) {
      const Result<void> made = make(100 + i);
      ASSERT_TRUE(made) << describe(made.error());
    }
    settle();
    ASSERT_STREQ(sim.engine(0).find(blocks[0])->state, "spilled");
  }

  void settle() {
    while (sim.engine(0).pump() || sim.engine(0).busy()) {
      sim.clock().wait(ms);
      make_host_memory();
    }
  }
  void make_host_memory() {
    while (sim.engine(0).host_due() && sim.engine(0).prepare_host()) {}
  }

  void wait_until(uint64_t ns) {
    while (sim.clock().now_ns() < ns) {
      sim.engine(0).pump();
      sim.clock().wait(std::min(ns - sim.clock().now_ns(), 100 * ms));
    }
  }

  Simulation sim;
  std::vector<void*> blocks;
  uint64_t waited_ns = 0;
};

inline bool said(const EngineStats& stats, const char* words) {
  return std::any_of(stats.trouble.begin(), stats.trouble.end(), [&](const std::string& line) {
    return line.find(words) != std::string::npos;
  });
}

}  // namespace firn::test
