// A device that an error has ended, or whose driver refuses for good: every call is answered within
// a second, with the driver's own words, whatever state a block is in; nothing aborts and nothing
// waits for what cannot come.
#include <gtest/gtest.h>

#include <functional>

#include "tests/allocator/engine/watched.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr size_t MiB = 1u << 20;
SimulationOptions options_under(Policy policy = Policy::age) {
  SimulationOptions o;
  o.budget_bytes = 16 * MiB;
  o.host_bytes = 24 * MiB;
  o.span_bytes = 2 * MiB;
  o.policy = policy;
  return o;
}

/// Blocks in every state that a block can be in when the device ends.
struct Blocks {
  void *resident = nullptr, *pinned = nullptr, *away = nullptr, *arriving = nullptr;
  void* parked_size = nullptr;
  CUstream busy = nullptr;
};

Blocks make_blocks(Simulation& sim) {
  Engine& engine = sim.engine(0);
  Blocks b;
  b.busy = sim.make_stream(0);
  const auto make = [&](size_t bytes, uint64_t pattern) {
    Result<void*> made = engine.allocate(bytes, nullptr);
    EXPECT_TRUE(made) << describe(made.error());
    Result<Hold> hold = engine.touch(*made, nullptr, Access::write);
    EXPECT_TRUE(hold);
    EXPECT_TRUE(sim.fill(0, *made, bytes, pattern, nullptr));
    engine.release(*hold, nullptr);
    return *made;
  };
  b.away = make(6 * MiB, 1);
  b.arriving = make(6 * MiB, 2);
  engine.spill_all();
  b.pinned = make(2 * MiB, 3);
  EXPECT_TRUE(engine.pin(b.pinned, "a test"));
  b.resident = make(2 * MiB, 4);
  EXPECT_TRUE(engine.prefetch(b.arriving, 6 * MiB, nullptr));
  // Freed behind work that never ends: parked or deferred.
  void* freed = make(4 * MiB, 5);
  Result<Hold> hold = engine.touch(freed, b.busy, Access::read);
  EXPECT_TRUE(hold);
  {
    Driver::ContextGuard context(sim.driver(), sim.context(0));
    EXPECT_EQ(sim.gpu().busy(b.busy, 3600 * second), 0);
  }
  engine.release(*hold, b.busy);
  EXPECT_TRUE(engine.free(freed));
  return b;
}

struct Entry {
  const char* name;
  std::function<void(Engine&, const Blocks&)> call;
};

void expect_words(const Error& error, const char* words) {
  EXPECT_EQ(error.code, Code::driver) << describe(error);
  EXPECT_NE(error.text.find(words), std::string::npos) << describe(error);
}

std::vector<Entry> entries(const char* words) {
  const auto touched = [words](Engine& engine, void* block, bool anyway) {
    Result<Hold> hold = anyway ? engine.touch_anyway(block, nullptr, Access::write)
                               : engine.touch(block, nullptr, Access::write);
    if (hold)
      engine.release(*hold, nullptr);
    else
      expect_words(hold.error(), words);
    return static_cast<bool>(hold);
  };
  return {
      {"allocate", [=](Engine& e, const Blocks&) {
         Result<void*> made = e.allocate(12 * MiB, nullptr);
         ASSERT_FALSE(made);
         expect_words(made.error(), words);
       }},
      {"allocate a segment", [=](Engine& e, const Blocks&) {
         Result<void*> made = e.allocate_segment(12 * MiB, nullptr, false, "a test");
         ASSERT_FALSE(made);
         expect_words(made.error(), words);
       }},
      {"allocate small", [](Engine& e, const Blocks&) { (void)e.allocate(1000, nullptr); }},
      {"touch resident", [=](Engine& e, const Blocks& b) { (void)touched(e, b.resident, false); }},
      {"touch away", [=](Engine& e, const Blocks& b) {
         EXPECT_FALSE(touched(e, b.away, false));
       }},
      {"touch away anyway", [=](Engine& e, const Blocks& b) {
         EXPECT_FALSE(touched(e, b.away, true));
       }},
      {"touch arriving", [=](Engine& e, const Blocks& b) { (void)touched(e, b.arriving, false); }},
      {"pin away", [=](Engine& e, const Blocks& b) {
         Result<void> pinned = e.pin(b.away, "a test");
         ASSERT_FALSE(pinned);
         expect_words(pinned.error(), words);
       }},
      {"give address", [=](Engine& e, const Blocks& b) {
         EXPECT_FALSE(e.give_address(b.away, "a test"));
       }},
      {"export", [](Engine& e, const Blocks& b) { EXPECT_FALSE(e.export_memory(b.away, "a")); }},
      {"prefetch", [](Engine& e, const Blocks& b) { (void)e.prefetch(b.away, 6 * MiB, nullptr); }},
      {"cold", [](Engine& e, const Blocks& b) { (void)e.cold(b.resident, 2 * MiB); }},
      {"record stream", [](Engine& e, const Blocks& b) {
         (void)e.record_stream(b.resident, b.busy, nullptr);
         EXPECT_TRUE(e.free(b.resident));
       }},
      {"free resident", [](Engine& e, const Blocks& b) { EXPECT_TRUE(e.free(b.resident)); }},
      {"free pinned", [](Engine& e, const Blocks& b) { EXPECT_TRUE(e.free(b.pinned)); }},
      {"free away", [](Engine& e, const Blocks& b) { EXPECT_TRUE(e.free(b.away)); }},
      {"free arriving", [](Engine& e, const Blocks& b) { EXPECT_TRUE(e.free(b.arriving)); }},
      {"trim", [](Engine& e, const Blocks&) { e.trim(); }},
      {"set budget", [](Engine& e, const Blocks&) { (void)e.set_budget(4 * MiB); }},
      {"spill all", [](Engine& e, const Blocks&) { e.spill_all(); }},
      {"spill away", [](Engine& e, const Blocks&) { e.spill_away(); }},
      {"stop spilling", [](Engine& e, const Blocks&) { e.stop_spilling(true); }},
      {"allow peer", [](Engine& e, const Blocks&) { (void)e.allow_peer(1); }},
      {"stream ends", [](Engine& e, const Blocks& b) { e.stream_ends(b.busy); }},
      {"pump", [](Engine& e, const Blocks&) { for (int i = 0; i < 100; ++i) e.pump(); }},
      {"statistics", [](Engine& e, const Blocks&) { (void)e.stats(); (void)e.blocks(); }},
  };
}

void dies_at_every_entry(CUresult error, const char* words, Policy policy, bool at_once) {
  const size_t count = entries(words).size();
  for (size_t i = 0; i <= count; ++i) {  // the last: at the engine's own end
    Watched sim(options_under(policy));
    const Blocks blocks = make_blocks(*sim);
    Engine& engine = sim->engine(0);
    const Entry entry = i < count ? entries(words)[i] : Entry{"the end", [](auto&, auto&) {}};
    SCOPED_TRACE(entry.name);
    ASSERT_EQ(sim->gpu().die(error, at_once ? 0 : 1), 0);
    sim.watch(entry.name);
    entry.call(engine, blocks);
    // Nobody who caught the error is held up by what a program does then.
    engine.trim();
    (void)engine.allocate(12 * MiB, nullptr);
    engine.check();
    size_t said = 0;
    for (const std::string& words_said : engine.stats().trouble)
      said += words_said.find(words) != std::string::npos;
    EXPECT_EQ(said, 1u);
  }
}

}  // namespace

TEST(EngineDead, every_entry_answers_an_illegal_address) {
  dies_at_every_entry(CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", Policy::age, true);
}
TEST(EngineDead, every_entry_answers_an_assertion_that_comes_within_it) {
  dies_at_every_entry(CUDA_ERROR_ASSERT, "CUDA_ERROR_ASSERT", Policy::age, false);
}
TEST(EngineDead, every_entry_answers_a_failed_launch_while_blocks_are_planned) {
  dies_at_every_entry(CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", Policy::lifetime, true);
}

TEST(EngineDead, an_unmap_that_is_refused_for_good_is_no_abort) {
  for (const char* entry : {"cuMemUnmap", "cuMemRelease"}) {
    Watched sim(options_under());
    Engine& engine = sim->engine(0);
    Result<void*> made = engine.allocate(6 * MiB, nullptr);
    ASSERT_TRUE(made);
    ASSERT_TRUE(engine.free(*made));
    sim->gpu().fail_from(entry, 1, CUDA_ERROR_UNKNOWN);
    sim.watch(entry);
    engine.trim();
    Result<void*> next = engine.allocate(12 * MiB, nullptr);
    ASSERT_FALSE(next);
    expect_words(next.error(), entry);
    EXPECT_NE(next.error().text.find("CUDA_ERROR_UNKNOWN"), std::string::npos);
  }
}

TEST(EngineDead, a_context_that_is_gone_is_an_error) {
  Watched sim(options_under());
  Engine& engine = sim->engine(0);
  Result<void*> made = engine.allocate(6 * MiB, nullptr);
  ASSERT_TRUE(made);
  sim->gpu().fail_from("cuCtxPushCurrent", 1, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  sim.watch("a context that is gone");
  Result<void*> next = engine.allocate(12 * MiB, nullptr);
  ASSERT_FALSE(next);
  expect_words(next.error(), "CUDA_ERROR_CONTEXT_IS_DESTROYED");
  EXPECT_TRUE(engine.free(*made));
  engine.trim();
  sim->gpu().fail_at("cuCtxPushCurrent", 0, 0);
}
