// The programs that failures are injected into.
#pragma once

#include <vector>

#include "tests/faults/job.h"

namespace firn::faults {

struct Scenario {
  const char* name;
  sim::Options (*machine)();
  void (*run)(Job&);
  /// After a run without failures: what it should have met and has not; empty: it has met all.
  std::string (*missing)(Job&);
};
const std::vector<Scenario>& scenarios();

}  // namespace firn::faults
