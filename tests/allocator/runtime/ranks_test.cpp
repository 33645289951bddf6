// Whose directories are whose: properties over random machines, and the least distance by trying
// everything. What launchers say. Shares of host memory.
#include "allocator/runtime/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <random>
#include <set>

#include "allocator/runtime/machine_memory.h"

namespace firn {
namespace {

std::vector<std::vector<size_t>> all_ranks(unsigned ranks, size_t dirs,
                                           const Distances& distances) {
  std::vector<std::vector<size_t>> own;
  for (unsigned rank = 0; rank < ranks; ++rank)
    own.push_back(dirs_of_rank({rank, ranks}, dirs, distances));
  return own;
}

Distances random_distances(std::mt19937& random, unsigned ranks, size_t dirs) {
  Distances distances(ranks, std::vector<unsigned>(dirs));
  for (auto& row : distances)
    for (unsigned& each : row) each = 10 + 11 * (random() % 3);
  return distances;
}

TEST(DirsOfRank, AreEvenAndComplete) {
  for (unsigned seed = 1; seed <= 500; ++seed) {
    std::mt19937 random(seed);
    const unsigned ranks = 1 + random() % 9;
    const size_t dirs = 1 + random() % 9;
    const bool known = random() % 2;
    const auto own = all_ranks(ranks, dirs, known ? random_distances(random, ranks, dirs)
                                                  : Distances{});
    std::vector<unsigned> users(dirs, 0);
    for (const std::vector<size_t>& mine : own) {
      ASSERT_TRUE(std::is_sorted(mine.begin(), mine.end()));
      ASSERT_EQ(std::set<size_t>(mine.begin(), mine.end()).size(), mine.size());
      ASSERT_EQ(mine.size(), own[0].size()) << "one rank has more than another";
      ASSERT_FALSE(mine.empty());
      for (size_t dir : mine) {
        ASSERT_LT(dir, dirs);
        ++users[dir];
      }
    }
    const auto shared = static_cast<size_t>(std::count(users.begin(), users.end(), ranks));
    for (unsigned count : users) ASSERT_GT(count, 0u) << "a directory is nobody's";
    if (ranks > 1 && dirs >= ranks) {
      ASSERT_EQ(shared, dirs % ranks);
      ASSERT_EQ(std::count(users.begin(), users.end(), 1u), static_cast<long>(dirs - shared));
    } else if (dirs > 1 && ranks % dirs == 0) {
      for (unsigned count : users) ASSERT_EQ(count, ranks / dirs);
    } else {
      ASSERT_EQ(shared, dirs);
    }
  }
}

TEST(DirsOfRank, AsWrittenWhereNothingIsKnown) {
  using Own = std::vector<std::vector<size_t>>;
  EXPECT_EQ(all_ranks(2, 2, {}), (Own{{0}, {1}}));
  EXPECT_EQ(all_ranks(2, 4, {}), (Own{{0, 1}, {2, 3}}));
  EXPECT_EQ(all_ranks(2, 3, {}), (Own{{0, 2}, {1, 2}}));
  EXPECT_EQ(all_ranks(4, 2, {}), (Own{{0}, {0}, {1}, {1}}));
  EXPECT_EQ(all_ranks(3, 2, {}), (Own{{0, 1}, {0, 1}, {0, 1}}));
  EXPECT_EQ(all_ranks(1, 3, {}), (Own{{0, 1, 2}}));
  EXPECT_EQ(all_ranks(3, 1, {}), (Own{{0}, {0}, {0}}));
  const Distances same(4, std::vector<unsigned>(4, 10));
  EXPECT_EQ(all_ranks(4, 4, same), (Own{{0}, {1}, {2}, {3}}));
}

TEST(DirsOfRank, TheNearest) {
  // Two sockets: GPUs 0 and 1 on the first, the directories written the other way round.
  const Distances crossed{{21, 21, 10, 10}, {21, 21, 10, 10}, {10, 10, 21, 21}, {10, 10, 21, 21}};
  for (unsigned rank = 0; rank < 4; ++rank) {
    const std::vector<size_t> own = dirs_of_rank({rank, 4}, 4, crossed);
    ASSERT_EQ(own.size(), 1u);
    EXPECT_EQ(crossed[rank][own[0]], 10u) << rank;
  }
}

/// The least sum of distances with which rows can have columns, one to one, by trying everything.
uint64_t least_sum(const std::vector<std::vector<unsigned>>& cost) {
  std::vector<size_t> order(cost[0].size());
  std::iota(order.begin(), order.end(), size_t{0});
  uint64_t least = UINT64_MAX;
  do {
    uint64_t sum = 0;
    for (size_t row = 0; row < cost.size(); ++row) sum += cost[row][order[row]];
    least = std::min(least, sum);
  } while (std::next_permutation(order.begin(), order.end()));
  return least;
}

TEST(DirsOfRank, TheSumOfDistancesIsTheLeast) {
  for (unsigned seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    // Each rank one directory or several, or each directory several ranks; at most 7 to permute.
    const auto [ranks, dirs] =
        std::vector<std::pair<unsigned, size_t>>{{2, 2}, {3, 3}, {5, 5}, {2, 4}, {3, 6}, {4, 2},
                                                 {6, 3}, {6, 2}, {2, 6}, {7, 7}}[random() % 10];
    const Distances distances = random_distances(random, ranks, dirs);
    const size_t each_rank = std::max<size_t>(dirs / ranks, 1);
    const size_t each_dir = std::max<size_t>(ranks / dirs, 1);
    std::vector<std::vector<unsigned>> cost(ranks * each_rank,
                                            std::vector<unsigned>(dirs * each_dir));
    for (size_t row = 0; row < cost.size(); ++row)
      for (size_t column = 0; column < cost[row].size(); ++column)
        cost[row][column] = distances[row / each_rank][column / each_dir];
    uint64_t sum = 0;
    for (unsigned rank = 0; rank < ranks; ++rank)
      for (size_t dir : dirs_of_rank({rank, ranks}, dirs, distances)) sum += distances[rank][dir];
    ASSERT_EQ(sum, least_sum(cost)) << "seed " << seed;
  }
}

TEST(DirsOfRank, NonsenseIsEverything) {
  EXPECT_EQ(dirs_of_rank({7, 4}, 2, {}).size(), 2u);
  EXPECT_EQ(dirs_of_rank({0, 0}, 3, {}).size(), 3u);
  EXPECT_TRUE(dirs_of_rank({0, 2}, 0, {}).empty());
  EXPECT_EQ(dirs_of_rank({1, 2}, 2, {{10, 21}}), std::vector<size_t>{1});  // a row is missing
}

TEST(LocalRank, AsLaunchersSayIt) {
  const auto said = [](std::initializer_list<std::pair<const char*, const char*>> variables) {
    for (const char* name : {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"})
      ::unsetenv(name);
    for (const auto& [name, value] : variables) ::setenv(name, value, 1);
    const LocalRank who = local_rank();
    return std::pair{who.rank, who.ranks};
  };
  using Pair = std::pair<unsigned, unsigned>;
  EXPECT_EQ(said({}), (Pair{0, 1}));
  EXPECT_EQ(said({{"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", "8"}}), (Pair{3, 8}));
  EXPECT_EQ(said({{"LOCAL_RANK", "1"}, {"LOCAL_SIZE", "2"}}), (Pair{1, 2}));
  EXPECT_EQ(said({{"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}),
            (Pair{1, 4}));
  for (const char* nonsense : {"", "-1", "two", "2x", "99999999999999999999"}) {
    EXPECT_EQ(said({{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", nonsense}}), (Pair{0, 1}));
    EXPECT_EQ(said({{"LOCAL_RANK", nonsense}, {"LOCAL_WORLD_SIZE", "4"}}), (Pair{0, 1}));
  }
  EXPECT_EQ(said({{"LOCAL_RANK", "4"}, {"LOCAL_WORLD_SIZE", "4"}}), (Pair{0, 1}));
  EXPECT_EQ(said({{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1000000"}}), (Pair{0, 1}));
}

TEST(HostShare, TogetherHalfOfWhatIsThere) {
  constexpr uint64_t mib = 1u << 20, gib = 1u << 30;
  EXPECT_EQ(host_share_bytes(24 * gib, 1), 12 * gib);
  EXPECT_EQ(host_share_bytes(24 * gib, 2), 6 * gib);
  EXPECT_EQ(host_share_bytes(512 * gib, 1), 256 * gib);
  EXPECT_EQ(host_share_bytes(512 * gib, 8), 32 * gib);
  EXPECT_EQ(host_share_bytes(0, 1), 64 * mib);
  EXPECT_EQ(host_share_bytes(24 * gib, 0), 12 * gib);
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const uint64_t available = random() % (4096 * gib);
    const auto ranks = static_cast<unsigned>(1 + random() % 64);
    const uint64_t share = host_share_bytes(available, ranks);
    EXPECT_LE(share, host_share_bytes(available, 1));
    EXPECT_LE(share * ranks, std::max(available / 2, ranks * 64 * mib));
  }
}

}  // namespace
}  // namespace firn
