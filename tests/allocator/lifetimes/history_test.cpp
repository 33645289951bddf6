// History on synthetic training programs, against the truth. Every property for several programs,
// made from seeds; a failure prints how to run its seed alone.
#include "allocator/lifetimes/history.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/allocator/lifetimes/program.h"

using namespace firn;
using namespace firn::program;

namespace {

/// Calls `property(seed, layers)` for every seed, or for FIRN_SEED alone.
template <typename Property>
void for_seeds(uint64_t count, Property property) {
  const char* alone = std::getenv("FIRN_SEED");
  uint64_t from = alone ? std::strtoull(alone, nullptr, 0) : 1, to = alone ? from : count;
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  for (uint64_t seed = from; seed <= to; ++seed) {
    SCOPED_TRACE("replay: FIRN_SEED=" + std::to_string(seed) +
                 " history_test --gtest_filter=" + test->test_suite_name() + "." + test->name());
    property(seed, static_cast<int>(2 + seed * 7 % 23));
    if (testing::Test::HasFailure()) return;
  }
}

/// The steps of a trainer, and where each ends.
struct Steps {
  Steps(uint64_t seed, int layers) : trainer(seed, layers) {}
  void step(uint64_t length = 64, int micro_batches = 1) {
    trainer.step(length, micro_batches);
    ends.push_back(trainer.ops.size());
  }
  Trainer trainer;
  std::vector<size_t> ends;
};

void expect_exact(const Watch::Score& score) {
  EXPECT_EQ(score.known, score.events);
  // A variable freed late gets its marker's past an iteration after its own.
  EXPECT_GE(score.foreseen_share(), 0.999);
  EXPECT_EQ(score.right, score.asked) << score.first_wrong;
}

}  // namespace

TEST(History, knows_the_third_iteration_and_all_next_uses_in_it) {
  for_seeds(40, [](uint64_t seed, int layers) {
    Steps steps(seed, layers);
    for (int i = 0; i < 5; ++i) steps.step();
    Watch watch(steps.trainer.ops);
    watch.feed(steps.ends[1]);
    EXPECT_TRUE(watch.history.known());
    Watch::Score third = watch.feed(steps.ends[2]);
    EXPECT_EQ(third.known, third.events);
    EXPECT_EQ(third.right, third.asked) << third.first_wrong;
    EXPECT_GE(third.foreseen_share(), 0.97);
    expect_exact(watch.feed(steps.ends[3]));
  });
}

TEST(History, identities_survive_iterations) {
  for_seeds(40, [](uint64_t seed, int layers) {
    Steps steps(seed, layers);
    for (int i = 0; i < 5; ++i) steps.step();
    Watch watch(steps.trainer.ops);
    watch.feed(steps.ends[4], 0);
    size_t events = steps.ends[3] - steps.ends[2];
    ASSERT_EQ(events, steps.ends[4] - steps.ends[3]);
    for (size_t i = 0; i < events; ++i)
      ASSERT_EQ(watch.identities[steps.ends[2] + i], watch.identities[steps.ends[3] + i])
          << "event " << i << " of the iteration";
  });
}

TEST(History, finds_back_after_an_evaluation) {
  for_seeds(20, [](uint64_t seed, int layers) {
    Steps steps(seed, layers);
    for (int i = 0; i < 4; ++i) steps.step();
    for (int i = 0; i < 3; ++i) steps.trainer.evaluate();
    size_t resumed = steps.trainer.ops.size();
    for (int i = 0; i < 3; ++i) steps.step();
    Watch watch(steps.trainer.ops);
    watch.feed(resumed);
    watch.feed(resumed + 48);
    size_t tail = (steps.ends[4] - resumed) / 2 + resumed;
    Watch::Score rest = watch.feed(tail);
    EXPECT_EQ(rest.known, rest.events);
    EXPECT_GE(rest.next_share(), 0.98);
    watch.feed(steps.ends[4]);
    Watch::Score next = watch.feed(steps.ends[5]);
    EXPECT_GE(next.known_share(), 0.99);
    EXPECT_GE(next.next_share(), 0.98);
  });
}

TEST(History, micro_batches_are_right_at_their_seams) {
  for_seeds(20, [](uint64_t seed, int layers) {
    Steps steps(seed, layers);
    for (int i = 0; i < 5; ++i) steps.step(64, 4);
    Watch watch(steps.trainer.ops);
    watch.feed(steps.ends[1]);
    Watch::Score third = watch.feed(steps.ends[2]);
    EXPECT_EQ(third.known, third.events);
    EXPECT_GE(third.share(), 0.99) << third.first_wrong;
    expect_exact(watch.feed(steps.ends[3]));
  });
}

TEST(History, programs_that_alternate) {
  for_seeds(15, [](uint64_t seed, int layers) {
    Trainer a(seed, layers), b(seed + 100, 26 - layers);
    std::vector<Op> ops;
    std::vector<size_t> ends;
    auto take = [&](Trainer& trainer) {
      ops.insert(ops.end(), trainer.ops.begin(), trainer.ops.end());
      trainer.ops.clear();
    };
    for (int i = 0; i < 10; ++i) {
      Trainer& trainer = i % 2 ? b : a;
      trainer.step();
      take(trainer);
      ends.push_back(ops.size());
    }
    Watch watch(ops);
    watch.feed(ends[5]);
    for (size_t i = 6; i < 8; ++i) expect_exact(watch.feed(ends[i]));
  });
}

TEST(History, programs_in_any_order_are_right_within_each) {
  for_seeds(15, [](uint64_t seed, int layers) {
    Trainer a(seed, layers), b(seed + 100, 26 - layers);
    std::vector<Op> ops;
    std::vector<size_t> ends;
    for (char which : std::string("AABABBABAABBABBAA")) {
      Trainer& trainer = which == 'A' ? a : b;
      trainer.step();
      ops.insert(ops.end(), trainer.ops.begin(), trainer.ops.end());
      trainer.ops.clear();
      ends.push_back(ops.size());
    }
    Watch watch(ops);
    watch.feed(ends[7]);
    // Which comes next cannot be known; what an iteration does after its first events can.
    Watch::Score rest = watch.feed(ends.back() - 1);
    EXPECT_GE(rest.known_share(), 0.97);
    EXPECT_GE(rest.next_share(), 0.97);
  });
}

TEST(History, lengths_seen_before_are_exact_and_new_ones_in_order) {
  for_seeds(15, [](uint64_t seed, int layers) {
    std::mt19937_64 random(seed);
    Steps steps(seed, layers);
    for (uint64_t i = 0; i < 20; ++i) steps.step(32 + 16 * (i < 5 ? i : random() % 5));
    for (uint64_t length : {57, 40, 64, 64}) steps.step(length);
    Watch watch(steps.trainer.ops);
    watch.feed(steps.ends[9], 0);
    Watch::Score seen = watch.feed(steps.ends[19]);
    EXPECT_GE(seen.known_share(), 0.99);
    EXPECT_GE(seen.share(), 0.99) << seen.first_wrong;
    watch.score_order = true;
    for (size_t fresh : {20, 21}) {
      Watch::Score score = watch.feed(steps.ends[fresh]);
      EXPECT_GE(score.known_share(), 0.95);
      EXPECT_GE(score.order_share(), 0.9);
    }
  });
}

TEST(History, touches_dropped_and_doubled) {
  for_seeds(20, [](uint64_t seed, int layers) {
    Steps steps(seed, layers);
    for (int i = 0; i < 9; ++i) steps.step();
    std::vector<Op> ops = disturb(steps.trainer.ops, 0.01, seed, steps.ends[2]);
    Watch watch(ops);
    watch.score_order = true;
    watch.feed(steps.ends[2]);
    Watch::Score score = watch.feed(steps.ends[7] - 64);
    EXPECT_GE(score.known_share(), 0.95);
    EXPECT_GE(score.order_share(), 0.95);
    EXPECT_GE(score.next_share(), 0.85);
  });
}

TEST(History, a_program_without_a_period_is_not_known_and_not_kept) {
  for_seeds(10, [](uint64_t seed, int) {
    for (uint64_t sizes : {1, 3, 1000}) {
      std::mt19937_64 random(seed);
      std::vector<Op> ops;
      std::vector<uint32_t> live;
      uint32_t blocks = 0;
      for (int i = 0; i < 60'000; ++i) {
        uint64_t draw = random() % 6;
        size_t which = live.empty() ? 0 : random() % live.size();
        if (live.size() < 20 || draw == 0) {
          live.push_back(++blocks);
          ops.push_back({EventKind::allocate, blocks, 512 * (1 + random() % sizes)});
        } else if (draw == 1) {
          ops.push_back({EventKind::free, live[which], 0});
          live[which] = live.back();
          live.pop_back();
        } else {
          ops.push_back(
              {draw & 1 ? EventKind::touch_read : EventKind::touch_write, live[which], 0});
        }
      }
      Watch watch(ops, 1 << 12);
      watch.feed(20'000);
      size_t bytes = watch.history.bytes();
      Watch::Score score = watch.feed(ops.size());
      EXPECT_LE(score.known_share(), 0.01);
      EXPECT_LE(watch.history.bytes(), bytes + bytes / 4);
      RecordProperty("known_per_million", static_cast<int>(1e6 * score.known_share()));
    }
  });
}

TEST(History, of_short_iterations_a_bounded_part_is_kept) {
  History history;
  const Life weight = history.allocate(1 << 20);
  // Iterations of so many blocks, five events each.
  const auto iterate = [&](uint64_t blocks) {
    for (uint64_t i = 0; i < blocks; ++i) {
      const Life life = history.allocate((i + 1) << 21);
      history.touch(life, true);
      history.touch(weight, i == 0);
      history.touch(life, false);
      history.free(life);
    }
  };
  for (int i = 0; i < 20'000; ++i) iterate(4);
  const size_t bytes = history.bytes();
  for (int i = 0; i < 60'000; ++i) iterate(4);
  EXPECT_LE(history.bytes(), bytes + bytes / 64);
  EXPECT_TRUE(history.known());
  EXPECT_EQ(history.period(), 20u);
  EXPECT_EQ(history.next_use(weight), 3u);
  // More is kept again of longer ones.
  for (int i = 0; i < 6; ++i) iterate(10'000);
  EXPECT_TRUE(history.known());
  EXPECT_EQ(history.period(), 50'000u);
  EXPECT_EQ(history.next_use(weight), 3u);
}

TEST(History, forgets_within_its_bound_and_stays_exact) {
  for_seeds(5, [](uint64_t seed, int layers) {
    Steps steps(seed, layers);
    for (int i = 0; i < 60; ++i) steps.step();
    Watch watch(steps.trainer.ops, 2 * (steps.ends[2] - steps.ends[1]) + 64);
    watch.feed(steps.ends[39], 0);
    size_t bytes = watch.history.bytes();
    watch.feed(steps.ends[57], 0);
    EXPECT_LE(watch.history.bytes(), bytes + bytes / 8);
    expect_exact(watch.feed(steps.ends[58]));
  });
}

TEST(History, a_variable_freed_late_keeps_its_identity_and_its_marker) {
  History history;
  Life out = 0, weight = history.allocate(4096);
  std::vector<Identity> fresh, late;
  for (int i = 0; i < 8; ++i) {
    for (int k = 0; k < 20; ++k) history.touch(weight, k % 3 == 0);
    Life next = history.allocate(512);
    fresh.push_back(history.identity(next));
    history.touch(next, true);
    if (out) {
      late.push_back(history.identity(out));
      if (i > 4) {
        EventKind kind{};
        EXPECT_EQ(history.next_event(out, &kind), 1u);
        EXPECT_EQ(kind, EventKind::free);
        EXPECT_EQ(history.next_use(out), History::never);
      }
      history.free(out);
    }
    out = next;
  }
  EXPECT_EQ(fresh[6], fresh[7]);
  EXPECT_EQ(late[5], late[6]);
  EXPECT_NE(fresh[7], late[6]);
}

TEST(History, a_state_read_after_its_successor_is_made) {
  History history;
  Life state = history.allocate(512), weight = history.allocate(4096);
  for (int i = 0; i < 8; ++i) {
    for (uint64_t k = 0; k < 20; ++k) {
      history.touch(weight, k % 3 == 0);
      // The rest of the weight's touches, the new state, then the read.
      if (i > 3) {
        EXPECT_EQ(history.next_use(state), 19 - k + 2) << i << " " << k;
      }
    }
    Life next = history.allocate(512);
    history.touch(state, false);
    history.touch(next, true);
    history.free(state);
    state = next;
  }
}

TEST(History, a_plan_given_in_advance_is_known_from_the_first_event) {
  for_seeds(10, [](uint64_t seed, int layers) {
    Steps steps(seed, layers);
    for (int i = 0; i < 3; ++i) steps.step();
    const auto& ops = steps.trainer.ops;
    Watch watch(ops);
    size_t begin = steps.ends[0], end = steps.ends[1];
    watch.feed(begin, 0);
    std::vector<History::Planned> plan;
    for (size_t i = begin; i < end; ++i) {
      Life life = watch.life(ops[i].block);
      plan.push_back({ops[i].kind, life ? life : History::plan_block + ops[i].block, ops[i].bytes});
    }
    watch.history.preload(plan);
    EXPECT_TRUE(watch.history.known());
    EXPECT_EQ(watch.history.period(), end - begin);
    // Planned events are in the history too, so that the period stays what it is.
    expect_exact(watch.feed(end));
  });
}

TEST(History, time_until_an_event_is_what_it_took) {
  Steps steps(3, 5);
  for (int i = 0; i < 5; ++i) steps.step();
  Watch watch(steps.trainer.ops);
  for (size_t i = 0; i < steps.ends[3]; ++i) {
    watch.feed(i + 1, 0);
    if (i % 50 == 0) watch.history.stamp(watch.history.now(), 1000 * watch.history.now());
  }
  ASSERT_TRUE(watch.history.known());
  uint64_t period = watch.history.period();
  for (uint64_t ahead : {uint64_t{0}, uint64_t{1}, uint64_t{77}, period, 2 * period + 5})
    EXPECT_NEAR(static_cast<double>(watch.history.ns_until(ahead)),
                1000.0 * static_cast<double>(ahead), 5);
}
