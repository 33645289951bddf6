// A Learner follows a program's blocks: their parts, their streams and sizes, the device's time.
#include "allocator/policy/learner.h"

#include "allocator/lifetimes/decide.h"
#include "tests/allocator/policy/policy_fixture.h"

using namespace firn;
using namespace firn::test;

namespace {

class LearnerTest : public PolicyTest {};

TEST_F(LearnerTest, a_life_begins_with_its_allocation_and_ends_with_its_free) {
  Block& a = allocate(2);
  Block& b = allocate(3);
  ASSERT_EQ(begun_.size(), 2u);
  EXPECT_EQ(begun_[0], std::pair(identity(a), const_cast<const Block*>(&a)));
  EXPECT_EQ(begun_[1], std::pair(identity(b), const_cast<const Block*>(&b)));
  EXPECT_NE(identity(a), identity(b));
  EXPECT_EQ(learner_.player_of(identity(a)), &a);
  EXPECT_EQ(learner_.player_of(identity(b)), &b);
  touch(a);
  EXPECT_EQ(begun_.size(), 2u);
  EXPECT_EQ(history().now(), 3u);
  const Identity was = identity(a);
  free(a);
  EXPECT_EQ(learner_.life_of(a), 0u);
  EXPECT_EQ(learner_.player_of(was), nullptr);
  EXPECT_EQ(learner_.player_of(0), nullptr);
}

TEST_F(LearnerTest, a_block_from_before_the_watch_begins_with_its_first_use) {
  Block& block = *table_.make();
  block.pages = granule_pages;
  happens(EventKind::free, block);
  EXPECT_EQ(learner_.life_of(block), 0u);
  EXPECT_TRUE(begun_.empty());
  touch(block);
  EXPECT_EQ(begun_.size(), 1u);
  EXPECT_EQ(learner_.player_of(identity(block)), &block);
}

TEST_F(LearnerTest, a_free_that_was_lost_ends_the_life_before) {
  Block& block = allocate(2);
  const Life first = learner_.life_of(block);
  const Identity was = identity(block);
  happens(EventKind::allocate, block);
  EXPECT_EQ(begun_.size(), 2u);
  EXPECT_EQ(history().now(), 3u);  // the free is among them
  EXPECT_NE(learner_.life_of(block), 0u);
  EXPECT_TRUE(learner_.life_of(block) != first || identity(block) != was);
  EXPECT_EQ(learner_.player_of(identity(block)), &block);
}

TEST_F(LearnerTest, says_whether_anything_happened) {
  EXPECT_FALSE(feed());
  EXPECT_FALSE(learner_.moved_on());
  Block& block = allocate(1);
  EXPECT_TRUE(learner_.moved_on());
  EXPECT_FALSE(learner_.moved_on());
  ring_.push(EventKind::touch_read, block.index);
  EXPECT_TRUE(feed());
  EXPECT_TRUE(learner_.moved_on());
  EXPECT_FALSE(feed());
}

TEST_F(LearnerTest, streams_and_sizes_are_those_of_the_last_allocation) {
  Block& a = allocate(2, 1, 3 * unit_bytes);
  const Identity who = identity(a);
  EXPECT_EQ(learner_.stream_of(who), 1u);
  EXPECT_EQ(learner_.bytes_of(who, 2 * granule_bytes), 3 * unit_bytes);
  EXPECT_EQ(learner_.bytes_of(who, 3 * granule_bytes), std::nullopt);
  EXPECT_EQ(learner_.stream_of(who + 1), std::nullopt);
  EXPECT_EQ(learner_.stream_of(who + 5000), std::nullopt);
  EXPECT_EQ(learner_.bytes_of(who + 1, 2 * granule_bytes), std::nullopt);
}

TEST_F(LearnerTest, sizes_are_remembered_only_if_asked_for) {
  Learner other{ring_, table_, streams_, false};
  Block& block = *table_.make();
  block.pages = granule_pages;
  block.asked.store(7);
  ring_.push(EventKind::allocate, block.index);
  Identity begun = 0;
  EXPECT_TRUE(other.take_events(cpu_ns_, [&](Identity id, const Block&) { begun = id; }));
  EXPECT_NE(begun, 0u);
  EXPECT_EQ(other.bytes_of(begun, granule_bytes), std::nullopt);
  EXPECT_EQ(other.stream_of(begun), 0u);
}

TEST_F(LearnerTest, in_a_known_period_identities_return_and_next_uses_are_right) {
  const Script script = training(6);
  play(begin(6));
  play(script, 6);
  ASSERT_TRUE(history().known());
  ASSERT_EQ(history().period(), script.size());
  std::map<unsigned, Identity> first;
  for (unsigned round = 0; round < 2; ++round)
    for (size_t at = 0; at < script.size(); ++at) {
      act(script[at]);
      const unsigned variable = script[at].variable;
      Block* block = of_[variable];
      if (!block) continue;
      const auto [known, fresh] = first.emplace(variable, identity(*block));
      EXPECT_EQ(identity(*block), known->second) << variable;
      EXPECT_EQ(learner_.player_of(known->second), block);
      uint64_t ahead = 1;
      while (script[(at + ahead) % script.size()].variable != variable) ++ahead;
      EXPECT_EQ(block->next_use, history().now() + ahead) << "after event " << at;
    }
}

/// It comes a period behind the last time, or an eighth of one later.
TEST_F(LearnerTest, uses_in_host_memory_are_foreseen_and_are_no_events) {
  const Script script = training(5);
  play(begin(5));
  Block& state = allocate(3);
  play(script, 6);
  ASSERT_EQ(history().period(), script.size());
  const uint64_t now = history().now(), period = history().period();
  learner_.note_host_use(state, true);
  (void)feed();
  EXPECT_EQ(history().now(), now);
  ASSERT_EQ(learner_.host_uses().size(), 1u);
  const Learner::HostUsed used = learner_.host_uses()[0];
  EXPECT_EQ(used.identity, identity(state));
  EXPECT_EQ(used.position, now);
  EXPECT_TRUE(used.writes);
  EXPECT_EQ(learner_.host_use_ahead(used), period);
  EXPECT_EQ(state.next_use, now + period);
  for (size_t at = 0; at < script.size(); ++at) act(script[at]);
  EXPECT_EQ(learner_.host_use_ahead(used), 1u) << "it is late";
  for (size_t at = 0; at <= period / 8; ++at) act(script[at]);
  EXPECT_EQ(learner_.host_use_ahead(used), History::never);
  learner_.note_host_use(state, false);
  (void)feed();
  ASSERT_EQ(learner_.host_uses().size(), 1u) << "the last one counts";
  EXPECT_FALSE(learner_.host_uses()[0].writes);
}

TEST_F(LearnerTest, a_block_that_only_the_processor_uses_has_a_life_of_its_own) {
  Block& block = *table_.make();
  block.pages = granule_pages;
  learner_.note_host_use(block, false);
  (void)feed();
  EXPECT_NE(learner_.life_of(block), 0u);
  EXPECT_EQ(learner_.host_uses().size(), 1u);
}

TEST_F(LearnerTest, without_a_known_period_no_next_use_is_known) {
  Block& block = allocate(3);
  touch(block);
  EXPECT_EQ(block.next_use, lifetimes::no_use);
}

TEST_F(LearnerTest, the_device_s_time_is_marked_only_while_asked_for) {
  Block& block = allocate(1);
  learner_.mark_time(0, 1);
  EXPECT_FALSE(learner_.clock().pending());
  learner_.set_timing(true);
  EXPECT_TRUE(learner_.timing());
  learner_.mark_time(-1, 1);
  EXPECT_FALSE(learner_.clock().pending());
  learner_.mark_time(0, 2);  // one event happened
  EXPECT_FALSE(learner_.clock().pending());
  gpu_.give(stream_[0]);
  learner_.mark_time(0, 1);
  EXPECT_TRUE(learner_.clock().pending());
  EXPECT_EQ(learner_.clock().last_position(), 1u);
  learner_.set_timing(false);
  touch(block);
  learner_.mark_time(0, 1);
  EXPECT_EQ(learner_.clock().last_position(), 1u);
  gpu_.finish(stream_[0]);
  (void)streams_.poll();
  learner_.poll_time(500);
  EXPECT_FALSE(learner_.clock().pending());
}

TEST_F(LearnerTest, marks_that_are_over_tell_how_long_the_period_takes) {
  const Script script = training(6);
  play(begin(6));
  play(script, 6);
  ASSERT_TRUE(history().known());
  EXPECT_EQ(history().ns_until(script.size()), History::never);
  learner_.set_timing(true);
  uint64_t now_ns = 1'000;
  for (unsigned round = 0; round < 2; ++round)
    for (const Act& each : script) {
      act(each);
      gpu_.give(stream_[0]);
      learner_.mark_time(0, 1);
      gpu_.finish(stream_[0]);
      (void)streams_.poll();
      learner_.poll_time(now_ns += 10);
    }
  EXPECT_EQ(history().ns_until(script.size()), script.size() * 10);
}

}  // namespace
