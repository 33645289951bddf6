// Versions of values: by hand, and against a walk through random programs.
#include "allocator/lifetimes/versions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "tests/allocator/lifetimes/meaning.h"

using namespace firn;
using namespace firn::lifetimes;
using namespace firn::program;

namespace {

using Numbers = std::vector<uint32_t>;

Numbers numbers(std::span<const uint32_t> from) { return {from.begin(), from.end()}; }

TEST(Versions, of_a_value_written_whole_in_place_and_in_part) {
  Operators program;
  program.values = {{1, true}, {1, false}};
  program.add({}, Numbers{0}, Numbers{1});     // whole, for it is new
  program.add({}, Numbers{1}, Numbers{1});     // in place
  program.add({}, Numbers{}, Numbers{1, 0});   // in part, for all that is known
  const Versions versions(program);
  EXPECT_EQ(versions.count(), 6u);             // 0 and 1 of value 0, 2 to 5 of value 1
  EXPECT_EQ(numbers(versions.read(0)), Numbers{0});
  EXPECT_EQ(numbers(versions.made(0)), Numbers{3});
  EXPECT_EQ(numbers(versions.read(1)), Numbers{3});
  EXPECT_EQ(numbers(versions.made(1)), Numbers{4});
  EXPECT_EQ(numbers(versions.read(2)), (Numbers{4, 0}));
  EXPECT_EQ(numbers(versions.made(2)), (Numbers{5, 1}));
  EXPECT_TRUE(versions.unwritten(2));
  EXPECT_FALSE(versions.unwritten(0));
  EXPECT_EQ(versions.overwritten(3), 1u);
  EXPECT_EQ(versions.overwritten(0), 2u);
  EXPECT_EQ(versions.overwritten(5), none);
  EXPECT_EQ(versions.overwritten(1), none);    // the next number is another value's
  EXPECT_EQ(versions.before(1, 0), 2u);
  EXPECT_EQ(versions.before(1, 2), 4u);
  EXPECT_EQ(versions.before(1, 3), 5u);
  EXPECT_EQ(numbers(versions.uses(0)), (Numbers{0, 2}));
}

TEST(Versions, one_for_each_write_of_random_programs) {
  for (uint64_t seed = first_seed(), end = seed + seeds(200); seed < end; ++seed) {
    SCOPED_TRACE(replay("lifetimes/versions_test", seed));
    std::mt19937_64 random(seed);
    const Operators program = draw_operators({}, random);
    const Versions versions(program);
    std::map<uint32_t, uint32_t> now;  // per value: its version, by what was written so far
    std::map<uint32_t, Numbers> uses;
    for (uint32_t value = 0; value < program.values.size(); ++value)
      now[value] = versions.before(value, 0);
    for (uint32_t i = 0; i < program.count(); ++i) {
      const Operator& one = program.operators[i];
      const auto read = versions.read(i), made = versions.made(i);
      for (size_t r = 0; r < one.reads; ++r) ASSERT_EQ(read[r], now[program.reads(one)[r]]);
      for (size_t w = 0; w < one.writes; ++w) {
        const uint32_t value = program.writes(one)[w];
        ASSERT_EQ(made[w], now[value] + 1);
        ASSERT_EQ(versions.value(made[w]), value);
        ASSERT_EQ(versions.maker(made[w]), i);
        ASSERT_EQ(versions.overwritten(made[w] - 1), i);
        now[value] = made[w];
      }
      for (const auto& [value, version] : now) ASSERT_EQ(versions.before(value, i + 1), version);
      for (const uint32_t value : program.named(one))
        if (uses[value].empty() || uses[value].back() != i) uses[value].push_back(i);
    }
    for (const auto& [value, at] : uses) ASSERT_EQ(numbers(versions.uses(value)), at);
  }
}

}  // namespace
