// Locks: none.
#include "allocator/order/flow.h"

#include <algorithm>

namespace firn::order {

void Flow::reset(uint32_t nodes) {
  arcs_.clear();
  first_.assign(nodes, far);
}

uint32_t Flow::add_node() {
  first_.push_back(far);
  return static_cast<uint32_t>(first_.size() - 1);
}

void Flow::add(uint32_t from, uint32_t to, uint64_t capacity) {
  arcs_.push_back({to, first_[from], capacity});
  first_[from] = static_cast<uint32_t>(arcs_.size() - 1);
  arcs_.push_back({from, first_[to], 0});
  first_[to] = static_cast<uint32_t>(arcs_.size() - 1);
}

uint64_t Flow::run() {
  uint64_t flow = 0;
  while (levels()) flow += block();
  return flow;
}

bool Flow::levels() {
  level_.assign(first_.size(), far);
  queue_.assign(1, source);
  level_[source] = 0;
  for (size_t at = 0; at < queue_.size(); ++at) {
    const uint32_t node = queue_[at];
    for (uint32_t arc = first_[node]; arc != far; arc = arcs_[arc].next) {
      const uint32_t to = arcs_[arc].to;
      if (arcs_[arc].left == 0 || level_[to] != far) continue;
      level_[to] = level_[node] + 1;
      queue_.push_back(to);
    }
  }
  work_ += queue_.size();
  return level_[sink] != far;
}

uint64_t Flow::block() {
  at_ = first_;
  uint64_t flow = 0;
  path_.clear();
  uint32_t node = source;
  for (;; ++work_) {
    if (node == sink) {
      uint64_t most = ~uint64_t{0};
      for (const uint32_t arc : path_) most = std::min(most, arcs_[arc].left);
      flow += most;
      size_t keep = path_.size();
      for (size_t i = path_.size(); i-- > 0;) {
        arcs_[path_[i]].left -= most;
        arcs_[path_[i] ^ 1].left += most;
        if (arcs_[path_[i]].left == 0) keep = i;
      }
      node = arcs_[path_[keep] ^ 1].to;
      path_.resize(keep);
      continue;
    }
    uint32_t& arc = at_[node];
    while (arc != far && (arcs_[arc].left == 0 || level_[arcs_[arc].to] != level_[node] + 1))
      arc = arcs_[arc].next;
    if (arc != far) {
      path_.push_back(arc);
      node = arcs_[arc].to;
    } else if (path_.empty()) {
      return flow;
    } else {
      node = arcs_[path_.back() ^ 1].to;
      at_[node] = arcs_[at_[node]].next;
      path_.pop_back();
    }
  }
}

std::vector<uint8_t> Flow::widest() const {
  std::vector<uint8_t> to_sink(first_.size(), 0);
  std::vector<uint32_t> queue = {sink};
  to_sink[sink] = 1;
  for (size_t at = 0; at < queue.size(); ++at)
    for (uint32_t arc = first_[queue[at]]; arc != far; arc = arcs_[arc].next) {
      const uint32_t from = arcs_[arc].to;
      if (arcs_[arc ^ 1].left == 0 || to_sink[from]) continue;
      to_sink[from] = 1;
      queue.push_back(from);
    }
  std::vector<uint8_t> near(first_.size());
  for (size_t node = 0; node < near.size(); ++node) near[node] = !to_sink[node];
  return near;
}

}  // namespace firn::order
