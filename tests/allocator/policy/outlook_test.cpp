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
    outlook_.look_ahead(learner_, [](const History::Upcoming& coming) {
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

/// Of a block that the device does not use: in its place, among all steps alone.
TEST_F(OutlookTest, uses_in_host_memory_come_a_period_later) {
  const Script script = training(5);
  play(begin(5));
  act({Act::What::allocate, 60, 3});
  Block& state = *of_.at(60);
  play(script, 6);
  ASSERT_EQ(history().period(), script.size());
  look();
  EXPECT_FALSE(outlook_.has_host_uses());
  EXPECT_EQ(outlook_.all_steps().size(), outlook_.steps().size());
  for (size_t at = 0; at < 3; ++at) act(script[at]);
  learner_.note_host_use(state, true);
  (void)feed();
  for (size_t at = 3; at < script.size(); ++at) act(script[at]);
  look();
  ASSERT_TRUE(outlook_.has_host_uses());
  const auto& all = outlook_.all_steps();
  ASSERT_EQ(all.size(), outlook_.steps().size() + 1);
  const auto found = std::find_if(all.begin(), all.end(), [](const Step& step) {
    return step.kind == Step::Kind::host_write;
  });
  ASSERT_NE(found, all.end());
  EXPECT_EQ(found->ahead, 3u);
  EXPECT_EQ(found->item, item_of(&state));
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

/// Blocks leave behind an event, to be made again at a later one, in each of these periods: `made`
/// is made from a weight and from `from`, and `sum` from both, as where a residual is added. The
/// program frees `from` and `made` while all are away: they are kept until `sum` was made again.
class OutlookDroppedTest : public OutlookTest {
 protected:
  static constexpr unsigned weight = 1, from = 60, made = 61, sum = 62;
  struct Drop {
    unsigned variable;
    std::vector<unsigned> inputs;
    size_t left, back;  // events
  };

  void SetUp() override {
    play(begin(5));
    play(script_, 6);
    play_dropping(1);
    ASSERT_TRUE(history().known());
    ASSERT_EQ(history().period(), script_.size());
  }
  static Script script() {
    using enum Act::What;
    Script script = training(5);
    const Script first = {{allocate, from, 4}, {write, from}, {allocate, made, 2}, {write, made}},
                 second = {{allocate, sum, 3}, {read, made}, {write, sum}},
                 frees = {{free, from}, {free, made}}, last = {{read, sum}, {free, sum}};
    script.insert(script.begin() + 18, last.begin(), last.end());
    script.insert(script.begin() + 9, frees.begin(), frees.end());
    script.insert(script.begin() + 6, second.begin(), second.end());
    script.insert(script.begin(), first.begin(), first.end());
    return script;
  }
  size_t find(Act::What what, unsigned variable) const {
    for (size_t at = 0; at < script_.size(); ++at)
      if (script_[at].what == what && script_[at].variable == variable) return at;
    return script_.size();
  }
  bool is_away(const Drop& drop, size_t at) const { return at > drop.left && at <= drop.back; }
  Block* block_of(unsigned variable) const {
    const auto kept = kept_.find(variable);
    return kept != kept_.end() ? kept->second : of_.at(variable);
  }
  void act_dropping(size_t at) {
    const Act& act = script_[at];
    if (act.what == Act::What::free && (act.variable == from || act.variable == made)) {
      Block* const block = kept_[act.variable] = std::exchange(of_[act.variable], nullptr);
      block->kept = true;
      happens(EventKind::free, *block);
    } else {
      this->act(act);
    }
    for (const Drop& drop : drops_) {
      if (at != drop.left) continue;
      std::vector<const Block*> inputs;
      for (const unsigned input : drop.inputs) inputs.push_back(of_.at(input));
      learner_.note_dropped(*of_.at(drop.variable), inputs);
      feed();
    }
    if (act.what != Act::What::read || act.variable != sum) return;
    for (const auto& [variable, block] : kept_) {
      block->kept = false;
      table_.recycle(block);
    }
    kept_.clear();
  }
  void play_dropping(unsigned times) {
    while (times-- > 0)
      for (size_t at = 0; at < script_.size(); ++at) act_dropping(at);
  }
  /// Before the script's event `at`; `drops`: in a period in which the blocks leave.
  void look_dropping(size_t at, bool drops = true) {
    outlook_.clear();
    const auto dropped = [&](unsigned variable) {
      return drops && std::any_of(drops_.begin(), drops_.end(), [&](const Drop& drop) {
        return drop.variable == variable && is_away(drop, at);
      });
    };
    for (const auto& blocks : {of_, kept_})
      for (const auto& [variable, block] : blocks)
        if (block && dropped(variable))
          outlook_.add_dropped(learner_, *block, block->pages);
        else if (block)
          add(*block);
    for (const Drop& drop : drops_)
      for (const unsigned input : drop.inputs)
        if (drops && is_away(drop, at))
          outlook_.add_recipe(learner_, *block_of(drop.variable), *block_of(input));
    outlook_.look_ahead(learner_, [](const History::Upcoming& coming) {
      return coming.bytes / page_bytes;
    });
  }
  /// Pages alive behind each of the period's events that concern memory, by the outlook. No step is
  /// of a block that is not there.
  std::map<uint64_t, uint64_t> alive() const {
    std::map<uint64_t, uint64_t> pages;
    std::vector<bool> there;
    uint64_t sum = 0;
    for (const Item& item : outlook_.items()) {
      there.push_back(!item.born);
      if (!item.born) sum += item.size;
    }
    for (const Step& step : outlook_.steps()) {
      const uint64_t size = outlook_.items()[step.item].size;
      EXPECT_EQ(there[step.item], step.kind != Step::Kind::birth) << step.ahead;
      if (step.kind == Step::Kind::birth) sum += size;
      if (step.kind == Step::Kind::death) sum -= size;
      if (step.kind == Step::Kind::birth) there[step.item] = true;
      if (step.kind == Step::Kind::death) there[step.item] = false;
      pages[step.ahead] = sum;
    }
    return pages;
  }
  /// The same by the script, from its event `at` on. Events that change nothing are none.
  std::map<uint64_t, uint64_t> scripted(size_t at, bool drops) const {
    std::map<unsigned, uint64_t> size;
    for (const auto& blocks : {of_, kept_})
      for (const auto& [variable, block] : blocks)
        if (block) size[variable] = block->pages;
    for (const Drop& drop : drops_)
      if (drops && is_away(drop, at)) size[drop.variable] = 0;
    std::map<uint64_t, uint64_t> pages;
    for (uint64_t ahead = 1; ahead <= script_.size(); ++ahead) {
      const size_t event = (at + ahead - 1) % script_.size();
      const Act& act = script_[event];
      if (act.what == Act::What::allocate) size[act.variable] = act.granules * granule_pages;
      const bool kept = drops && (act.variable == from || act.variable == made);
      if (act.what == Act::What::free && kept) continue;
      if (act.what == Act::What::free) size.erase(act.variable);
      for (const Drop& drop : drops_) {
        if (drops && event == drop.left) size[drop.variable] = 0;
        if (drops && event == drop.back && drop.variable == sum) size = back(size);
      }
      for (const auto& [variable, of] : size) pages[ahead] += of;
    }
    return pages;
  }
  static std::map<unsigned, uint64_t> back(std::map<unsigned, uint64_t> size) {
    size[sum] = 3 * granule_pages;
    size.erase(from);
    size.erase(made);
    return size;
  }

  const Script script_ = script();
  const std::vector<Drop> drops_ = {
      {made, {weight, from}, find(Act::What::read, made), find(Act::What::read, sum)},
      {sum, {made, from}, find(Act::What::write, sum), find(Act::What::read, sum)}};
  std::map<unsigned, Block*> kept_;
};

TEST_F(OutlookDroppedTest, blocks_that_left_to_be_made_again_do_so_in_the_next_period_too) {
  for (size_t at = 0; at < 2 * script_.size(); ++at) {
    SCOPED_TRACE("before event " + std::to_string(at));
    look_dropping(at % script_.size());
    EXPECT_EQ(alive(), scripted(at % script_.size(), true));
    act_dropping(at % script_.size());
  }
}

TEST_F(OutlookDroppedTest, inputs_are_read_before_a_block_is_made_again_and_made_again_before) {
  for (size_t at = 0; at < 2 * script_.size(); ++at) {
    SCOPED_TRACE("before event " + std::to_string(at));
    look_dropping(at % script_.size());
    const uint64_t back = (drops_[1].back + script_.size() - at % script_.size()) %
                          script_.size() + 1;
    std::vector<std::pair<Step::Kind, uint64_t>> steps;  // and pages
    for (const Step& step : outlook_.steps())
      if (step.ahead == back) steps.emplace_back(step.kind, outlook_.items()[step.item].size);
    const auto pages = [](uint64_t granules) { return granules * granule_pages; };
    ASSERT_EQ(steps.size(), 9u);
    EXPECT_EQ(steps[2], std::pair(Step::Kind::birth, pages(2)));
    EXPECT_EQ(steps[5], std::pair(Step::Kind::birth, pages(3)));
    EXPECT_EQ(steps[8], std::pair(Step::Kind::read, pages(3)));  // the program's
    std::sort(steps.begin(), steps.end());
    // Of weight 1, which has 3 granules, of `from` twice, of `made` and of `sum`.
    EXPECT_EQ(std::count(steps.begin(), steps.end(), std::pair(Step::Kind::read, pages(4))), 2);
    EXPECT_EQ(std::count(steps.begin(), steps.end(), std::pair(Step::Kind::read, pages(3))), 2);
    EXPECT_EQ(std::count(steps.begin(), steps.end(), std::pair(Step::Kind::read, pages(2))), 1);
    EXPECT_EQ(std::count(steps.begin(), steps.end(), std::pair(Step::Kind::death, pages(4))), 1);
    EXPECT_EQ(std::count(steps.begin(), steps.end(), std::pair(Step::Kind::death, pages(2))), 1);
    act_dropping(at % script_.size());
  }
}

TEST_F(OutlookDroppedTest, an_input_that_is_kept_at_the_end_goes_on_as_the_one_from_the_begin) {
  const size_t at = drops_[1].back;  // before it
  for (size_t event = 0; event < at; ++event) act_dropping(event);
  look_dropping(at);
  const Block* const kept = kept_.at(from);
  const auto& items = outlook_.items();
  const auto again = std::count_if(items.begin(), items.end(), [&](const Item& item) {
    return item.born && item.size == kept->pages && item.again == item_of(kept);
  });
  EXPECT_EQ(again, 1);
}

TEST_F(OutlookDroppedTest, blocks_that_stay_from_some_period_on_are_there_in_the_next) {
  play(script_);
  look_dropping(0, false);
  EXPECT_EQ(alive(), scripted(0, false));
}

TEST_F(OutlookDroppedTest, one_that_ended_before_its_last_events_were_learned_is_left_out) {
  Block& block = allocate(1);
  touch(block);
  const Identity of = identity(block);
  learner_.note_dropped(block, {});
  ring_.push(EventKind::free, block.index);
  ++block.generation;
  feed();
  EXPECT_EQ(learner_.dropped_behind(of), 0u);
  EXPECT_EQ(learner_.dropped_behind(1 << 20), 0u);
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
