// The least that is alive when one operator runs, against all sets of operators that may have run;
// and sequences against the naive reading.
#include "allocator/order/cut.h"

#include <numeric>

#include "allocator/order/flow.h"
#include "tests/allocator/order/instance.h"

using namespace firn::order;

namespace {

Sequence given(const Graph& graph) {
  std::vector<uint32_t> ops(graph.ops());
  std::iota(ops.begin(), ops.end(), 0u);
  return Sequence(graph, std::move(ops));
}

TEST(Cut, IsTheLeastOfAllSets) {
  for (uint64_t seed : seeds(150)) {
    SCOPED_TRACE(replay(seed));
    const Program program = random_program(seed, 9);
    const Graph graph = make_graph(program.storages, program.ops);
    const Precedence precedence(graph);
    Cutter cutter(graph, precedence);
    const Sequence sequence = given(graph);
    const std::vector<uint64_t> least = Naive(program).least_alive();
    for (uint32_t op = 0; op < graph.ops(); ++op)
      for (const auto side : {Cutter::Side::fewest, Cutter::Side::most}) {
        EXPECT_EQ(graph.base + cutter.cut(sequence, 0, sequence.size(), op, side), least[op]);
        // The order that it proposes has it.
        const Sequence parted(graph, cutter.parted());
        EXPECT_EQ(parted[cutter.before()], op);
        EXPECT_EQ(graph.base + parted.during(cutter.before()), least[op]);
        Naive(program).peak(parted.ops());
      }
    if (HasFailure()) return;
  }
}

TEST(Cut, OfAPieceKeepsTheRest) {
  for (uint64_t seed : seeds(150)) {
    SCOPED_TRACE(replay(seed));
    std::mt19937_64 random(seed);
    const Program program = random_program(seed, 40);
    const Graph graph = make_graph(program.storages, program.ops);
    const Precedence precedence(graph);
    Cutter cutter(graph, precedence);
    Sequence sequence = given(graph);
    for (int i = 0; i < 10; ++i) {
      const uint32_t begin = static_cast<uint32_t>(random() % sequence.size());
      const uint32_t end = begin + 1 + static_cast<uint32_t>(random() % (sequence.size() - begin));
      const uint32_t position = begin + static_cast<uint32_t>(random() % (end - begin));
      const uint32_t op = sequence[position];
      const uint64_t during = sequence.during(position);
      const uint64_t least = cutter.cut(sequence, begin, end, position, Cutter::Side::fewest);
      EXPECT_LE(least, during);
      sequence.replace(begin, cutter.parted());
      EXPECT_EQ(sequence.during(sequence.position(op)), least);
      // Brought up to date as if it were new.
      const Sequence again(graph, sequence.ops());
      for (uint32_t at = 0; at <= sequence.size(); ++at)
        EXPECT_EQ(sequence.before(at), again.before(at));
      EXPECT_EQ(graph.base + sequence.peak(), Naive(program).peak(sequence.ops()));
    }
    if (HasFailure()) return;
  }
}

TEST(Flow, IsAsLargeAsTheLeastCut) {
  for (uint64_t seed : seeds(200)) {
    SCOPED_TRACE(replay(seed));
    std::mt19937_64 random(seed);
    const uint32_t nodes = 2 + static_cast<uint32_t>(random() % 7);
    struct Arc {
      uint32_t from, to;
      uint64_t capacity;
    };
    std::vector<Arc> arcs;
    Flow flow;
    flow.reset(nodes);
    for (uint32_t i = 0; i < 3 * nodes; ++i) {
      const Arc arc = {static_cast<uint32_t>(random() % nodes),
                       static_cast<uint32_t>(random() % nodes), random() % 9};
      if (arc.from == arc.to) continue;
      arcs.push_back(arc);
      flow.add(arc.from, arc.to, arc.capacity);
    }
    uint64_t least = ~uint64_t{0};
    for (uint32_t set = 0; set < 1u << nodes; ++set) {
      if (!(set & 1) || (set & 2)) continue;
      uint64_t cut = 0;
      for (const Arc& arc : arcs)
        if ((set >> arc.from & 1) && !(set >> arc.to & 1)) cut += arc.capacity;
      least = std::min(least, cut);
    }
    EXPECT_EQ(flow.run(), least);
    // Both of its cuts are least ones, one within the other.
    const std::vector<uint8_t> wide = flow.widest();
    uint64_t near_cut = 0, wide_cut = 0;
    for (const Arc& arc : arcs) {
      if (flow.near_source(arc.from) && !flow.near_source(arc.to)) near_cut += arc.capacity;
      if (wide[arc.from] && !wide[arc.to]) wide_cut += arc.capacity;
    }
    EXPECT_EQ(near_cut, least);
    EXPECT_EQ(wide_cut, least);
    for (uint32_t node = 0; node < nodes; ++node)
      EXPECT_LE(flow.near_source(node), wide[node] != 0);
  }
}

}  // namespace
