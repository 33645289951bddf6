// Streams by themselves, on the software GPU's streams and clock.
#pragma once

#include <gtest/gtest.h>

#include "allocator/blocks/streams.h"
#include "tests/allocator/simulation.h"

namespace firn::test {

inline constexpr uint64_t ms = 1'000'000;

struct StreamsTest : testing::Test {
  static SimulationOptions two_devices() {
    SimulationOptions o;
    o.devices = 2;
    return o;
  }
  Simulation sim{two_devices()};
  DeviceHealth health{sim.driver(), 0};
  Streams streams{sim.driver(), health};
  Driver::ContextGuard guard{sim.driver(), sim.context(0)};

  CUstream busy(CUstream stream, uint64_t ns = 10 * ms) {
    EXPECT_EQ(sim.gpu().busy(stream, ns), 0);
    return stream;
  }
  unsigned see(CUstream stream, CUcontext context = nullptr) {
    const int index = streams.see(stream, context);
    EXPECT_GE(index, 0);
    return static_cast<unsigned>(index);
  }
  void pass(uint64_t ns) {
    for (const uint64_t end = now() + ns; now() < end;) sim.clock().wait(end - now());
  }
  uint64_t now() { return sim.clock().now_ns(); }
};

}  // namespace firn::test
