// A machine in which nothing may wait for long: a call that is not answered within a second of the
// machine's time ends the test's process, and says which.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "tests/allocator/simulation.h"

namespace firn::test {

inline constexpr uint64_t second = 1'000'000'000;

class Watched {
 public:
  explicit Watched(SimulationOptions options) {
    options.on_wait = [this] {
      if (!sim_ || begin_ == UINT64_MAX || sim_->clock().now_ns() - begin_ <= second) return;
      std::fprintf(stderr, "no answer within a second: %s\n", what_.c_str());
      std::fflush(stderr);
      std::_Exit(1);
    };
    sim_ = std::make_unique<Simulation>(options);
  }
  /// What is done from here has to be answered.
  void watch(std::string what) {
    what_ = std::move(what);
    begin_ = sim_->clock().now_ns();
  }
  Simulation& operator*() { return *sim_; }
  Simulation* operator->() { return sim_.get(); }

 private:
  std::string what_;
  uint64_t begin_ = UINT64_MAX;
  std::unique_ptr<Simulation> sim_;  // last: its end may wait, too
};

}  // namespace firn::test
