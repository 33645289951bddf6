// What examine() refuses, and the graph's edges against a naive reading.
#include "allocator/order/graph.h"

#include "tests/allocator/order/instance.h"

using namespace firn::order;

namespace {

using Kind = Trouble::Kind;
constexpr Storage temporary = {8, Life::made}, weight = {8, Life::throughout},
                  batch = {8, Life::from_start};

std::optional<Trouble> trouble(std::vector<Storage> storages, std::vector<Op> ops) {
  return examine(storages, ops);
}

TEST(Examine, TakesWhatIsRight) {
  EXPECT_FALSE(trouble({}, {}));
  EXPECT_FALSE(trouble({temporary, weight, batch}, {{{1, 2}, {0}, {}}, {{0}, {}, {1}}}));
  // What is alive before the start is written by an operator that says it makes it.
  EXPECT_FALSE(trouble({weight}, {{{0}, {}, {}}, {{}, {0}, {}}, {{}, {0}, {}}}));
  EXPECT_FALSE(trouble({temporary}, {}));
}

TEST(Examine, SaysWhatIsWrong) {
  EXPECT_EQ(trouble({temporary}, {{{0}, {}, {}}})->kind, Kind::not_made);
  EXPECT_EQ(trouble({temporary}, {{{}, {}, {}}, {{}, {}, {0}}})->op, 1u);
  const auto twice = trouble({temporary}, {{{}, {0}, {}}, {{}, {0}, {}}});
  EXPECT_EQ(twice->kind, Kind::made_twice);
  EXPECT_EQ(twice->op, 1u);
  const auto early = trouble({temporary}, {{{0}, {}, {}}, {{}, {0}, {}}});
  EXPECT_EQ(early->kind, Kind::too_early);
  EXPECT_EQ(early->op, 0u);
  EXPECT_EQ(trouble({{bytes_max, Life::made}, {1, Life::made}}, {{{}, {0, 1}, {}}})->kind,
            Kind::bytes);
}

TEST(Examine, NamesACycle) {
  // 1 needs 3, 3 needs 2, 2 needs 1; 0 and 4 are beside it.
  const auto found = trouble({temporary, temporary, temporary, temporary, temporary},
                             {{{}, {0}, {}},
                              {{0, 3}, {1}, {}},
                              {{1}, {2}, {}},
                              {{2}, {3}, {}},
                              {{3}, {4}, {}}});
  ASSERT_EQ(found->kind, Kind::cycle);
  std::vector<uint32_t> cycle = found->cycle;
  std::rotate(cycle.begin(), std::find(cycle.begin(), cycle.end(), 1u), cycle.end());
  EXPECT_EQ(cycle, (std::vector<uint32_t>{1, 2, 3}));
}

TEST(Graph, EdgesKeepReadsAndWritesInOrder) {
  for (uint64_t seed : seeds(200)) {
    SCOPED_TRACE(replay(seed));
    const Program program = random_program(seed, 12);
    // All that is before, by way of others too: the naive reading lists every pair.
    std::vector<std::set<uint32_t>> before(program.ops.size());
    for (const auto& [from, to] : dependencies(program.storages, program.ops)) {
      EXPECT_LT(from, to);
      before[to].insert(from);
    }
    for (uint32_t op = 0; op < before.size(); ++op)
      for (const uint32_t other : std::set<uint32_t>(before[op]))
        before[op].insert(before[other].begin(), before[other].end());
    EXPECT_EQ(before, Naive(program).all_before());
  }
}

}  // namespace
