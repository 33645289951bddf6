// The exact search on the few items near the peak; all others by first fit, large ones first, into
// the room that is left. Keeps a Search for every nearness asked for.
// Owns: these. Locks: none (one per thread).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "allocator/layout/problem.h"
#include "allocator/layout/search.h"

namespace firn::layout {

class CoreSearch {
 public:
  /// Keeps references.
  CoreSearch(const Problem& problem, const std::atomic<bool>& stop);

  /// Searches the items alive where the load is at least `nearness` (0 to 1) of the problem's, for
  /// a layout of all of at most `height`. `none` holds for all items, as they include these.
  /// `gave_up` also if the others find no room, or more than items_max are near the peak.
  Search::Outcome attempt(uint64_t height, double nearness, uint64_t seed, uint64_t number);
  std::span<const uint64_t> offsets() const { return offsets_; }

  static constexpr size_t items_max = 3000;

 private:
  struct Core {
    std::vector<uint32_t> items, others;  // the latter large ones first
    Problem problem;
    std::unique_ptr<Search> search;       // null: too many
  };
  Core& core_of(double nearness);

  const Problem& problem_;
  const std::atomic<bool>& stop_;
  const Sections sections_;
  std::map<double, Core> cores_;
  std::vector<uint64_t> offsets_;
};

}  // namespace firn::layout
