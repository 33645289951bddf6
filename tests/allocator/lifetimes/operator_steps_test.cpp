// Operators as steps of a rehearsal, and what is alive at each: by hand.
#include "allocator/lifetimes/operator_steps.h"

#include <gtest/gtest.h>

#include <vector>

using namespace firn;
using namespace firn::lifetimes;

namespace {

using Values = std::vector<uint32_t>;
using Kind = Step::Kind;

/// 0 and 1 persistent, of 3 and 2 pages; 2 small; 3 and 4 transient, of 2 and 5 pages.
Operators program() {
  Operators program;
  program.values = {{290, true}, {200, true}, {99, false}, {150, false}, {500, false}};
  program.add({.ns = 7}, Values{0, 2}, Values{3});
  program.add({.ns = 8}, Values{3}, Values{3, 4});
  program.add({.ns = 9}, Values{4}, Values{1});
  return program;
}

TEST(OperatorSteps, holds_what_it_is_given_before_it_makes_results) {
  const OperatorSteps steps(program(), 100, 100);
  ASSERT_EQ(steps.items.size(), 4u);
  EXPECT_EQ(steps.items[0].size, 3u);
  EXPECT_EQ(steps.items[0].again, 0u);
  EXPECT_TRUE(steps.items[2].born);
  std::vector<std::pair<Kind, uint32_t>> found;
  for (const Step& step : steps.steps) found.push_back({step.kind, step.item});
  EXPECT_EQ(found, (std::vector<std::pair<Kind, uint32_t>>{
                       {Kind::read, 0}, {Kind::birth, 2}, {Kind::write, 2},
                       {Kind::write, 2}, {Kind::birth, 3}, {Kind::write, 3}, {Kind::death, 2},
                       {Kind::read, 3}, {Kind::write, 1}, {Kind::death, 3}}));
  EXPECT_EQ(steps.before_ns, (std::vector<uint64_t>{0, 0, 0, 7, 0, 0, 8, 0, 0, 9}));
  EXPECT_EQ(steps.after_ns, 0u);
}

TEST(OperatorSteps, persistent_values_start_where_there_is_room) {
  OperatorSteps steps(program(), 100, 100);
  steps.start_warm(2, 2);
  EXPECT_EQ(steps.items[0].on_device, 2u);
  EXPECT_EQ(steps.items[1].on_device, 0u);
  EXPECT_EQ(steps.items[2].on_device, 0u);
  EXPECT_EQ(steps.in_store, (std::vector<uint64_t>{0, 1, 0, 0}));
}

TEST(OperatorSteps, alive_from_the_first_use_to_the_last) {
  EXPECT_EQ(alive_bytes(program(), 0), (std::vector<uint64_t>{739, 1140, 990}));
  EXPECT_EQ(alive_bytes(program(), 300), (std::vector<uint64_t>{0, 500, 500}));
}

}  // namespace
