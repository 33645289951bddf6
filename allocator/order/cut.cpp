// Locks: none.
#include "allocator/order/cut.h"

#include <algorithm>
#include <utility>

namespace firn::order {

Cutter::Cutter(const Graph& graph, const Precedence& precedence)
    : graph_(graph), precedence_(precedence), where_(graph.ops(), Where::undecided),
      node_(graph.ops(), 0), seen_(graph.storages(), 0) {}

Cutter::Where Cutter::where_runs(const Sequence& sequence, uint32_t begin, uint32_t end,
                                 uint32_t op) const {
  const uint32_t position = sequence.position(op);
  if (position < begin) return Where::sooner;
  return position >= end ? Where::later : where_[op];
}

void Cutter::spread(const Sequence& sequence, uint32_t begin, uint32_t end, uint32_t op,
                    Where where) {
  const auto visit = [&](uint32_t other) {
    const uint32_t position = sequence.position(other);
    if (position < begin || position >= end || where_[other] != Where::undecided) return;
    where_[other] = where;
    queue_.push_back(other);
  };
  queue_.assign(1, op);
  for (size_t at = 0; at < queue_.size(); ++at) {
    if (where == Where::sooner)
      precedence_.each_before(queue_[at], visit);
    else
      precedence_.each_after(queue_[at], visit);
  }
}

void Cutter::decide(const Sequence& sequence, uint32_t begin, uint32_t end, uint32_t op) {
  for (uint32_t at = begin; at < end; ++at) where_[sequence[at]] = Where::undecided;
  spread(sequence, begin, end, op, Where::sooner);
  where_[op] = Where::later;
  spread(sequence, begin, end, op, Where::later);
  uint32_t nodes = 2;
  for (uint32_t at = begin; at < end; ++at)
    if (where_[sequence[at]] == Where::undecided) node_[sequence[at]] = nodes++;
  flow_.reset(nodes);
  for (uint32_t at = begin; at < end; ++at) {
    const uint32_t free = sequence[at];
    if (where_[free] != Where::undecided) continue;
    precedence_.each_before(free, [&](uint32_t other) {
      if (where_runs(sequence, begin, end, other) == Where::undecided)
        flow_.add(node_[free], node_[other], Flow::unlimited);
    });
  }
}

void Cutter::add_storage(uint32_t storage, Where made, bool later) {
  const uint64_t bytes = graph_.bytes[storage];
  const uint32_t from = made == Where::sooner ? Flow::source : node_[graph_.maker[storage]];
  if (later) {
    if (made == Where::undecided) flow_.add(from, Flow::sink, bytes);
  } else if (namers_.size() == 1) {
    if (node_[namers_[0]] != from) flow_.add(from, node_[namers_[0]], bytes);
  } else if (!namers_.empty()) {
    const uint32_t node = flow_.add_node();
    flow_.add(from, node, bytes);
    for (const uint32_t op : namers_)
      if (node_[op] != from) flow_.add(node, node_[op], Flow::unlimited);
  }
}

uint64_t Cutter::take_work() {
  const uint64_t all = looked_ + flow_.work();
  return all - std::exchange(taken_, all);
}

uint64_t Cutter::cut(const Sequence& sequence, uint32_t begin, uint32_t end, uint32_t position,
                     Side side) {
  const uint32_t op = sequence[position];
  looked_ += end - begin;
  decide(sequence, begin, end, op);
  uint64_t alive = sequence.before(begin);
  ++cut_;
  for (uint32_t at = begin; at < end; ++at)
    for (const uint32_t storage : graph_.names[sequence[at]]) {
      if (seen_[storage] == cut_) continue;
      seen_[storage] = cut_;
      const uint32_t maker = graph_.maker[storage];
      const bool early = maker == nothing || sequence.position(maker) < begin;
      const Where made = early ? Where::sooner : where_[maker];
      if (early) alive -= graph_.bytes[storage];
      if (made == Where::later) continue;
      bool later = false;
      namers_.clear();
      for (const uint32_t other : graph_.named_by[storage]) {
        const Where there = where_runs(sequence, begin, end, other);
        if (there == Where::later) later = true;
        if (there == Where::undecided) namers_.push_back(other);
      }
      if (later && made == Where::sooner) alive += graph_.bytes[storage];
      add_storage(storage, made, later);
    }
  alive += flow_.run() + graph_.made_bytes[op];

  std::vector<uint8_t> wide;
  if (side == Side::most) wide = flow_.widest();
  const auto sooner = [&](uint32_t other) {
    if (where_[other] != Where::undecided) return where_[other] == Where::sooner;
    return side == Side::most ? wide[node_[other]] != 0 : flow_.near_source(node_[other]);
  };
  parted_.clear();
  for (uint32_t at = begin; at < end; ++at)
    if (sooner(sequence[at])) parted_.push_back(sequence[at]);
  before_ = static_cast<uint32_t>(parted_.size());
  parted_.push_back(op);
  for (uint32_t at = begin; at < end; ++at)
    if (sequence[at] != op && !sooner(sequence[at])) parted_.push_back(sequence[at]);
  return alive;
}

}  // namespace firn::order
