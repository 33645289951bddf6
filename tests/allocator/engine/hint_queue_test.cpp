// Seeded rows of hints on a few streams whose work ends at random, against a list that is searched
// from its beginning each time. FIRN_SEED=N runs one seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "allocator/engine/hint_queue.h"

using namespace firn;

namespace {

constexpr unsigned streams = 5;

/// In the place of Streams.
struct Ends {
  std::function<bool(Use)> over;
};

void run(unsigned seed) {
  SCOPED_TRACE("FIRN_SEED=" + std::to_string(seed) + " build/tests/allocator/hint_queue_test");
  std::mt19937 random(seed);
  const auto below = [&](unsigned n) {
    return std::uniform_int_distribution<unsigned>(0, n - 1)(random);
  };
  struct Known {
    Use place;
    uint64_t number;
  };
  std::vector<Known> known;  // as given
  std::array<uint64_t, streams> open{}, done{};
  open.fill(1);
  HintQueue queue;
  uint64_t number = 0;
  for (int step = 0; step < 300; ++step) {
    const unsigned stream = below(streams);
    switch (below(4)) {
      case 0: open[stream] += below(2); [[fallthrough]];
      case 1: {
        const Use place = Use::make(stream, open[stream]);
        ASSERT_TRUE(queue.add(place, {Hint::Kind::cold, nullptr, 0, {}, ++number}));
        known.push_back({place, number});
        break;
      }
      case 2: done[stream] = std::min(open[stream], done[stream] + below(3)); break;
      default: {
        const Ends ends{[&](Use use) { return use.epoch() <= done[use.stream()]; }};
        std::array<std::vector<uint64_t>, streams> due, expected;
        for (const Known& one : known)
          if (ends.over(one.place)) expected[one.place.stream()].push_back(one.number);
        const auto stream_of = [&](uint64_t wanted) {
          return std::find_if(known.begin(), known.end(), [&](const Known& one) {
                   return one.number == wanted;
                 })->place.stream();
        };
        while (const std::optional<Hint> hint = queue.next_due(ends))
          due[stream_of(hint->last_use)].push_back(hint->last_use);
        EXPECT_EQ(due, expected) << "step " << step;
        std::erase_if(known, [&](const Known& one) { return ends.over(one.place); });
      }
    }
    ASSERT_EQ(queue.size(), known.size());
    ASSERT_EQ(queue.empty(), known.empty());
  }
}

}  // namespace

TEST(HintQueue, is_as_a_list_that_is_searched) {
  if (const char* seed = std::getenv("FIRN_SEED"))
    return run(static_cast<unsigned>(std::atoi(seed)));
  for (unsigned seed = 1; seed <= 300 && !testing::Test::HasFailure(); ++seed) run(seed);
}

TEST(HintQueue, takes_so_many_and_no_more) {
  HintQueue queue;
  const Hint hint{Hint::Kind::prefetch, nullptr, 0, {}, 0};
  for (size_t i = 0; i < HintQueue::most; ++i)
    ASSERT_TRUE(queue.add(Use::make(i % 7, 1), hint));
  EXPECT_FALSE(queue.add(Use::make(1, 1), hint));
  EXPECT_TRUE(queue.next_due(Ends{[](Use use) { return use.stream() == 3; }}));
  EXPECT_TRUE(queue.add(Use::make(1, 1), hint));
  queue.clear();
  EXPECT_TRUE(queue.empty());
  EXPECT_FALSE(queue.next_due(Ends{[](Use) { return true; }}));
}
