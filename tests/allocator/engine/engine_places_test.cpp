// Planned places: what an iteration's blocks get in their stream's region, and when they do not.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <set>
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
  struct Made {
    void* address;
    uint64_t bytes, pattern;
  };
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
      if (when_kept) when_kept(i, kept.back());
      read(gone);
      give_back(gone);
    }
    if (when_all_are_kept) when_all_are_kept(kept);
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
  /// The same sizes in another order from here on.
  void change() {
    for (auto* sizes : {&kept_bytes_, &gone_bytes_})
      std::shuffle(sizes->begin(), sizes->end(), random_);
  }

  std::function<void(size_t, Made&)> when_kept;
  std::function<void(std::vector<Made>&)> when_all_are_kept;

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

TEST(EnginePlaces, without_the_option_there_are_none) {
  Simulation simulation(with_places(whole(allocated_most()), false));
  Training training(simulation);
  training.steps(12);
  EXPECT_EQ(simulation.engine(0).stats().placed, 0u);
  EXPECT_EQ(simulation.engine(0).stats().region_bytes, 0u);
}

TEST(EnginePlaces, adversarial_mode_has_none_so_that_everything_may_leave) {
  SimulationOptions options = with_places(whole(allocated_most()));
  options.adversarial = true;
  Simulation simulation(options);
  Training training(simulation);
  training.steps(12);
  EXPECT_EQ(simulation.engine(0).stats().placed, 0u);
}

TEST(EnginePlaces, where_nothing_is_mapped_anew_there_are_none) {
  Simulation simulation(with_places(120 * mib));
  Training training(simulation);
  training.steps(12);
  const EngineStats stats = simulation.engine(0).stats();
  EXPECT_TRUE(stats.period_found);
  EXPECT_EQ(stats.placed, 0u);
}

TEST(EnginePlaces, a_program_that_changes_has_its_region_back_and_another_later) {
  Simulation simulation(with_places(whole(allocated_most()) + 2 * mib));
  Engine& engine = simulation.engine(0);
  Training training(simulation);
  training.steps(12);
  ASSERT_GT(engine.stats().region_bytes, 0u);
  training.change();
  training.step();
  EXPECT_EQ(engine.stats().places, 0u);
  EXPECT_EQ(engine.stats().region_bytes, 0u);
  const uint64_t placed = engine.stats().placed;
  training.steps(2);
  EXPECT_EQ(engine.stats().placed, placed);
  for (int i = 0; i < 20 && engine.stats().placed == placed; ++i) training.step();
  EXPECT_GT(engine.stats().placed, placed);
  expect_bytes(simulation);
}

TEST(EnginePlaces, trim_gives_back_what_no_place_is_in_use_of) {
  Simulation simulation(with_places(whole(allocated_most())));
  Engine& engine = simulation.engine(0);
  Training training(simulation);
  training.steps(12);
  const uint64_t region = engine.stats().region_bytes;
  ASSERT_GT(region, 0u);
  simulation.synchronize();
  engine.trim();
  EXPECT_EQ(engine.stats().region_bytes, 0u);
  EXPECT_EQ(simulation.counts(0).frame_bytes, 12 * mib);  // the weights
  training.steps(2);  // and it is there again where it was
  EXPECT_EQ(engine.stats().region_bytes, region);
  expect_bytes(simulation);
}


TEST(EnginePlaces, what_is_pinned_has_no_place_from_then_on) {
  Simulation simulation(with_places(whole(allocated_most()) + 6 * mib));
  Engine& engine = simulation.engine(0);
  Training training(simulation);
  training.steps(12);
  ASSERT_GT(engine.stats().placed, 0u);
  training.when_kept = [&](size_t i, Training::Made& made) {
    if (i != 2) return;
    ASSERT_TRUE(engine.pin(made.address, "by the test"));
    ASSERT_TRUE(engine.cold(made.address, 1));
    EXPECT_STREQ(engine.find(made.address)->state, "resident");
    ASSERT_TRUE(engine.unpin(made.address));
  };
  training.step();
  training.when_kept = nullptr;
  training.steps(3);
  const uint64_t placed = engine.stats().placed;
  training.step();
  EXPECT_EQ(engine.stats().placed, placed + 17);
  expect_bytes(simulation);
}

TEST(EnginePlaces, an_unforeseen_need_is_met_though_places_do_not_leave) {
  const uint64_t budget = whole(allocated_most());
  Simulation simulation(with_places(budget));
  Engine& engine = simulation.engine(0);
  Training training(simulation);
  training.steps(12);
  uint64_t held = 0;
  training.when_all_are_kept = [&](auto&) {
    held = engine.stats().region_used_bytes;
    Training::Made large = training.make(budget - 4 * mib);
    training.read(large);
    training.give_back(large);
  };
  training.step();
  EXPECT_GT(held, 8 * mib);
  EXPECT_GT(engine.stats().zero_copy_bytes, 0u);
  training.when_all_are_kept = nullptr;
  training.step();
  expect_bytes(simulation);
}

TEST(EnginePlaces, segments_hold_their_blocks_and_statistics_agree) {
  Simulation simulation(with_places(whole(allocated_most())));
  Engine& engine = simulation.engine(0);
  Training training(simulation);
  training.steps(12);
  int looked = 0;
  training.when_kept = [&](size_t, Training::Made&) {
    const std::vector<BlockInfo> blocks = engine.blocks();
    std::set<std::pair<uint64_t, uint64_t>> segments;
    uint64_t allocated = 0;
    int64_t gaps = 0;
    for (const BlockInfo& block : blocks) {
      const auto base = reinterpret_cast<uint64_t>(block.base);
      const auto segment = reinterpret_cast<uint64_t>(block.segment);
      const uint64_t begin = segment ? segment : base;
      const uint64_t bytes = segment ? block.segment_bytes : block.capacity;
      EXPECT_TRUE(base >= begin && base + block.bytes <= begin + bytes);
      segments.emplace(begin, begin + bytes);
      if (block.live) allocated += block.bytes;
    }
    uint64_t end = 0, reserved = 0;
    for (const auto& [begin, segment_end] : segments) {
      EXPECT_GE(begin, end);
      reserved += segment_end - begin;
      end = segment_end;
      uint64_t at = begin;
      bool live = false;
      std::set<std::pair<uint64_t, uint64_t>> within;
      for (const BlockInfo& block : blocks)
        if (const auto base = reinterpret_cast<uint64_t>(block.base);
            block.segment && block.live && base >= begin && base < segment_end)
          within.emplace(base, base + block.bytes);
      for (const auto& [from, to] : within) {
        gaps += from > at;
        at = to;
        live = true;
      }
      gaps += live && segment_end > at;
    }
    const PoolTallies tallies = engine.tallies();
    EXPECT_EQ(static_cast<uint64_t>(tallies.allocated_bytes[2].current), allocated);
    EXPECT_EQ(static_cast<size_t>(tallies.segment[2].current), segments.size());
    EXPECT_EQ(static_cast<uint64_t>(tallies.reserved_bytes[2].current), reserved);
    EXPECT_EQ(tallies.inactive_split[2].current, gaps);
    ++looked;
  };
  training.step();
  EXPECT_EQ(looked, 6);
}

TEST(EnginePlaces, a_block_in_its_place_can_be_shared_with_another_process) {
  Simulation simulation(with_places(whole(allocated_most())));
  Engine& engine = simulation.engine(0);
  Training training(simulation);
  training.steps(12);
  training.when_kept = [&](size_t i, Training::Made& made) {
    if (i == 3) return;
    const auto exported = engine.export_memory(made.address, "by the test");
    ASSERT_TRUE(exported) << describe(exported.error());
    EXPECT_LE((*exported)->base(), reinterpret_cast<uint64_t>(made.address));
    const auto imported = ImportedMemory::open(simulation.driver(), 0, (*exported)->handle());
    ASSERT_TRUE(imported) << describe(imported.error());
    EXPECT_GE((*exported)->base() + (*imported)->bytes(),
              reinterpret_cast<uint64_t>(made.address) + made.bytes);
    const uint64_t within = reinterpret_cast<uint64_t>(made.address) - (*exported)->base();
    ASSERT_TRUE(simulation.verify(0, reinterpret_cast<void*>((*imported)->base() + within),
                                  made.bytes, made.pattern, nullptr));
    simulation.synchronize();
  };
  {
    Driver::ContextGuard context(simulation.driver(), simulation.context(0));
    training.step();
  }
  training.when_kept = nullptr;
  training.steps(2);
  expect_bytes(simulation);
}
