// A broken check: its words, on the process's stderr, from threads of both kinds.
#include "firn/check.h"

#include <gtest/gtest.h>

#include <thread>

#include "firn/descriptor.h"

namespace firn {
namespace {

TEST(Check, whoever_keeps_it_hears_nothing) {
  int looked = 0;
  FIRN_CHECK(++looked == 1, "%d", looked);
  EXPECT_EQ(looked, 1) << "the condition is looked at once";
}

TEST(CheckDeathTest, says_where_and_what_and_the_values) {
  const int have = 3;
  EXPECT_DEATH(FIRN_CHECK(have == 4, "%d of %s", have, "four"),
               "^firn: .*check_test.cpp:[0-9]+: broken: have == 4: 3 of four\n$");
  // (A condition is text, not a format.)
  EXPECT_DEATH(FIRN_CHECK(have % 2 == 0, "odd"), "broken: have % 2 == 0: odd");
}

TEST(CheckDeathTest, is_heard_from_a_thread_with_a_table_of_its_own) {
  const auto breaks = [] {
    std::thread([] {
      const bool taken = take_empty_table();
      FIRN_CHECK(taken != has_own_table(), "taken: %d", taken);
    }).join();
  };
  EXPECT_DEATH(breaks(), "broken: taken != has_own_table\\(\\): taken: [01]");
}

}  // namespace
}  // namespace firn
