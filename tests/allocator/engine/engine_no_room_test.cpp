// Out of memory says what would help, by what keeps the room away; and that helps.
#include <gtest/gtest.h>

#include <regex>

#include "allocator/runtime/config.h"
#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {
constexpr size_t MiB = 1u << 20;

SimulationOptions budget_16mib() {
  SimulationOptions o;
  o.budget_bytes = 16 * MiB;
  o.host_bytes = 64 * MiB;
  return o;
}

/// The advice when nothing is left for the last of these blocks; "" when there is room.
std::string advice(Engine& engine, std::initializer_list<size_t> blocks,
                   const std::function<void(void*)>& each = [](void*) {}) {
  for (const size_t bytes : blocks) {
    const Result<void*> block = engine.allocate(bytes, nullptr);
    if (!block) {
      EXPECT_EQ(block.error().code, Code::out_of_memory);
      const size_t at = block.error().text.find(". This would help: ");
      EXPECT_NE(at, std::string::npos) << block.error().text;
      return block.error().text.substr(at);
    }
    each(*block);
  }
  return "";
}

bool says(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

void use(Engine& engine, void* block) {
  Result<Hold> hold = engine.touch(block, nullptr, Access::write);
  ASSERT_TRUE(hold) << describe(hold.error());
  engine.release(*hold, nullptr);
}
}  // namespace

TEST(EngineNoRoom, the_budget_that_is_named_is_enough) {
  for (const size_t last : {6 * MiB, 9 * MiB, 30 * MiB}) {
    std::string text;
    {
      Simulation sim(budget_16mib());
      text = advice(sim.engine(0), {4 * MiB, 8 * MiB, last}, [&](void* block) {
        ASSERT_TRUE(sim.engine(0).pin(block, "a test's"));
      });
    }
    std::smatch found;
    ASSERT_TRUE(std::regex_search(text, found, std::regex("a firn_budget of (\\S+) or more")))
        << text;
    const Result<uint64_t> named = parse_size(found[1].str());
    ASSERT_TRUE(named) << text;
    SimulationOptions enough = budget_16mib();
    enough.budget_bytes = *named;
    Simulation again(enough);
    EXPECT_EQ(advice(again.engine(0), {4 * MiB, 8 * MiB, last}), "") << text;
  }
}

TEST(EngineNoRoom, what_is_held_is_an_operators) {
  Simulation sim(budget_16mib());
  std::vector<Hold> holds;
  const std::string text = advice(sim.engine(0), {12 * MiB, 20 * MiB}, [&](void* block) {
    holds.push_back(*sim.engine(0).touch(block, nullptr, Access::read));
  });
  EXPECT_TRUE(says(text, "smaller tensors in a single operator")) << text;
  EXPECT_FALSE(says(text, "firn_dir") || says(text, "firn_watch")) << text;
  for (const Hold& hold : holds) sim.engine(0).release(hold, nullptr);
}

TEST(EngineNoRoom, without_a_store_it_is_one) {
  SimulationOptions o = budget_16mib();
  o.with_store = false;
  o.host_bytes = 8 * MiB;
  Simulation sim(o);
  std::string text;
  for (int i = 0; i < 10 && text.empty(); ++i)
    text = advice(sim.engine(0), {6 * MiB}, [&](void* block) { use(sim.engine(0), block); });
  EXPECT_TRUE(says(text, ". This would help: firn_dir")) << text;
  EXPECT_FALSE(says(text, "smaller tensors")) << text;
}

TEST(EngineNoRoom, blocks_that_are_too_small_to_leave_are_named) {
  Simulation sim(budget_16mib());
  std::string text;
  for (int i = 0; i < 100 && text.empty(); ++i) text = advice(sim.engine(0), {512 * 1024});
  EXPECT_TRUE(says(text, "fewer tensors below 1 MiB")) << text;
  EXPECT_FALSE(says(text, "smaller tensors in a single operator")) << text;
}

TEST(EngineNoRoom, watching_from_the_start_is_named_where_it_is_not_done) {
  for (const double fraction : {0., .5}) {
    SimulationOptions o = budget_16mib();
    o.watch_fraction = fraction;
    Simulation sim(o);
    const std::string text = advice(sim.engine(0), {8 * MiB, 12 * MiB});
    EXPECT_EQ(says(text, "firn_watch:0"), fraction > 0) << text;
  }
}
