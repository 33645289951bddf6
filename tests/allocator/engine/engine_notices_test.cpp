// What a program is told whose memory comes and goes without end, on the software GPU's virtual
// clock.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "firn/slow_work.h"
#include "tests/allocator/heard.h"
#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;
using namespace std::chrono_literals;

namespace {
constexpr size_t block_bytes = 8u << 20;
constexpr int blocks = 8;

SimulationOptions short_of_memory(Policy policy) {
  SimulationOptions options;
  options.budget_bytes = 32u << 20;
  options.host_bytes = 16u << 20;
  options.policy = policy;
  options.notices = true;
  options.store.read_bytes_s = options.store.write_bytes_s = 64e6;
  return options;
}

struct Loop {
  Simulation sim;
  std::vector<void*> all;

  explicit Loop(const SimulationOptions& options) : sim(options) {
    for (int i = 0; i < blocks; ++i) {
      Result<void*> made = sim.engine(0).allocate(block_bytes, nullptr);
      EXPECT_TRUE(made) << describe(made.error());
      all.push_back(*made);
      sim.engine(0).release(sim.engine(0).hold_new(*made, "aten::ones"), nullptr);
      use(*made);
    }
  }
  void use(void* block) {
    Result<Hold> hold = sim.engine(0).touch(block, nullptr, Access::write);
    ASSERT_TRUE(hold) << describe(hold.error());
    sim.engine(0).release(*hold, nullptr);
  }
  void run(int rounds) {
    for (int round = 0; round < rounds; ++round)
      for (void* block : all) use(block);
  }
  std::vector<std::string> notices() { return sim.engine(0).stats().notices; }
};

class Notices : public ::testing::TestWithParam<Policy> {};
}  // namespace

TEST_P(Notices, thrash_is_named_once_with_its_block_and_what_would_end_it) {
  ::testing::internal::CaptureStderr();
  std::vector<std::string> said;
  {
    Loop loop(short_of_memory(GetParam()));
    loop.run(40);
    said = loop.notices();
  }
  const std::string text = ::testing::internal::GetCapturedStderr();
  ASSERT_FALSE(said.empty());
  const std::string& thrash = said.back();
  EXPECT_TRUE(thrash.starts_with("thrash: ")) << thrash;
  EXPECT_NE(thrash.find("8MiB"), std::string::npos) << thrash;
  EXPECT_NE(thrash.find("firn_budget:64MiB would stop the thrashing (the budget is 32MiB now)"),
            std::string::npos) << thrash;
  EXPECT_LE(said.size(), 2u);  // a storm first, and no more
  for (const std::string& each : said) {
    const size_t at = text.find("firn: device 0: " + each + "\n");
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_EQ(text.find(each, at + each.size()), std::string::npos) << text;
  }
  SimulationOptions enough = short_of_memory(GetParam());
  enough.budget_bytes = 64u << 20;
  Loop loop(enough);
  loop.run(40);
  EXPECT_TRUE(loop.notices().empty()) << loop.notices()[0];
  EXPECT_EQ(loop.sim.engine(0).stats().stalls, 0u);
}

TEST_P(Notices, who_waits_is_asked_for_meanwhile) {
  Loop loop(short_of_memory(GetParam()));
  std::vector<bool> asked;
  Engine& engine = loop.sim.engine(0);
  Wait last;
  Heard heard;
  heard.on_storm = [&](bool now) { asked.push_back(now); };
  heard.on_wait = [&](const Wait& wait) {
    last = wait;
    return nullptr;
  };
  engine.observe(&heard);
  for (int round = 0; round < 40 && loop.notices().size() < 2; ++round)
    for (void* block : loop.all) {
      last = {};
      loop.use(block);
      if (last.ns > 0)
        engine.waited({.name = "aten::add_", .site = "loop.py:7 in step", .waits = 1,
                       .ns = last.ns, .longest = last});
      if (!asked.empty() && round < 4) engine.made_by(block, "loop.py:3 in <module>");
    }
  EXPECT_EQ(asked, (std::vector{true, false}));
  const std::string thrash = loop.notices().back();
  EXPECT_NE(thrash.find("in aten::add_, loop.py:7 in step ("), std::string::npos) << thrash;
  EXPECT_NE(thrash.find("a block of 8MiB (allocated by "), std::string::npos) << thrash;
}

/// Everything comes back once, slowly: that is no thrash.
TEST(Notice, one_pass_is_a_storm) {
  SimulationOptions options = short_of_memory(Policy::age);
  options.store.read_bytes_s = options.store.write_bytes_s = 12e6;
  Loop loop(options);
  loop.run(1);
  ASSERT_EQ(loop.notices().size(), 1u);
  EXPECT_TRUE(loop.notices()[0].starts_with("fault storm: ")) << loop.notices()[0];
}

TEST(Notice, nobody_is_told_unless_it_was_asked_for) {
  SimulationOptions options = short_of_memory(Policy::age);
  options.notices = false;
  Loop loop(options);
  loop.run(40);
  EXPECT_TRUE(loop.notices().empty());
}

// A disk that hangs for a while: whoever waits is told, once; all goes on when it is back.
TEST_P(Notices, a_store_that_does_not_answer_is_said_once) {
  SimulationOptions options = short_of_memory(GetParam());
  options.store.latency_ns = 31'000'000'000;
  ::testing::internal::CaptureStderr();
  std::vector<std::string> trouble;
  {
    Loop loop(options);
    for (void* block : loop.all) loop.use(block);
    trouble = loop.sim.engine(0).stats().trouble;
  }
  const std::string text = ::testing::internal::GetCapturedStderr();
  const std::string words = "of a spill file has had no answer for 30 s";
  EXPECT_EQ(std::count_if(trouble.begin(), trouble.end(), [&](const std::string& each) {
    return each.find("a read " + words) != std::string::npos;
  }), 1) << text;
  EXPECT_NE(text.find("firn_dir"), std::string::npos) << text;
}

// Whoever looks on sees a long wait grow, not all of it when it is over.
TEST_P(Notices, a_wait_counts_while_it_lasts) {
  Engine* engine = nullptr;
  uint64_t longest = 0, waited = 0, waits = 0, since = 0, shrunk = 0;
  SimulationOptions options = short_of_memory(GetParam());
  options.notices = false;
  options.store.latency_ns = 31'000'000'000;
  options.on_wait = [&] {
    if (!engine) return;
    const EngineStats s = engine->stats();
    shrunk += s.stall_ns < waited;
    if (s.stalls != waits) since = s.stall_ns;
    waits = s.stalls;
    waited = s.stall_ns;
    longest = std::max(longest, waited - since);
  };
  Loop loop(options);
  engine = &loop.sim.engine(0);
  const uint64_t before = engine->stats().stall_ns;
  const uint64_t begun = loop.sim.clock().now_ns();
  for (void* block : loop.all) loop.use(block);
  EXPECT_GE(longest, 30'000'000'000u);
  EXPECT_EQ(shrunk, 0u);
  EXPECT_LE(engine->stats().stall_ns - before, loop.sim.clock().now_ns() - begun);  // counted once
  EXPECT_GE(engine->stats().stall_ns, waited);
  engine = nullptr;
}

/// What is said of a job whose iteration repeats, where a decision may take that long.
std::vector<std::string> said_of_decisions(Policy policy, std::chrono::nanoseconds patience) {
  std::vector<std::string> lines;
  SlowWorks works(patience, [&](const std::string& line) { lines.push_back(line); });
  SimulationOptions options = short_of_memory(policy);
  options.slow_works = &works;
  Loop loop(options);
  loop.run(40);
  return lines;
}

TEST(Notice, a_decision_that_takes_long_is_said_once) {
  const std::vector<std::string> lines = said_of_decisions(Policy::lifetime, 0ns);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].starts_with("planning evictions and prefetches on device 0, for an "
                                   "iteration of ")) << lines[0];
  EXPECT_NE(lines[0].find("firn_policy:age"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("takes long"), std::string::npos) << lines[0];
}

TEST(Notice, a_decision_within_the_time_is_not_said) {
  EXPECT_TRUE(said_of_decisions(Policy::lifetime, 1h).empty());
  EXPECT_TRUE(said_of_decisions(Policy::age, 0ns).empty());  // nothing is decided ahead
}

INSTANTIATE_TEST_SUITE_P(Policies, Notices, ::testing::Values(Policy::age, Policy::lifetime),
                         [](const auto& info) {
                           return info.param == Policy::age ? "age" : "lifetime";
                         });
