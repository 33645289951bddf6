// Which coming allocations count on a ready block, which ask for one, and the order in which parked
// blocks are reclaimed.
#include "allocator/policy/births.h"

#include <algorithm>
#include <set>

#include "allocator/lifetimes/decide.h"
#include "tests/allocator/policy/policy_fixture.h"

using namespace firn;
using namespace firn::test;

namespace {

using Made = std::vector<std::pair<unsigned, size_t>>;

class BirthsTest : public PolicyTest {
 protected:
  /// The script is known, and its next event is the one of that number.
  void know(Script script, size_t at) {
    script_ = std::move(script);
    play(begin(6));
    play(script_, 8);
    ASSERT_TRUE(history().known());
    ASSERT_EQ(history().period(), script_.size());
    for (size_t i = 0; i < at; ++i) act(script_[i]);
    at_ = at;
  }
  void next() { act(script_[at_++ % script_.size()]); }
  /// The event number of the script's next event `number`.
  uint64_t event_of(size_t number) const {
    const size_t size = script_.size();
    return learner_.history().now() + 1 + (number + size - at_ % size) % size;
  }
  bool ahead() {
    return births_.allocate_ahead(learner_, parked_, [this](unsigned stream, size_t bytes) {
      made_.emplace_back(stream, bytes);
      return made_.size() <= room_;
    });
  }
  /// A block that was freed as the `age`-th.
  Block& block(uint32_t granules, unsigned stream = 0, uint64_t age = 1) {
    Block& block = *table_.make();
    block.pages = granules * granule_pages;
    block.stream = static_cast<uint16_t>(stream);
    block.age.store(age);
    block.next_use = 7;
    return block;
  }
  Block& park(uint32_t granules, uint64_t age = 1, unsigned stream = 0) {
    return *parked_.emplace_back(&block(granules, stream, age));
  }
  std::vector<Block*> order() {
    births_.begin_reclaiming(&learner_, parked_);
    return parked_;
  }
  static size_t bytes_of(uint32_t granules) { return granules * granule_bytes; }

  Script script_;
  size_t at_ = 0;
  std::vector<Block*> parked_;
  std::map<std::pair<unsigned, unsigned>, uint32_t> ready_;  // by stream and class
  std::set<uint64_t> placed_;                                // by size
  unsigned placed_asked_ = 0;
  size_t room_ = 100;  // for so many blocks
  Made made_;
  Births births_{{16 * granule_pages,
                  [this](unsigned stream, unsigned size_class) {
                    EXPECT_LT(size_class, size_class::count);
                    return ready_[{stream, size_class}];
                  },
                  [this](Identity identity, uint64_t known_as) {
                    EXPECT_NE(identity, 0u);
                    ++placed_asked_;
                    return placed_.contains(known_as);
                  }}};
};

using enum Act::What;
/// Two allocations of three granules, one after the other, and one of five.
const Script program{{read, 0},         {allocate, 10, 3}, {write, 10},       {free, 10},
                     {allocate, 11, 3}, {read, 11},        {read, 1},         {free, 11},
                     {read, 2},         {read, 3},         {read, 2},         {read, 4},
                     {allocate, 12, 5}, {write, 12},       {read, 5},         {free, 12},
                     {write, 5},        {read, 1}};
constexpr size_t first = 1, first_freed = 3, third = 12;

/// An allocation of three granules, and behind it another one.
Script pair(uint32_t granules) {
  return {{read, 0},  {allocate, 10, 3}, {allocate, 11, granules}, {write, 10}, {write, 11},
          {read, 1},  {free, 10},        {read, 2},                {free, 11},  {read, 3}};
}
/// One that is freed as its successor is there already, and another one.
const Script leaving{{allocate, 10, 3}, {write, 10}, {read, 0}, {free_old, 10}, {allocate, 11, 3},
                     {write, 11},       {read, 1},   {free, 11}, {read, 2}};
/// Six allocations, of other sizes each, and 48 events in all.
Script six() {
  Script script;
  for (unsigned i = 0; i < 6; ++i) {
    script.push_back({allocate, 10 + i, 3 + i});
    for (unsigned j = 0; j < 6; ++j) script.push_back({j <= i ? read : write, (i + j) % 6});
    script.push_back({free, 10 + i});
  }
  return script;
}

TEST_F(BirthsTest, an_allocation_counts_on_a_block_that_is_freed_before_it) {
  know(program, first_freed);  // the next four: free, allocate, read, read
  EXPECT_FALSE(ahead());
  EXPECT_TRUE(made_.empty());
  EXPECT_TRUE(births_.spared(block(3)));
  EXPECT_FALSE(births_.spared(block(3))) << "one allocation counts on one block";
}

TEST_F(BirthsTest, one_that_nothing_serves_is_asked_for_once) {
  know(program, first);  // the next four: allocate, write, free, allocate
  EXPECT_TRUE(ahead());
  EXPECT_EQ(made_, (Made{{0, bytes_of(3)}}));
  EXPECT_FALSE(ahead()) << "before anything else happens";
  EXPECT_EQ(made_.size(), 1u);
}

TEST_F(BirthsTest, one_is_asked_for_four_events_ahead_and_no_sooner) {
  know(program, third - 4);
  EXPECT_FALSE(ahead());
  EXPECT_TRUE(made_.empty());
  next();
  EXPECT_TRUE(ahead());
  EXPECT_EQ(made_, (Made{{0, bytes_of(5)}}));
}

TEST_F(BirthsTest, what_there_is_no_room_for_is_asked_for_again_and_nothing_after_it) {
  know(pair(4), first);
  const Made once{{0, bytes_of(3)}}, again{{0, bytes_of(3)}, {0, bytes_of(3)}};
  room_ = 0;
  EXPECT_FALSE(ahead());
  EXPECT_EQ(made_, once);
  EXPECT_FALSE(births_.spared(block(3))) << "an allocation without a block counts on none";
  EXPECT_FALSE(ahead());
  EXPECT_EQ(made_, again);
  made_.clear();
  room_ = 1;
  EXPECT_TRUE(ahead());
  EXPECT_EQ(made_, (Made{{0, bytes_of(3)}, {0, bytes_of(4)}}));
  EXPECT_TRUE(births_.spared(block(3)));
  EXPECT_FALSE(births_.spared(block(4)));
}

TEST_F(BirthsTest, ready_blocks_of_its_kind_serve_it) {
  know(program, first);
  ready_[{0, size_class::of_pages(3 * granule_pages)}] = 1;
  EXPECT_FALSE(ahead());
  EXPECT_TRUE(made_.empty());
}

TEST_F(BirthsTest, parked_blocks_of_its_kind_serve_it) {
  know(program, first);
  park(3);
  EXPECT_FALSE(ahead());
  EXPECT_TRUE(made_.empty());
}

TEST_F(BirthsTest, blocks_of_other_kinds_do_not_serve_it) {
  know(program, first);
  ready_[{1, size_class::of_pages(3 * granule_pages)}] = 1;
  ready_[{0, size_class::of_pages(4 * granule_pages)}] = 1;
  park(4);
  park(3, 1, 1);
  park(3).segment = 9;  // it stands for a segment
  EXPECT_TRUE(ahead());
  EXPECT_EQ(made_, (Made{{0, bytes_of(3)}}));
}

TEST_F(BirthsTest, sizes_have_kinds_of_their_own) {
  know(pair(4), first);
  ready_[{0, size_class::of_pages(4 * granule_pages)}] = 1;
  EXPECT_TRUE(ahead());
  EXPECT_EQ(made_, (Made{{0, bytes_of(3)}}));
}

TEST_F(BirthsTest, of_the_largest_none_are_ready_but_parked_ones) {
  know(pair(2'000), first);
  park(2'000);
  EXPECT_TRUE(ahead());
  EXPECT_EQ(made_, (Made{{0, bytes_of(3)}}));
  EXPECT_TRUE(births_.spared(*parked_[0]));
}

/// An older holder of an identity steps aside as the next one is allocated; where it came from is
/// then unknown.
TEST_F(BirthsTest, nothing_counts_on_a_free_whose_stream_is_unknown) {
  play({leaving.front()});
  know(leaving, 3);
  const History::Upcoming free = history().upcoming(1);
  ASSERT_EQ(free.kind, EventKind::free);
  ASSERT_EQ(learner_.stream_of(free.identity), std::nullopt);
  EXPECT_TRUE(ahead());
  EXPECT_EQ(made_, (Made{{0, bytes_of(3)}}));
}

TEST_F(BirthsTest, streams_have_kinds_of_their_own) {
  for (int round = 0; round < 12; ++round) {
    Block& a = allocate(3, 1);
    touch(a);
    touch(a, true);
    if (round == 11) break;
    free(a);
    Block& b = allocate(3, 2);
    touch(b);
    free(b);
  }
  ASSERT_EQ(history().period(), 7u);
  EXPECT_TRUE(ahead());  // the next four: free on stream 1, allocate on stream 2, ...
  EXPECT_EQ(made_, (Made{{2, bytes_of(3)}}));
  EXPECT_TRUE(births_.spared(block(3, 2)));
  EXPECT_FALSE(births_.spared(block(3, 1)));
}

TEST_F(BirthsTest, what_has_a_planned_place_needs_no_block) {
  know(program, first);
  placed_.insert(bytes_of(3));
  EXPECT_FALSE(ahead());
  EXPECT_TRUE(made_.empty());
  EXPECT_GT(placed_asked_, 0u);
  Block& three = park(3, 20);
  Block& five = park(5, 10);
  EXPECT_EQ(order(), (std::vector{&five, &three}));
  EXPECT_EQ(three.next_use, lifetimes::no_use);
}

TEST_F(BirthsTest, after_a_pause_nothing_is_made_until_the_program_goes_on) {
  know(program, first - 1);
  births_.pause(learner_);
  EXPECT_FALSE(ahead());
  EXPECT_TRUE(made_.empty());
  next();
  EXPECT_TRUE(ahead());
}

TEST_F(BirthsTest, without_a_known_future_those_freed_first_are_reclaimed_first) {
  Block& oldest = park(3, 10);
  Block& youngest = park(3, 30);
  Block& between = park(5, 20);
  EXPECT_EQ(order(), (std::vector{&youngest, &between, &oldest}));  // from the back
  std::swap(parked_[0], parked_[2]);
  births_.begin_reclaiming(nullptr, parked_);
  EXPECT_EQ(parked_, (std::vector{&youngest, &between, &oldest}));
}

TEST_F(BirthsTest, a_match_that_deserves_no_trust_tells_no_order) {
  play(begin(6));
  play(program);
  for (size_t at = 0; history().period() == 0 && at < program.size(); ++at) act(program[at]);
  ASSERT_NE(history().period(), 0u);
  ASSERT_FALSE(history().known());
  Block& three = park(3, 10);
  Block& five = park(5, 20);
  EXPECT_EQ(order(), (std::vector{&five, &three}));
  EXPECT_EQ(three.next_use, 7u);
  EXPECT_EQ(placed_asked_, 0u);
}

TEST_F(BirthsTest, parked_blocks_wanted_last_are_reclaimed_first) {
  know(program, 0);
  Block& unknown = park(9, 50);  // nothing will ask for it
  Block& later = park(5, 40);
  Block& spare = park(3, 10);    // the second allocation has what the first one frees
  Block& soon = park(3, 20);
  Block& segment = park(3, 30);
  segment.segment = 9;
  EXPECT_EQ(order(), (std::vector{&soon, &later, &unknown, &segment, &spare}));
  EXPECT_EQ(soon.next_use, event_of(first));
  EXPECT_EQ(later.next_use, event_of(third));
  for (const Block* block : {&unknown, &segment, &spare})
    EXPECT_EQ(block->next_use, lifetimes::no_use);
}

TEST_F(BirthsTest, what_is_freed_first_leaves_nothing_wanted) {
  know(program, first_freed);
  Block& three = park(3, 20);
  Block& five = park(5, 10);
  EXPECT_EQ(order(), (std::vector{&five, &three}));
  EXPECT_EQ(five.next_use, event_of(third));
  EXPECT_EQ(three.next_use, lifetimes::no_use);
}

TEST_F(BirthsTest, wants_are_foreseen_anew_after_a_part_of_the_period) {
  know(six(), 1);
  ASSERT_EQ(script_.size() / 16, 3u);
  Block& block = park(3);
  (void)order();
  unsigned asked = placed_asked_;
  EXPECT_GT(asked, 0u);
  EXPECT_EQ(block.next_use, lifetimes::no_use) << "what is freed first serves it";
  for (int i = 0; i < 3; ++i) next();
  (void)order();
  EXPECT_EQ(placed_asked_, asked);
  next();
  (void)order();
  EXPECT_GT(placed_asked_, asked);
  for (int i = 0; i < 4; ++i) next();  // the free is over
  (void)order();
  EXPECT_EQ(block.next_use, event_of(0));
}

TEST_F(BirthsTest, a_claimed_block_is_spared_once_for_each_claim) {
  know(pair(3), first);
  Block* const blocks[] = {&park(3), &park(3), &park(3), &park(4), &park(3, 1, 1)};
  EXPECT_FALSE(ahead());
  for (int round = 0; round < 2; ++round) {
    (void)order();
    EXPECT_FALSE(births_.spared(*blocks[3]));
    EXPECT_FALSE(births_.spared(*blocks[4]));
    EXPECT_TRUE(births_.spared(*blocks[0]));
    EXPECT_TRUE(births_.spared(*blocks[1]));
    EXPECT_FALSE(births_.spared(*blocks[2]));
    EXPECT_FALSE(births_.spared(*blocks[0]));
  }
}

}  // namespace
