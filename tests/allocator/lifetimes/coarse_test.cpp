// Fewer operators that need as much: random programs joined, and one by hand.
#include "allocator/lifetimes/coarse.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "allocator/lifetimes/operator_steps.h"
#include "tests/allocator/lifetimes/meaning.h"

using namespace firn;
using namespace firn::lifetimes;
using namespace firn::program;

namespace {

using Values = std::vector<uint32_t>;

Values values(std::span<const uint32_t> from) { return {from.begin(), from.end()}; }

TEST(Coarse, a_value_stands_for_those_within) {
  Operators program;
  program.values = {{10, true}, {20, false}, {30, false}, {40, false}, {50, false}};
  program.add({.ns = 5}, Values{0}, Values{1});
  program.add({.ns = 5}, Values{1}, Values{2});  // 1 and 2: 50 bytes together
  program.add({.ns = 5}, Values{2}, Values{3});  // 2 and 3: 70 bytes, but 3 lives on
  program.add({.ns = 90}, Values{3}, Values{4});
  const Operators joined = coarse(program, 20, 1000, 1);
  ASSERT_EQ(joined.count(), 2u);
  EXPECT_EQ(joined.operators[0].ns, 15u);
  EXPECT_EQ(values(joined.reads(joined.operators[0])), Values{0});
  EXPECT_EQ(values(joined.writes(joined.operators[0])), (Values{3, 5}));
  EXPECT_EQ(joined.values[5].bytes, 50u);
  EXPECT_FALSE(joined.values[5].persistent);
  EXPECT_EQ(values(joined.reads(joined.operators[1])), Values{3});
  EXPECT_EQ(joined.operators[1].ns, 90u);
}

TEST(Coarse, limits_hold_and_nothing_is_lost) {
  for (uint64_t seed = first_seed(), end = seed + seeds(500); seed < end; ++seed) {
    SCOPED_TRACE(replay("lifetimes/coarse_test", seed));
    std::mt19937_64 random(seed);
    const Operators program = draw_operators({}, random);
    const uint64_t ns_most = 1 + random() % 400'000, bytes_most = (1 + random() % 200) << 20;
    const Operators joined = coarse(program, ns_most, bytes_most, 1);
    uint64_t ns = 0, joined_ns = 0;
    for (const Operator& one : program.operators) ns += one.ns;
    for (uint32_t j = 0; j < joined.count(); ++j) {
      const Operator& one = joined.operators[j];
      joined_ns += one.ns;
      const uint32_t begin = one.source,
                     end_of = j + 1 < joined.count() ? joined.operators[j + 1].source
                                                     : program.count();
      std::set<uint32_t> named;
      uint64_t bytes = 0;
      for (uint32_t i = begin; i < end_of; ++i)
        for (const uint32_t value : program.named(program.operators[i])) named.insert(value);
      for (const uint32_t value : named) bytes += program.values[value].bytes;
      if (end_of > begin + 1) {
        ASSERT_LE(one.ns, ns_most);
        ASSERT_LE(bytes, bytes_most);
      }
    }
    ASSERT_EQ(joined_ns, ns);
    // As much is alive at most, or more, by what a stretch has together.
    const auto most = [](const std::vector<uint64_t>& alive) {
      return *std::max_element(alive.begin(), alive.end());
    };
    const uint64_t before = most(alive_bytes(program, 0)), after = most(alive_bytes(joined, 0));
    ASSERT_GE(after, before);
    ASSERT_LE(after, before + bytes_most);
  }
}

}  // namespace
