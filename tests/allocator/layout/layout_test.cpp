// solve() and examine() against what they promise, on random instances from seeds.
#include "allocator/layout/layout.h"

#include "tests/allocator/layout/instance.h"

using namespace firn::layout;
using namespace std::chrono_literals;

namespace {

Layout solved(std::span<const Buffer> buffers, Options options = {}) {
  EXPECT_FALSE(examine(buffers).trouble);
  const Layout layout = solve(buffers, options);
  EXPECT_EQ(layout.load, examine(buffers).load.bytes);
  EXPECT_GE(layout.height, layout.load);
  expect_valid(buffers, layout.offsets, layout.height);
  return layout;
}

TEST(Layout, TinyInstancesReachTheOptimum) {
  for (uint64_t seed : seeds(400)) {
    SCOPED_TRACE(replay(seed));
    const std::vector<Buffer> buffers = random_buffers(seed, 7);
    const Layout layout = solved(buffers, {.seed = seed, .threads = 1});
    const uint64_t optimum = BruteForce(buffers).height();
    EXPECT_EQ(layout.height, optimum);
    EXPECT_TRUE(layout.optimal);
    if (HasFailure()) return;
  }
}

TEST(Layout, AnOptimumAboveTheLoadIsProven) {
  for (uint64_t seed : seeds(5)) {
    SCOPED_TRACE(replay(seed));
    const std::vector<Buffer> buffers = above_load(seed);
    const uint64_t optimum = BruteForce(buffers).height();
    const Layout layout = solved(buffers, {.deadline = 20s, .threads = 1 + unsigned(seed % 2)});
    EXPECT_GT(optimum, layout.load);
    EXPECT_EQ(layout.height, optimum);
    EXPECT_TRUE(layout.optimal);
  }
}

TEST(Layout, EveryLayoutIsValid) {
  for (uint64_t seed : seeds(150)) {
    SCOPED_TRACE(replay(seed));
    const std::vector<Buffer> buffers = random_buffers(seed, 300);
    solved(buffers, {.deadline = 5ms, .seed = seed, .threads = 1 + unsigned(seed % 3)});
    if (HasFailure()) return;
  }
}

TEST(Layout, DissectionsAreSolvedExactly) {
  for (uint64_t seed : seeds(20)) {
    SCOPED_TRACE(replay(seed));
    const std::vector<Buffer> buffers = dissection(seed, 300, 1 << 20);
    const Layout layout = solved(buffers, {.deadline = 20s, .seed = seed});
    EXPECT_EQ(layout.height, uint64_t{1} << 20);
  }
}

TEST(Layout, LargeInstancesComeNearTheLoad) {
  std::mt19937_64 random(7);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 4000; ++i) {
    const uint64_t lower = random() % 40'000;
    buffers.push_back({lower, lower + 1 + random() % 400, 1 + random() % 10'000});
  }
  const Layout layout = solved(buffers, {.deadline = 2s});
  EXPECT_LE(static_cast<double>(layout.height), 1.02 * static_cast<double>(layout.load));
}

TEST(Layout, OneThreadAndASeedGiveTheSameLayout) {
  for (uint64_t seed : seeds(10)) {
    SCOPED_TRACE(replay(seed));
    const std::vector<Buffer> buffers = dissection(seed, 600, 1 << 20);
    const Options options = {.deadline = 60s, .seed = seed, .threads = 1};
    EXPECT_EQ(solved(buffers, options).offsets, solved(buffers, options).offsets);
  }
}

TEST(Layout, SeedsGiveDifferentLayouts) {
  const std::vector<Buffer> buffers = dissection(1, 600, 1 << 20);
  const Layout one = solved(buffers, {.deadline = 60s, .seed = 1, .threads = 1});
  bool different = false;
  for (uint64_t seed = 2; seed < 8; ++seed)
    different |= solved(buffers, {.deadline = 60s, .seed = seed, .threads = 1}).offsets !=
                 one.offsets;
  EXPECT_TRUE(different);
}

TEST(Layout, TheDeadlineIsKept) {
  // Not to be solved: random, so that the load is out of reach or unproven.
  std::mt19937_64 random(3);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 1500; ++i) {
    const uint64_t lower = random() % 100;
    buffers.push_back({lower, lower + 1 + random() % 30, 1 + random() % 1'000'003});
  }
  const auto begin = std::chrono::steady_clock::now();
  const Layout layout = solved(buffers, {.deadline = 200ms, .threads = 2});
  const auto took = std::chrono::steady_clock::now() - begin;
  if (!layout.optimal) {
    EXPECT_GE(took, 200ms);
  }
  EXPECT_LE(took, 1500ms);
}

TEST(Layout, ADeadlineOfNothingStillGivesALayout) {
  for (uint64_t seed : seeds(20)) {
    SCOPED_TRACE(replay(seed));
    solved(random_buffers(seed, 500), {.deadline = 0ns, .threads = 1});
  }
}

TEST(Layout, TheCapacityEndsTheSearch) {
  const std::vector<Buffer> buffers = dissection(5, 2000, 1 << 20);
  const auto begin = std::chrono::steady_clock::now();
  const Layout layout = solved(buffers, {.capacity = uint64_t{3} << 20, .deadline = 60s});
  EXPECT_LE(layout.height, uint64_t{3} << 20);
  EXPECT_LE(std::chrono::steady_clock::now() - begin, 20s);
}

TEST(Layout, PartsThatShareNoTimeAreSolvedForThemselves) {
  std::vector<Buffer> buffers;
  for (uint64_t part = 0; part < 40; ++part)
    for (Buffer buffer : dissection(part + 1, 60, 1 << 16)) {
      buffer.lower += part << 16;
      buffer.upper += part << 16;
      buffers.push_back(buffer);
    }
  EXPECT_EQ(solved(buffers, {.deadline = 20s}).height, uint64_t{1} << 16);
}

TEST(Layout, NothingAndOne) {
  EXPECT_EQ(solved({}).height, 0u);
  const std::vector<Buffer> one = {{5, 6, size_max}};
  EXPECT_EQ(solved(one).height, size_max);
}

TEST(Examine, SaysWhatIsWrong) {
  using Kind = Trouble::Kind;
  const auto trouble = [](std::vector<Buffer> buffers) { return examine(buffers).trouble; };
  const Buffer good = {0, 1, 1};
  EXPECT_FALSE(trouble({good, good}));
  EXPECT_EQ(trouble({good, {3, 3, 1}})->kind, Kind::lifetime);
  EXPECT_EQ(trouble({good, {3, 2, 1}})->buffer, 1u);
  EXPECT_EQ(trouble({{0, 1, 0}})->kind, Kind::size);
  EXPECT_EQ(trouble({{0, 1, size_max + 1}})->kind, Kind::size);
  const Buffer half = {0, 2, size_max / 2};
  EXPECT_FALSE(trouble({half, half}));
  EXPECT_EQ(trouble({half, half, {1, 3, 1}})->kind, Kind::load);
  EXPECT_EQ(trouble({half, half, {1, 3, 1}})->buffer, 0u);
  EXPECT_FALSE(trouble({half, {2, 3, 1}}));
}

TEST(Examine, TheLoadAndItsTime) {
  const std::vector<Buffer> buffers = {{0, 10, 5}, {3, 4, 2}, {4, 6, 2}, {5, 7, 1}, {8, 9, 3}};
  const Load load = examine(buffers).load;
  EXPECT_EQ(load.bytes, 8u);
  EXPECT_EQ(load.time, 5u);
  EXPECT_EQ(load.buffer, 3u);
}

}  // namespace
