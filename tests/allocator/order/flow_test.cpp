// Flow against all cuts of small random graphs, each tried: its maximum flow is the least cut, and
// the two cuts that it names are the least ones with fewest and most nodes on the source's side.
//
//   FIRN_SEED=7 order_flow_test     that graph alone
#include "allocator/order/flow.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace firn::order {
namespace {

constexpr uint64_t graphs = 2000;

struct Arc {
  uint32_t from, to;
  uint64_t capacity;
};

struct Graph {
  uint32_t nodes;
  std::vector<Arc> arcs;
};

/// Also graphs without a way to the sink, arcs of no capacity, parallel ones and ones back.
Graph draw(std::mt19937_64& random) {
  Graph graph{static_cast<uint32_t>(2 + random() % 10), {}};
  const uint64_t widest = random() % 2 ? 4 : 1'000'000;  // few capacities: many least cuts
  for (uint64_t left = random() % (3 * graph.nodes); left > 0; --left) {
    const auto from = static_cast<uint32_t>(random() % graph.nodes);
    const auto to = static_cast<uint32_t>(random() % graph.nodes);
    if (from == to) continue;
    graph.arcs.push_back({from, to, random() % 6 ? random() % widest : Flow::unlimited});
  }
  return graph;
}

struct Cuts {
  uint64_t least = Flow::unlimited;
  uint32_t fewest = 0, most = 0;  // bits: the source's side, in every least cut and in any
};

/// The least cuts are closed under intersection and union.
Cuts try_all(const Graph& graph) {
  Cuts cuts;
  for (uint32_t near = 0; near < 1u << graph.nodes; ++near) {
    const auto has = [&](uint32_t node) { return (near >> node & 1) != 0; };
    if (!has(Flow::source) || has(Flow::sink)) continue;
    uint64_t capacity = 0;
    for (const Arc& arc : graph.arcs) {
      if (!has(arc.from) || has(arc.to)) continue;
      capacity = arc.capacity == Flow::unlimited ? Flow::unlimited : capacity + arc.capacity;
      if (capacity >= Flow::unlimited) break;
    }
    if (capacity > cuts.least || capacity >= Flow::unlimited) continue;
    if (capacity < cuts.least) cuts = {capacity, near, near};
    cuts.fewest &= near;
    cuts.most |= near;
  }
  return cuts;
}

TEST(Flow, IsTheLeastOfAllCuts) {
  uint64_t seed = 1, end = graphs;
  const char* const one = std::getenv("FIRN_SEED");
  if (one) seed = end = std::strtoull(one, nullptr, 10);
  Flow flow;  // used again and again
  uint64_t tried = 0, several = 0;
  for (; seed <= end; ++seed) {
    SCOPED_TRACE("FIRN_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const Graph graph = draw(random);
    const Cuts cuts = try_all(graph);
    if (cuts.least == Flow::unlimited) continue;  // no use of a flow without an end
    const auto at_once = static_cast<uint32_t>(2 + random() % (graph.nodes - 1));
    flow.reset(at_once);
    for (uint32_t node = at_once; node < graph.nodes; ++node) ASSERT_EQ(flow.add_node(), node);
    for (const Arc& arc : graph.arcs) flow.add(arc.from, arc.to, arc.capacity);
    ASSERT_EQ(flow.run(), cuts.least);
    const std::vector<uint8_t> widest = flow.widest();
    ASSERT_EQ(widest.size(), graph.nodes);
    for (uint32_t node = 0; node < graph.nodes; ++node) {
      ASSERT_EQ(flow.near_source(node), (cuts.fewest >> node & 1) != 0) << "node " << node;
      ASSERT_EQ(widest[node] != 0, (cuts.most >> node & 1) != 0) << "node " << node;
    }
    ++tried;
    several += cuts.fewest != cuts.most;
  }
  if (!one) {
    EXPECT_GT(tried, graphs / 2);
    EXPECT_GT(several, graphs / 8);
  }
}

}  // namespace
}  // namespace firn::order
