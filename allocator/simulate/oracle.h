// Firn's own policy with the period given in advance: what is lost by finding it out.
#pragma once

#include <span>
#include <vector>

#include "allocator/engine/baseline.h"
#include "allocator/lifetimes/events.h"

namespace firn::simulate {

/// An event that will come: of the block around `pointer`, or, where that is null, of a block yet
/// to be allocated, by a number of the caller's choice (bytes: of its allocation; at least 1 MiB).
struct Coming {
  lifetimes::EventKind kind;
  const void* pointer;
  uint32_t number;
  uint64_t bytes;
};

class Oracle final : public Baseline {
 public:
  /// This is what comes next, again and again. The engine learns it at its next pump().
  void foresee(std::vector<Coming> coming) { coming_ = std::move(coming); }
  Then learn(EngineTiers& tiers, bool happened) override;

 private:
  std::vector<Coming> coming_;
};

}  // namespace firn::simulate
