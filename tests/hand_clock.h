// A clock that stands still until a test moves it.
#pragma once

#include <cstdint>

#include "firn/clock.h"

namespace firn::test {

class HandClock final : public Clock {
 public:
  uint64_t now_ns() override { return now; }
  void wait(uint64_t) override {}
  void notify() override {}
  uint64_t now = 1'000;
};

}  // namespace firn::test
