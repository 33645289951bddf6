// carry_out.h over tiers of a few numbers, which write down what they are asked to do.
#include "allocator/lifetimes/carry_out.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

using namespace firn::lifetimes;

namespace {

struct Piece {
  uint64_t pages = 4;
  bool stored = false, unwritten = false, only_stored = false;
};

struct Block {
  uint64_t size = 4, mapped = 4, clean = 0, next_use = no_use;
  bool used = false, captured = false, copied = false, leaves = false, at_host = false;
  std::vector<Piece> pieces{{}};
  uint32_t life = 1;
  uint64_t touched = 0;
};

/// A page is a byte.
struct Machine {
  std::map<char, Block> blocks;
  uint64_t free = 0, ready = 0, leaving = 0, in = 0, out = 0, written = 0, read = 0, used = 0;
  uint64_t host = 1000, span = 4, spare = 0, at = 0, host_copies = 0;
  double reading = 0, bytes_s[channel_count] = {};
  bool store = true, host_wanted = false;
  std::optional<PieceOf<char>> longest, last_used;
  std::string did;  // "A-4": four pages of A leave; "A~4": are made clean; "A+4": arrive; "h": a
                    // host copy is given up; "A<0": its piece 0 is read
};

class Tiers {
 public:
  using Handle = char;
  explicit Tiers(Machine& machine) : m_(&machine) {}
  uint32_t life(char b) const { return of(b).life; }
  uint64_t touched(char b) const { return of(b).touched; }
  uint64_t next_use(char b) const { return of(b).next_use; }
  uint64_t size(char b) const { return of(b).size; }
  uint64_t mapped(char b) const { return of(b).mapped; }
  uint64_t coming(char) const { return 0; }
  uint64_t clean(char b) const { return of(b).clean; }
  bool may_leave(char b) const { return of(b).mapped > 0 && !of(b).leaves; }
  bool unused(char b) const { return !of(b).used; }
  void watch_uses(char b) { m_->did += std::string(1, b) + "? "; }
  bool aside(char b) const { return of(b).captured; }
  std::vector<char> copied_out() const {
    std::vector<char> out;
    for (const auto& [name, block] : m_->blocks)
      if (block.copied) out.push_back(name);
    return out;
  }
  bool is_copied_out(char b) const { return of(b).copied; }
  uint64_t copied_tail(char b) const { return of(b).mapped; }
  uint64_t make_leave(char b, uint64_t pages) {
    const uint64_t part = std::min(pages, of(b).mapped);
    note(b, '-', part);
    const uint64_t at_once = std::min(part, of(b).clean);
    of(b).mapped -= at_once;
    of(b).clean -= at_once;
    m_->free += at_once;
    m_->leaving += part - at_once;
    of(b).leaves = part > at_once;
    return part;
  }
  bool make_clean(char b, uint64_t pages) {
    note(b, '~', pages);
    of(b).copied = true;
    m_->out += pages;
    return true;
  }
  void stop_cleaning(char b) {
    if (std::exchange(of(b).copied, false)) m_->did += std::string(1, b) + "! ";
  }
  void finish_leaving() {}
  bool may_arrive(char b) const { return of(b).mapped < of(b).size; }
  bool at_host(char b) const { return of(b).at_host; }
  uint64_t arrivable(char b) const { return std::min(m_->free, of(b).size - of(b).mapped); }
  uint64_t soon() const { return m_->free + m_->leaving; }
  void reclaim_ready() { m_->free += std::exchange(m_->ready, 0); }
  bool fetch(char b) {
    const uint64_t pages = std::min(arrivable(b), span_bytes());
    if (pages == 0) return false;
    ++of(b).touched;  // as an arrival does
    note(b, '+', pages);
    of(b).mapped += pages;
    m_->free -= pages;
    m_->in += pages;
    return true;
  }
  size_t pieces(char b) const { return of(b).pieces.size(); }
  uint64_t piece_pages(char b, size_t i) const { return of(b).pieces[i].pages; }
  bool stored(char b, size_t i) const { return of(b).pieces[i].stored; }
  bool unwritten(char b, size_t i) const { return of(b).pieces[i].unwritten; }
  bool only_stored(char b, size_t i) const { return of(b).pieces[i].only_stored; }
  bool drop_host_copy(uint64_t, uint64_t) {
    if (m_->host_copies == 0) return false;
    --m_->host_copies;
    m_->used -= 4;
    m_->did += "h ";
    return true;
  }
  std::optional<PieceOf<char>> unwritten_longest() const { return m_->longest; }
  std::optional<PieceOf<char>> unwritten_last_used() const { return m_->last_used; }
  bool host_wanted() const { return m_->host_wanted; }
  bool read_to_host(char b, size_t i) {
    note(b, '<', i);
    of(b).pieces[i].only_stored = false;
    m_->read += 4;
    m_->used += 4;
    return true;
  }
  static firn::NoLock& lock() { return firn::no_lock; }
  uint64_t span_bytes() const { return m_->span; }
  uint64_t host_bytes() const { return m_->host; }
  uint64_t host_used() const { return m_->used; }
  uint64_t spare_bytes() const { return m_->spare; }
  uint64_t bytes_in() const { return m_->in; }
  uint64_t bytes_out() const { return m_->out; }
  uint64_t bytes_written() const { return m_->written; }
  uint64_t bytes_read() const { return m_->read; }
  uint64_t store_bound() const { return m_->written; }
  uint64_t page_bytes() const { return 1; }
  double bytes_s(Channel channel) const { return m_->bytes_s[static_cast<size_t>(channel)]; }
  uint64_t now() const { return m_->at; }
  double reading_part() const { return m_->reading; }
  bool has_store() const { return m_->store; }

 private:
  Block& of(char b) const { return m_->blocks.at(b); }
  void note(char b, char what, uint64_t n) {
    m_->did += std::string(1, b) + what + std::to_string(n) + " ";
  }
  Machine* m_;
};

struct CarryOutTest : ::testing::Test {
  CarryOutTest() {
    plan.valid = true;
    plan.window = plan.memory_window = 10;
    plan.period = 256;
  }
  using Candidate = Plan<char>::Candidate;
  Candidate candidate(char name, uint64_t next_use, uint64_t pages = 4, bool spare = false) {
    const Block& block = machine.blocks.at(name);
    return {{name, block.life, block.touched}, next_use, pages, spare};
  }
  CarryOut<Tiers> carry() { return {plan, Tiers(machine)}; }
  std::string did() { return std::exchange(machine.did, ""); }

  Machine machine;
  Plan<char> plan;
};

}  // namespace

/// carry_out.h's own example.
TEST_F(CarryOutTest, the_example_of_three_blocks) {
  machine.blocks = {{'A', {.clean = 4, .next_use = 9}}, {'B', {.next_use = 1}},
                    {'C', {.mapped = 0, .next_use = 2}}};
  plan.fetch = {candidate('C', 2)};
  plan.farthest = {candidate('A', 9), candidate('B', 1)};
  plan.leaving = {candidate('B', 1)};
  EXPECT_TRUE(carry().fetch_ahead());
  EXPECT_EQ(did(), "A-4 C+4 ");
  EXPECT_TRUE(carry().clean_ahead());
  EXPECT_EQ(did(), "B~4 ");
  machine.blocks['A'] = {.clean = 0, .next_use = 9};
  machine.blocks['A'].touched = 5;  // the plan does not mean it any more
  EXPECT_EQ(carry().evict(4, {}), 4u);
  EXPECT_EQ(did(), "B-4 ") << "being copied out: free the soonest";
}

TEST_F(CarryOutTest, for_a_fetch_only_clean_blocks_that_are_used_later_leave) {
  machine.blocks = {{'A', {.clean = 4, .next_use = 3}}, {'B', {.next_use = 9}},
                    {'C', {.mapped = 0, .next_use = 4}}};
  plan.fetch = {candidate('C', 4)};
  plan.farthest = {candidate('B', 9), candidate('A', 3)};
  EXPECT_FALSE(carry().fetch_ahead());
  EXPECT_EQ(did(), "");
  EXPECT_EQ(plan.fetch.size(), 1u);  // tried again later
}

TEST_F(CarryOutTest, where_disks_read_all_the_time_swaps_wait_for_the_last_part_of_a_period) {
  machine.blocks = {{'A', {.clean = 4, .next_use = 100}}, {'C', {.mapped = 0, .next_use = 50}}};
  machine.reading = .9;
  machine.spare = machine.host;  // transfers only pass through
  plan.fetch = {candidate('C', 50)};
  plan.farthest = {candidate('A', 100)};
  ASSERT_TRUE(carry().host_is_passage());
  EXPECT_FALSE(carry().fetch_ahead());
  machine.at = 48;  // within 256 / 128 events of its use
  EXPECT_TRUE(carry().fetch_ahead());
  EXPECT_EQ(did(), "A-4 C+4 ");
}

TEST_F(CarryOutTest, one_that_the_processor_uses_comes_behind_that) {
  machine.blocks = {{'A', {.mapped = 0, .at_host = true}}, {'C', {.mapped = 0}}};
  machine.free = 8;
  plan.fetch = {candidate('A', 1), candidate('C', 2)};
  EXPECT_TRUE(carry().fetch_ahead());
  machine.blocks['A'].at_host = false;
  EXPECT_TRUE(carry().fetch_ahead());
  EXPECT_EQ(did(), "C+4 A+4 ");
}

TEST_F(CarryOutTest, little_arrives_at_a_time) {
  machine.blocks = {{'C', {.size = 40, .mapped = 0}}};
  machine.free = 40;
  machine.in = 16;  // four spans
  plan.fetch = {candidate('C', 5, 40)};
  EXPECT_FALSE(carry().fetch_ahead());
}

/// Else urgent transfers would queue behind it.
TEST_F(CarryOutTest, a_slow_link_has_ten_milliseconds_of_work_ahead) {
  machine.blocks = {{'A', {}}, {'C', {.size = 40, .mapped = 0}}};
  machine.free = 40;
  plan.fetch = {candidate('C', 5, 40)};
  plan.leaving = {candidate('A', 9)};
  for (const Channel channel : {Channel::host_in, Channel::host_out})
    machine.bytes_s[static_cast<size_t>(channel)] = 600;  // 6 bytes of 16 in, and of 8 out
  machine.in = machine.out = 6;
  EXPECT_FALSE(carry().fetch_ahead());
  EXPECT_FALSE(carry().clean_ahead());
  machine.in = machine.out = 5;
  EXPECT_TRUE(carry().fetch_ahead());
  EXPECT_TRUE(carry().clean_ahead());
  EXPECT_EQ(did(), "C+4 A~4 ");
}

TEST_F(CarryOutTest, a_link_that_seems_slow_has_an_eighth_of_a_span_ahead) {
  machine.span = 80;
  machine.blocks = {{'C', {.size = 160, .mapped = 0}}};
  machine.free = 160;
  plan.fetch = {candidate('C', 5, 160)};
  machine.bytes_s[static_cast<size_t>(Channel::host_in)] = 100;  // one byte in 10 ms
  machine.in = 10;
  EXPECT_FALSE(carry().fetch_ahead());
  machine.in = 9;
  EXPECT_TRUE(carry().fetch_ahead());
}

TEST_F(CarryOutTest, a_fast_link_has_four_spans_ahead_and_two_of_copies_out) {
  machine.blocks = {{'A', {}}, {'C', {.size = 40, .mapped = 0}}};
  machine.free = 40;
  plan.fetch = {candidate('C', 5, 40)};
  plan.leaving = {candidate('A', 9)};
  for (double& bytes_s : machine.bytes_s) bytes_s = 1e9;
  machine.in = 16;
  machine.out = 8;
  EXPECT_FALSE(carry().fetch_ahead());
  EXPECT_FALSE(carry().clean_ahead());
  machine.in = 15;
  machine.out = 7;
  EXPECT_TRUE(carry().fetch_ahead());
  EXPECT_TRUE(carry().clean_ahead());
}

TEST_F(CarryOutTest, a_block_that_was_touched_is_not_meant) {
  machine.blocks = {{'A', {.clean = 4, .next_use = 99}}, {'C', {.mapped = 0}}};
  plan.fetch = {candidate('C', 5)};
  plan.farthest = {candidate('A', 99)};
  machine.blocks['A'].touched = machine.blocks['C'].touched = 7;
  EXPECT_FALSE(carry().fetch_ahead());
  EXPECT_TRUE(plan.fetch.empty());
  EXPECT_EQ(carry().evict(4, {}), 0u);
  machine.blocks['A'].touched = 0;
  machine.blocks['A'].life = 2;  // another block by now
  plan.evicted = 0;
  EXPECT_EQ(carry().evict(4, {}), 0u);
  EXPECT_EQ(did(), "");
}

TEST_F(CarryOutTest, clean_blocks_used_late_leave_first_then_dirty_ones_then_those_used_soon) {
  machine.blocks = {{'A', {.next_use = 90}}, {'B', {.clean = 4, .next_use = 80}},
                    {'C', {.clean = 4, .next_use = 5}}, {'D', {.next_use = 4}}};
  plan.farthest = {candidate('A', 90), candidate('B', 80), candidate('C', 5), candidate('D', 4)};
  EXPECT_EQ(carry().evict(16, 'D'), 12u);
  EXPECT_EQ(did(), "B-4 A-4 C-4 ");
  EXPECT_EQ(carry().evict(1, 'A'), 1u);
  EXPECT_EQ(did(), "D-1 ");
}

TEST_F(CarryOutTest, blocks_that_nobody_can_wait_for_stay) {
  machine.blocks = {{'A', {.next_use = 90, .captured = true}},
                    {'B', {.clean = 4, .next_use = 80, .used = true}}};
  plan.farthest = {candidate('A', 90), candidate('B', 80)};
  EXPECT_EQ(carry().evict_farthest(4, {}, 0, true), 0u) << "its uses are not over";
  EXPECT_EQ(carry().evict_farthest(4, {}, 0, false), 4u);
  EXPECT_EQ(did(), "B-4 ");
}

TEST_F(CarryOutTest, blocks_in_use_do_not_hold_up_the_others_that_are_made_clean) {
  machine.blocks = {{'A', {.used = true}}, {'B', {}}, {'C', {.clean = 4}}};
  plan.leaving = {candidate('C', 7), candidate('A', 9), candidate('B', 8)};
  EXPECT_TRUE(carry().clean_ahead());
  EXPECT_EQ(did(), "A? B~4 ");
  EXPECT_EQ(plan.cleaned, 1u);  // past C, which is clean; A comes again
  machine.blocks['A'].used = false;
  EXPECT_TRUE(carry().clean_ahead());
  EXPECT_EQ(did(), "A~4 ");
}

TEST_F(CarryOutTest, spare_copies_wait_while_the_store_is_behind) {
  machine.blocks = {{'A', {}}};
  plan.leaving = {candidate('A', 9, 4, true)};
  machine.host = 64;
  machine.spare = 64;  // all of it: transfers only pass through
  machine.written = 8;  // two spans
  EXPECT_FALSE(carry().clean_ahead());
  machine.written = 7;
  EXPECT_TRUE(carry().clean_ahead());
}

TEST_F(CarryOutTest, host_copies_give_way_to_copies_out_and_to_reads) {
  machine.blocks = {{'A', {}}, {'B', {.mapped = 0, .pieces = {{.only_stored = true}}}}};
  machine.host = 128;
  machine.used = 100;
  machine.host_copies = 1;
  plan.leaving = {candidate('A', 9)};
  plan.reads = {candidate('B', 3)};
  EXPECT_TRUE(carry().clean_ahead());
  EXPECT_EQ(did(), "h A~4 ");
  EXPECT_FALSE(carry().read_ahead()) << "four times what is in flight stays free";
  machine.host_copies = 9;
  EXPECT_TRUE(carry().read_ahead());
  EXPECT_EQ(did(), "h h h h h h h h B<0 ");
}

TEST_F(CarryOutTest, writes_begin_at_the_tail_and_end_when_enough_is_stored) {
  machine.blocks = {{'A', {.size = 12, .pieces = {{.unwritten = true}, {.unwritten = true},
                                                  {.stored = true}}}}};
  plan.writes = {candidate('A', 9, 8)};
  const auto next = carry().next_write();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->piece, 1u);
  machine.blocks['A'].pieces[1] = {.stored = true};
  EXPECT_FALSE(carry().next_write());
  EXPECT_EQ(plan.written, 1u);
  EXPECT_TRUE(plan.write_looked);
}

TEST_F(CarryOutTest, a_spare_write_waits_for_the_others) {
  machine.blocks = {{'A', {.pieces = {{.unwritten = true}}}}};
  plan.writes = {candidate('A', 9, 4, true)};
  machine.written = 4;
  EXPECT_FALSE(carry().next_write());
  EXPECT_FALSE(plan.write_looked);
  machine.written = 0;
  EXPECT_TRUE(carry().next_write());
}

TEST_F(CarryOutTest, a_decision_is_taken_as_of_when_it_was_asked_for) {
  machine.blocks = {{'A', {}}, {'B', {.size = 40, .mapped = 0}}};
  machine.at = 30;  // ten events later
  Decision decision;
  decision.next_use = {no_use, 7};
  decision.next_change = {no_use, no_use};
  decision.window = 5;
  decision.farthest = {0};
  decision.fetch = {1};
  decision.last_pages = 12;  // less than is in flight anyway: not worth its room
  const std::vector<Named<char>> names{{'A', 1, 0}, {'B', 1, 0}};
  carry().adopt(decision, names, 20);
  EXPECT_EQ(plan.window, 25u);
  ASSERT_EQ(plan.farthest.size(), 1u);
  EXPECT_EQ(plan.farthest[0].next_use, no_use);
  EXPECT_TRUE(plan.fetch.empty());
  decision.last_pages = 20;
  carry().adopt(decision, names, 20);
  ASSERT_EQ(plan.fetch.size(), 1u);
  EXPECT_EQ(plan.fetch[0].next_use, 27u);
  EXPECT_EQ(plan.fetch[0].pages, 20u);
}

TEST_F(CarryOutTest, a_part_arrives_span_by_span_and_no_more_than_is_planned) {
  machine.blocks = {{'C', {.size = 16, .mapped = 0, .copied = true}}};
  machine.ready = 16;
  plan.fetch = {candidate('C', 5, 8)};
  EXPECT_TRUE(carry().fetch_ahead());
  EXPECT_EQ(did(), "C! C+4 C+4 ");
  EXPECT_TRUE(plan.fetch.empty());
}

TEST_F(CarryOutTest, a_block_used_at_the_windows_end_belongs_to_it) {
  machine.blocks = {{'A', {.next_use = 10}}, {'B', {.next_use = 11}}};
  plan.farthest = {candidate('B', 11), candidate('A', 10)};
  EXPECT_EQ(carry().evict_farthest(8, {}, 10, false), 4u);
  EXPECT_EQ(did(), "B-4 ");
  machine.blocks['A'].copied = machine.blocks['B'].copied = true;
  machine.blocks['B'].leaves = false;
  EXPECT_EQ(carry().evict_going(8, {}, 10), 4u);
  EXPECT_EQ(did(), "B-4 ");
}

TEST_F(CarryOutTest, blocks_being_copied_out_leave_before_dirty_ones) {
  machine.blocks = {{'A', {.next_use = 90}}, {'B', {.next_use = 80, .copied = true}}};
  plan.farthest = {candidate('A', 90), candidate('B', 80)};
  EXPECT_EQ(carry().evict(4, {}), 4u);
  EXPECT_EQ(did(), "B-4 ");
}

TEST_F(CarryOutTest, little_leaves_at_a_time_and_no_more_than_is_planned) {
  machine.blocks = {{'A', {.size = 12, .mapped = 12, .clean = 4}}, {'B', {}}};
  plan.leaving = {candidate('A', 9, 4)};
  EXPECT_FALSE(carry().clean_ahead()) << "so much of it is clean";
  plan.leaving.push_back(candidate('B', 8));
  machine.out = 8;  // two spans
  EXPECT_FALSE(carry().clean_ahead());
  machine.out = 7;
  EXPECT_TRUE(carry().clean_ahead());
}

TEST_F(CarryOutTest, little_is_read_at_a_time) {
  machine.blocks = {{'B', {.mapped = 0, .pieces = {{.only_stored = true}}}}};
  plan.reads = {candidate('B', 3)};
  machine.read = 16;  // four spans
  EXPECT_FALSE(carry().read_ahead());
  machine.read = 15;
  EXPECT_TRUE(carry().read_ahead());
}

TEST_F(CarryOutTest, writes_that_were_searched_are_searched_again_when_a_copy_has_come) {
  machine.blocks = {{'A', {.pieces = {{.unwritten = true}}}}};
  plan.writes = {candidate('A', 9)};
  plan.write_looked = true;
  EXPECT_FALSE(carry().next_write());
  plan.write_looked = false;  // as whoever brings copies does
  EXPECT_TRUE(carry().next_write());
}

TEST_F(CarryOutTest, without_a_planned_write_others_follow_as_host_memory_is_used) {
  machine.blocks = {{'A', {.pieces = {{.unwritten = true}}}}, {'B', {}}, {'C', {}}};
  machine.longest = PieceOf<char>{'B', 0};
  machine.last_used = PieceOf<char>{'C', 0};
  const auto next = [&] {
    const auto found = carry().next_write();
    return found ? found->block : '-';
  };
  EXPECT_EQ(next(), '-') << "host memory keeps them";
  machine.host_wanted = true;
  EXPECT_EQ(next(), 'C');
  machine.spare = machine.host;  // transfers only pass through
  EXPECT_EQ(next(), 'B');
  machine.longest.reset();
  EXPECT_EQ(next(), 'C');
  plan.writes = {candidate('A', 9)};
  plan.write_looked = false;
  EXPECT_EQ(next(), 'A') << "planned ones come first";
}
