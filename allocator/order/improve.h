// The best order so far and the bound, brought together by threads: cuts of single operators for
// the bound; greedy orders under budgets between the two; searches for orders of a given peak.
// Owns: both. Locks: one around shared data; never held during work.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>

#include "allocator/order/greedy.h"
#include "allocator/order/refine.h"
#include "allocator/order/sequence.h"
#include "allocator/order/stop.h"

namespace firn::order {

class Improver {
 public:
  /// Keeps a reference. `given` is the start; the best is never worse.
  Improver(const Graph& graph, Sequence given, uint64_t seed);

  /// Runs until the best is proven optimal, much work has improved nothing, or `end`. With one
  /// thread the same seed gives the same best, unless the deadline cuts it short.
  void improve(unsigned threads, Stop::Clock::time_point end);

  const Sequence& best() const { return best_; }
  /// No order has a lower peak (without graph.base, as everything here).
  uint64_t bound() const { return bound_.load(); }
  /// Another order, of the best's peak or higher, for each number.
  Sequence another(uint64_t number, Stop::Clock::time_point end) const;

 private:
  void work(unsigned threads, const std::function<void()>& job);
  void cut_each(const Stop& stop);
  void bisect(Greedy::Else otherwise, const Stop& stop);
  void search(Stop& stop, unsigned threads);
  uint64_t peak_to_try(uint64_t number) const;
  void take(const Sequence& sequence);
  void raise_bound(uint64_t bound);
  bool done() const { return bound_.load() >= peak_.load(); }
  void note_progress();

  const Graph& graph_;
  const Sequence given_;
  const uint64_t seed_;
  const Stop::Clock::time_point begin_;
  mutable std::atomic<uint64_t> work_{0};  // see Turn
  std::vector<uint32_t> to_cut_;       // positions of given_, the most promising first
  std::atomic<size_t> next_cut_{0};    // of to_cut_
  std::atomic<uint64_t> bound_, peak_, next_search_{0};
  std::atomic<uint64_t> progress_{0};  // work_ when something improved last
  std::mutex mutex_;                   // guards best_
  Sequence best_;
};

}  // namespace firn::order
