// Locks: none.
#include "allocator/order/sequence.h"

#include <algorithm>
#include <utility>

namespace firn::order {

Sequence::Sequence(const Graph& graph, std::vector<uint32_t> ops)
    : graph_(&graph), ops_(std::move(ops)), positions_(ops_.size()), last_(graph.storages(), 0),
      before_(ops_.size() + 1, graph.at_start) {
  rescan(0, size());
}

uint32_t Sequence::worst(uint32_t begin, uint32_t end) const {
  uint32_t worst = begin;
  for (uint32_t position = begin; position < end; ++position)
    if (during(position) > during(worst)) worst = position;
  return worst;
}

void Sequence::replace(uint32_t begin, std::span<const uint32_t> ops) {
  std::copy(ops.begin(), ops.end(), ops_.begin() + begin);
  rescan(begin, begin + static_cast<uint32_t>(ops.size()));
}

void Sequence::rescan(uint32_t begin, uint32_t end) {
  for (uint32_t position = begin; position < end; ++position) {
    positions_[ops_[position]] = position;
    for (const uint32_t storage : graph_->names[ops_[position]])
      if (last_[storage] < end) last_[storage] = position;
  }
  uint64_t alive = before_[begin];
  for (uint32_t position = begin; position < end; ++position) {
    before_[position] = alive;
    alive += graph_->made_bytes[ops_[position]];
    for (const uint32_t storage : graph_->names[ops_[position]])
      if (last_[storage] == position) alive -= graph_->bytes[storage];
  }
  before_[end] = alive;
}

}  // namespace firn::order
