// Planned places: what an iteration's blocks get in their stream's region, and when they do not.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr uint64_t mib = 1u << 20;

SimulationOptions with_places(uint64_t budget_bytes, bool places = true) {
  SimulationOptions options;
  options.budget_bytes = budget_bytes;
  options.host_bytes = 64 * mib;
  options.policy = Policy::lifetime;
  options.places = places;
  return options;
}

/// A training loop whose blocks are all of other sizes: weights that stay, and for each layer what
/// is kept for the way back and what is gone at once. Bytes are written, and looked at again.
class Training {
 public:
  explicit Training(Simulation& simulation, CUstream stream = nullptr, uint64_t seed = 1)
      : simulation_(simulation), engine_(simulation.engine(0)), stream_(stream), random_(seed) {
    for (int i = 0; i < 3; ++i) weights_.push_back(make(4 * mib));
    for (int i = 0; i < 6; ++i) {
      kept_bytes_.push_back(mib + 512 * below(8000));
      gone_bytes_.push_back(mib + 512 * below(8000));
    }
  }
  ~Training() {
    for (const Made& weight : weights_) give_back(weight);
  }

  void step() {
    std::vector<Made> kept;
    for (size_t i = 0; i < kept_bytes_.size(); ++i) {
      read(weights_[i % weights_.size()]);
      const Made gone = make(gone_bytes_[i]);
      kept.push_back(make(kept_bytes_[i]));
      read(gone);
      give_back(gone);
    }
    while (!kept.empty()) {
      const Made gone = make(gone_bytes_[kept.size() - 1]);
      read(kept.back());
      write(weights_[kept.size() % weights_.size()]);
      give_back(kept.back());
      read(gone);
      give_back(gone);
      kept.pop_back();
    }
    engine_.check();
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }
  /// Other sizes from here on.
  void change() {
    for (auto* sizes : {&kept_bytes_, &gone_bytes_})
      for (uint64_t& bytes : *sizes) bytes = mib + 512 * below(8000);
  }

  struct Made {
    void* address;
    uint64_t bytes, pattern;
  };
  Made make(uint64_t bytes) {
    Result<void*> block = engine_.allocate(bytes, stream_);
    EXPECT_TRUE(block) << describe(block.error());
    Made made{block ? *block : nullptr, bytes, 0};
    if (block) write(made);
    return made;
  }
  void write(Made& made) {
    Result<Hold> hold = engine_.touch(made.address, stream_, Access::write);
    ASSERT_TRUE(hold) << describe(hold.error());
    made.pattern = ++patterns_;
    ASSERT_TRUE(simulation_.fill(0, made.address, made.bytes, made.pattern, stream_));
    engine_.release(*hold, stream_);
    carry_out();
  }
  void read(const Made& made) {
    Result<Hold> hold = engine_.touch(made.address, stream_, Access::read);
    ASSERT_TRUE(hold) << describe(hold.error());
    ASSERT_TRUE(simulation_.verify(0, made.address, made.bytes, made.pattern, stream_));
    engine_.release(*hold, stream_);
    carry_out();
  }
  void give_back(const Made& made) {
    EXPECT_TRUE(engine_.free(made.address));
    carry_out();
  }
  CUstream stream() const { return stream_; }

 private:
  uint64_t below(uint64_t n) { return random_() % n; }
  void carry_out() {
    simulation_.clock().wait(100'000);
    while (engine_.pump()) simulation_.clock().wait(100'000);
    engine_.ponder();
  }

  Simulation& simulation_;
  Engine& engine_;
  CUstream stream_;
  std::mt19937_64 random_;
  std::vector<uint64_t> kept_bytes_, gone_bytes_;
  std::vector<Made> weights_;
  uint64_t patterns_ = 0;
};

/// The most that a few steps of training have allocated.
uint64_t allocated_most() {
  Simulation simulation(with_places(200 * mib, false));
  Training training(simulation);
  training.steps(2);
  return simulation.engine(0).stats().peak_allocated_bytes;
}

uint64_t whole(uint64_t bytes) { return (bytes + 2 * mib - 1) / (2 * mib) * (2 * mib); }

void expect_bytes(Simulation& simulation) {
  simulation.synchronize();
  EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
}

}  // namespace

TEST(EnginePlaces, at_the_edge_of_the_budget_nothing_is_mapped_any_more) {
  const uint64_t budget = whole(allocated_most());
  Simulation simulation(with_places(budget));
  Engine& engine = simulation.engine(0);
  Training training(simulation);
  training.steps(12);
  const EngineStats before = engine.stats();
  training.steps(10);
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.places, 18u);
  EXPECT_EQ(stats.placed - before.placed, 180u);
  EXPECT_EQ(stats.places_missed, before.places_missed);
  EXPECT_EQ(stats.maps, before.maps);
  EXPECT_EQ(stats.unmaps, before.unmaps);
  EXPECT_EQ(stats.spilled_bytes, before.spilled_bytes);
  EXPECT_GT(stats.maps_without_places, 0u);
  EXPECT_EQ(stats.maps_with_places, 0u);
  EXPECT_LE(stats.waste_with_places, stats.waste_without_places);
  expect_bytes(simulation);
}
