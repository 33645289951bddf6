// The period to come against a naive list, which is made of the script itself.
#include "allocator/policy/outlook.h"

#include <algorithm>

#include "tests/allocator/policy/policy_fixture.h"

using namespace firn;
using namespace firn::test;

namespace {

using lifetimes::Item;
using lifetimes::Step;

constexpr uint64_t born_pages = 1'000;  // and the size of what is born

class OutlookTest : public PolicyTest {
 protected:
  /// All that is there, and what comes.
  void look() {
    outlook_.clear();
    for (const auto& [variable, block] : of_)
      if (block) add(*block);
    for (const auto& [variable, block] : old_)
      if (block) add(*block);
    outlook_.look_ahead(history(), [](const History::Upcoming& coming) {
      return born_pages + coming.bytes / granule_bytes;
    });
  }
  void add(Block& block) {
    outlook_.add(learner_, block, {.size = block.pages, .on_device = block.pages}, true);
  }
  uint32_t item_of(const Block* block) const {
    const auto& blocks = outlook_.blocks();
    const auto found = std::find_if(blocks.begin(), blocks.end(),
                                    [&](const auto& name) { return name.block == block; });
    return static_cast<uint32_t>(found - blocks.begin());
  }
  /// The script's next period, from its event `at` on, has just these items and steps.
  void expect_as_scripted(const Script& script, size_t at) {
    SCOPED_TRACE("before event " + std::to_string(at));
    std::map<unsigned, uint32_t> item, old, first;  // by variable
    for (const auto& [variable, block] : of_)
      if (block) first[variable] = item[variable] = item_of(block);
    for (const auto& [variable, block] : old_)
      if (block) old[variable] = item_of(block);
    size_t items = item.size() + old.size(), step = 0;
    ASSERT_EQ(outlook_.blocks().size(), items);
    for (uint64_t ahead = 1; ahead <= script.size(); ++ahead) {
      const Act& act = script[(at + ahead - 1) % script.size()];
      uint32_t of = 0;
      Step::Kind kind = Step::Kind::read;
      switch (act.what) {
        case Act::What::allocate:
          if (item.contains(act.variable)) old[act.variable] = item[act.variable];
          of = item[act.variable] = static_cast<uint32_t>(items++);
          kind = Step::Kind::birth;
          first.emplace(act.variable, of);
          break;
        case Act::What::read: of = item.at(act.variable); break;
        case Act::What::write:
          of = item.at(act.variable);
          kind = Step::Kind::write;
          break;
        case Act::What::free:
          of = item.at(act.variable);
          item.erase(act.variable);
          kind = Step::Kind::death;
          break;
        case Act::What::free_old:
          of = old.at(act.variable);
          old.erase(act.variable);
          kind = Step::Kind::death;
          break;
      }
      ASSERT_LT(step, outlook_.steps().size());
      const Step& found = outlook_.steps()[step++];
      EXPECT_EQ(found.ahead, ahead);
      EXPECT_EQ(found.kind, kind) << "of variable " << act.variable;
      EXPECT_EQ(found.item, of) << "of variable " << act.variable;
      if (kind != Step::Kind::birth) continue;
      const Item& born = outlook_.items().at(found.item);
      EXPECT_TRUE(born.born);
      EXPECT_EQ(born.size, born_pages + act.granules);
      EXPECT_EQ(born.on_device, 0u);
    }
    EXPECT_EQ(step, outlook_.steps().size());
    EXPECT_EQ(outlook_.items().size(), items);
    for (const auto& [variable, last] : item)
      EXPECT_EQ(outlook_.items().at(last).again, first.at(variable)) << variable;
  }

  Outlook outlook_;
};

TEST_F(OutlookTest, items_and_steps_are_those_of_the_script_wherever_the_period_begins) {
  const Script script = training(5);
  play(begin(5));
  play(script, 6);
  ASSERT_TRUE(history().known());
  ASSERT_EQ(history().period(), script.size());
  for (size_t at = 0; at < script.size(); ++at) {
    look();
    expect_as_scripted(script, at);
    for (const Outlook::Name& name : outlook_.blocks())
      EXPECT_EQ(outlook_.items()[item_of(name.block)].assumed, lifetimes::no_use);
    act(script[at]);
  }
}

TEST_F(OutlookTest, a_block_whose_part_another_takes_dies_as_itself) {
  Script script = training(5);
  using enum Act::What;
  // Variable 50 is made anew from its old value, in mid-period.
  const Script changes = {{read, 50}, {allocate, 50, 9}, {write, 50}, {free_old, 50}};
  script.insert(script.begin() + 15, changes.begin(), changes.end());
  play(begin(5));
  act({allocate, 50, 9});
  play(script, 8);
  ASSERT_TRUE(history().known());
  ASSERT_EQ(history().period(), script.size());
  for (size_t at = 0; at < script.size(); ++at) {
    look();
    expect_as_scripted(script, at);
    act(script[at]);
  }
}

TEST_F(OutlookTest, what_is_not_foreseen_is_taken_to_be_used_in_half_a_period_where_assumed) {
  const Script script = training(5);
  play(begin(5));
  play(script, 6);
  Block& unseen = *table_.make();
  look();
  const size_t known = outlook_.items().size();
  outlook_.clear();
  outlook_.add(learner_, unseen, {.size = 3}, true);
  outlook_.add(learner_, unseen, {.size = 4}, false);
  EXPECT_EQ(outlook_.items().at(0).assumed, script.size() / 2);
  EXPECT_EQ(outlook_.items().at(1).assumed, lifetimes::no_use);
  EXPECT_EQ(outlook_.items().at(0).again, Item::none);
  look();
  EXPECT_EQ(outlook_.items().size(), known);
}

TEST_F(OutlookTest, times_of_steps_never_descend_nor_pass_the_period_s_end) {
  const Script script = training(5);
  play(begin(5));
  play(script, 6);
  look();
  const auto none = outlook_.step_times(history(), 500);
  EXPECT_EQ(none, std::vector<uint64_t>(outlook_.steps().size()));
  uint64_t at_ns = 0;
  for (size_t i = 0; i < 2 * script.size(); ++i) {
    act(script[i % script.size()]);
    history().stamp(history().now(), at_ns += i % 3 == 0 ? 0 : i % 7 * 5);
  }
  look();
  const uint64_t all_ns = history().ns_until(script.size());
  ASSERT_NE(all_ns, History::never);
  for (const uint64_t period_ns : {all_ns, all_ns / 2, uint64_t{0}}) {
    const auto times = outlook_.step_times(history(), period_ns);
    ASSERT_EQ(times.size(), script.size());
    EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
    EXPECT_EQ(times.back(), period_ns);
    for (size_t i = 0; i < times.size(); ++i)
      EXPECT_EQ(times[i], std::min(history().ns_until(i + 1), period_ns)) << i;
  }
}

TEST_F(OutlookTest, a_block_moves_that_is_proven_and_free_of_pins) {
  Block& block = allocate(2);
  block.mapped = block.device = block.pages;
  transit(block, Event::allocate, life_flags);
  EXPECT_EQ(immovable_pages(block), block.pages);  // no operator was seen to use it
  EXPECT_FALSE(may_move(block));
  block.word.set(word::proven);
  EXPECT_EQ(immovable_pages(block), 0u);
  EXPECT_TRUE(may_move(block));
  block.word.set(word::pinned);
  EXPECT_EQ(immovable_pages(block), block.pages);
  EXPECT_FALSE(may_move(block));
  block.word.clear(word::pinned);
  block.segment = 1;
  EXPECT_FALSE(may_move(block));
  block.segment = 0;
  block.word.set(word::freed);
  EXPECT_EQ(immovable_pages(block), 0u);
  EXPECT_FALSE(may_move(block));
}

}  // namespace
