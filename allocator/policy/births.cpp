#include "allocator/policy/births.h"

#include <algorithm>

#include "allocator/lifetimes/decide.h"

namespace firn {

std::optional<Births::Coming> Births::coming(const Learner& learner, uint64_t ahead) const {
  const History::Upcoming coming = learner.history().upcoming(ahead);
  if (coming.kind != EventKind::allocate && coming.kind != EventKind::free) return std::nullopt;
  const std::optional<unsigned> stream = learner.stream_of(coming.identity);
  if (!stream || at_.placed(coming.identity, coming.bytes)) return std::nullopt;
  return Coming{coming.kind == EventKind::free, *stream, coming.bytes,
                size_class::pages(coming.bytes, at_.shared_most)};
}

bool Births::allocate_ahead(const Learner& learner, const std::vector<Block*>& parked,
                            const Make& make) {
  if (done_at_ == learner.history().now()) return false;
  kinds_.clear();
  bool any = false, enough = true;
  const uint64_t most = std::min(events_ahead, learner.history().period());
  for (uint64_t ahead = 1; ahead <= most && enough; ++ahead) {
    const std::optional<Coming> next = coming(learner, ahead);
    if (!next) continue;
    Kind& kind = kind_of(*next, parked);
    if (next->frees) {
      ++kind.ready;
    } else {
      if (kind.ready > 0)
        --kind.ready;
      else
        any |= enough = make(next->stream, next->bytes);
      if (enough) ++kind.claimed;
    }
  }
  if (enough) done_at_ = learner.history().now();
  return any;
}

Births::Kind& Births::kind_of(const Coming& coming, const std::vector<Block*>& parked) {
  for (Kind& kind : kinds_)
    if (kind.stream == coming.stream && kind.pages == coming.pages) return kind;
  Kind kind{coming.stream, coming.pages, 0, 0, 0};
  const unsigned size_class = size_class::of_pages(coming.pages);
  if (size_class < size_class::count) kind.ready = at_.ready(coming.stream, size_class);
  for (const Block* block : parked)
    if (block->stream == coming.stream && block->pages == coming.pages && block->segment == 0)
      ++kind.ready;
  return kinds_.emplace_back(kind);
}

/// For each kind, when the program will have used up one, two, ... of its ready blocks if no memory
/// changes its kind: as far as the coming period tells.
void Births::foresee_wants(const Learner& learner) {
  wants_.clear();
  wants_made_ = learner.history().now();
  const uint64_t period = learner.history().period();
  for (uint64_t ahead = 1; ahead <= period; ++ahead) {
    const std::optional<Coming> next = coming(learner, ahead);
    if (!next) continue;
    Wants& wants = wants_[{next->stream, next->pages}];
    if (next->frees) {
      --wants.balance;
    } else if (++wants.balance > static_cast<int64_t>(wants.at.size())) {
      wants.at.push_back(learner.history().now() + ahead);
    }
  }
}

void Births::begin_reclaiming(const Learner* learner, std::vector<Block*>& parked) {
  for (Kind& kind : kinds_) kind.spared = 0;
  std::sort(parked.begin(), parked.end(), [](const Block* a, const Block* b) {
    return a->age.load(std::memory_order_relaxed) > b->age.load(std::memory_order_relaxed);
  });
  if (!learner || !learner->history().known() || learner->history().period() == 0) return;
  const uint64_t now = learner->history().now();
  if (now < wants_made_ || now - wants_made_ > learner->history().period() / wants_part)
    foresee_wants(*learner);
  for (auto& [kind, wants] : wants_) wants.ready = 0;
  for (Block* block : parked) {  // the youngest first: those are handed out first
    const auto wants = wants_.find({block->stream, block->pages});
    block->next_use = lifetimes::no_use;
    if (wants == wants_.end() || block->segment != 0) continue;
    const uint32_t before_it = wants->second.ready++;
    if (before_it < wants->second.at.size()) block->next_use = wants->second.at[before_it];
  }
  std::stable_sort(parked.begin(), parked.end(), [](const Block* a, const Block* b) FIRN_HELD {
    return a->next_use < b->next_use;
  });
}

bool Births::spared(const Block& block) {
  for (Kind& kind : kinds_) {
    if (kind.stream != block.stream || kind.pages != block.pages) continue;
    if (kind.spared == kind.claimed) return false;
    ++kind.spared;
    return true;
  }
  return false;
}

}  // namespace firn
