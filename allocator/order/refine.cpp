// Locks: none.
#include "allocator/order/refine.h"

#include <algorithm>
#include <queue>
#include <utility>

namespace firn::order {

Refiner::Refiner(const Graph& graph, Turn& turn, uint64_t seed)
    : graph_(graph), turn_(turn), precedence_(graph), cutter_(graph, precedence_), random_(seed) {}

Refiner::Outcome Refiner::search(const Sequence& start, uint64_t peak, unsigned conflicts_max) {
  precedence_ = Precedence(graph_);
  supposed_ = false;
  best_ = start;
  uint64_t best_peak = start.peak();
  Sequence base = start;
  for (unsigned conflict = 0; conflict < conflicts_max; ++conflict) {
    Sequence sequence = base;
    const std::optional<Conflict> found = refine(sequence, peak);
    if (const uint64_t reached = sequence.peak(); reached < best_peak) {
      best_peak = reached;
      best_ = std::move(sequence);
    }
    if (best_peak <= peak) return Outcome::found;
    if (!found || turn_.over()) break;
    if (!learn(base, *found, peak)) return supposed_ ? Outcome::gave_up : Outcome::none;
  }
  return Outcome::gave_up;
}

uint64_t Refiner::cut(const Sequence& sequence, uint32_t begin, uint32_t end, uint32_t position,
                      Cutter::Side side) {
  const uint64_t least = cutter_.cut(sequence, begin, end, position, side);
  turn_.spend(cutter_.take_work());
  return least;
}

std::optional<Refiner::Conflict> Refiner::refine(Sequence& sequence, uint64_t peak) {
  std::priority_queue<Piece> pieces;
  splits_.clear();
  const auto add = [&](uint32_t begin, uint32_t end, uint32_t split) {
    if (begin < end) pieces.push({sequence.during(sequence.worst(begin, end)), begin, end, split});
  };
  const Cutter::Side side = random_() % 2 ? Cutter::Side::most : Cutter::Side::fewest;
  add(0, sequence.size(), nothing);
  while (!pieces.empty() && pieces.top().peak > peak && !turn_.over()) {
    const Piece piece = pieces.top();
    pieces.pop();
    const uint32_t worst = sequence.worst(piece.begin, piece.end);
    const uint32_t op = sequence[worst];
    const uint64_t least = cut(sequence, piece.begin, piece.end, worst, side);
    if (least > peak) return Conflict{op, piece.split};
    sequence.replace(piece.begin, cutter_.parted());
    const uint32_t at = piece.begin + cutter_.before();
    for (const bool before : {true, false}) {
      splits_.push_back({piece.split, op, before});
      const uint32_t split = static_cast<uint32_t>(splits_.size() - 1);
      before ? add(piece.begin, at, split) : add(at + 1, piece.end, split);
    }
  }
  return {};
}

bool Refiner::impossible(const Sequence& sequence, uint32_t first, uint32_t second,
                         uint64_t peak) {
  precedence_.add(first, second);
  const auto least = [&](uint32_t op) {
    return cut(sequence, 0, sequence.size(), sequence.position(op), Cutter::Side::fewest);
  };
  const bool above = least(first) > peak || least(second) > peak;
  precedence_.remove(first, second);
  return above;
}

bool Refiner::learn(Sequence& base, const Conflict& conflict, uint64_t peak) {
  struct Edge {
    uint32_t first, second;
  };
  std::vector<Edge> blamed;
  for (uint32_t at = conflict.split; at != nothing; at = splits_[at].parent) {
    const Split& split = splits_[at];
    blamed.push_back(split.before ? Edge{conflict.op, split.op} : Edge{split.op, conflict.op});
  }
  for (const Edge& edge : blamed) {
    if (turn_.over()) return true;
    if (!impossible(base, edge.first, edge.second, peak)) continue;
    // The opposite holds; where it cannot, no order is left.
    return put_in(base, edge.second, edge.first);
  }
  if (blamed.empty()) return false;  // too much is alive whatever is done
  supposed_ = true;
  for (const Edge& edge : blamed)
    if (put_in(base, edge.second, edge.first)) return true;
  return false;
}

bool Refiner::put_in(Sequence& base, uint32_t first, uint32_t second) {
  std::vector<uint8_t> needed(graph_.ops(), 0);
  std::vector<uint32_t> queue = {first};
  needed[first] = 1;
  for (size_t at = 0; at < queue.size(); ++at)
    precedence_.each_before(queue[at], [&](uint32_t other) {
      if (needed[other]) return;
      needed[other] = 1;
      queue.push_back(other);
    });
  if (needed[second]) return false;
  precedence_.add(first, second);
  const uint32_t begin = base.position(second), end = base.position(first);
  if (begin > end) return true;
  // Stable but for what has to move before second.
  std::vector<uint32_t> ops(base.ops().begin() + begin, base.ops().begin() + end + 1);
  std::stable_partition(ops.begin(), ops.end(), [&](uint32_t op) { return needed[op] != 0; });
  base.replace(begin, ops);
  return true;
}

}  // namespace firn::order
