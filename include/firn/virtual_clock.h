// The Clock of simulations: the software GPU's virtual clock, together with a simulated store.
#pragma once

#include <memory>

#include "firn/clock.h"
#include "firn/driver.h"
#include "firn/store.h"

namespace firn {

class VirtualClock : public Clock {
 public:
  /// The store, made with this clock, whose completions wait() shall also advance to.
  virtual void attach(const SimulatedStore* store) = 0;
};

/// `driver` is the software GPU, configured with virtual_clock. wait() advances to the earlier of
/// the GPU's and the stores' next events (and never past ns_max); it aborts with "deadlock" in
/// words when called with ns_max == UINT64_MAX and nothing is queued anywhere.
Result<std::unique_ptr<VirtualClock>> open_virtual_clock(const Driver& driver);

}  // namespace firn
