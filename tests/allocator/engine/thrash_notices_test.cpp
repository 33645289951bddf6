// Waits made up: the lines that are said of them, and when the observer is told.
#include "allocator/engine/thrash_notices.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

using namespace firn;

namespace {
constexpr uint64_t ms = 1'000'000, mib = 1u << 20;

/// A program in which each 10 ms eight are waited for a block, and something comes back.
class ThrashNoticesTest : public ::testing::Test {
 protected:
  ThrashNoticesTest() {
    block_.index = 5;
    block_.pages = 4 * granule_pages;
    block_.generation = 3;
    wait_ = {.ns = 8 * ms, .block = &block_, .bytes = 8 * mib, .maker = nullptr};
    figures_.totals.movable_bytes = 100 * mib;
    figures_.budget_bytes = 32 * mib;
    figures_.tick = 1;
    figures_.working_bytes = [this](uint64_t since) {
      since_.push_back(since);
      return working_bytes_;
    };
    figures_.device_bytes = [this] {
      ++device_asked_;
      return device_bytes_;
    };
  }

  void wait_once(uint64_t back) {
    now_ += 2 * ms;
    const uint64_t begin = now_;
    now_ += 8 * ms;
    figures_.totals.arrived_bytes += back;
    figures_.totals.faults += back > 0;
    const ThrashNotices::Notice notice = notices_.look(begin, now_, wait_, figures_);
    if (!notice.words.empty()) lines_.push_back(notice.words);
    if (notice.asked) asked_.push_back(*notice.asked);
  }
  void run(unsigned milliseconds, uint64_t back_each) {
    for (unsigned i = 0; i < milliseconds / 10; ++i) wait_once(back_each);
  }
  /// The program computes, and waits again: whatever it was, it is over.
  void pause() {
    now_ += 60'000 * ms;
    wait_once(0);
  }
  void until_asked() {
    while (!notices_.asking() && now_ < 1'000'000 * ms) wait_once(mib);
  }
  /// The line that is said in the end; what is asked for begins before it.
  std::string thrash() {
    while ((lines_.empty() || !lines_.back().starts_with("thrash: ")) && now_ < 1'000'000 * ms)
      wait_once(20 * mib);
    return lines_.empty() ? "" : lines_.back();
  }
  static void expect_in(const std::string& part, const std::string& line) {
    EXPECT_NE(line.find(part), std::string::npos) << line;
  }

  ThrashNotices notices_;
  ThrashNotices::Figures figures_;
  Block block_;
  Wait wait_;
  uint64_t now_ = 1000 * ms;
  uint64_t working_bytes_ = 64 * mib;
  std::optional<uint64_t> device_bytes_ = 1000 * mib;
  unsigned device_asked_ = 0;
  std::vector<uint64_t> since_;  // as working_bytes was asked for
  std::vector<std::string> lines_;
  std::vector<bool> asked_;
};

TEST_F(ThrashNoticesTest, asked_storm_and_thrash_in_their_order_each_once) {
  run(1'100, mib);
  EXPECT_EQ(asked_, std::vector{true});
  EXPECT_TRUE(lines_.empty());
  run(1'700, mib);
  EXPECT_EQ(asked_, std::vector{true}) << "of the storm nobody is told";
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_TRUE(lines_[0].starts_with("fault storm: ")) << lines_[0];
  EXPECT_TRUE(notices_.asking());
  run(20'000, mib);
  EXPECT_EQ(asked_, (std::vector{true, false}));
  ASSERT_EQ(lines_.size(), 2u);
  EXPECT_TRUE(lines_[1].starts_with("thrash: ")) << lines_[1];
  EXPECT_FALSE(notices_.asking());
  pause();
  run(40'000, mib);
  EXPECT_EQ(lines_.size(), 2u);
  EXPECT_EQ(asked_.size(), 2u);
}

TEST_F(ThrashNoticesTest, a_storm_that_passes_is_told_to_the_observer_alone) {
  until_asked();
  pause();
  EXPECT_EQ(asked_, (std::vector{true, false}));
  EXPECT_TRUE(lines_.empty());
  until_asked();
  EXPECT_EQ(asked_, (std::vector{true, false, true}));
}

TEST_F(ThrashNoticesTest, the_storm_s_figures_are_said) {
  run(3'000, 20 * mib / 250);
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_EQ(lines_[0],
            "fault storm: the program spent 80 % of the last 2.5 s waiting for memory (250 blocks, "
            "20MiB came back; the budget is 32MiB). firn top shows who waits; a larger firn_budget "
            "helps");
}

TEST_F(ThrashNoticesTest, the_one_that_waited_longest_is_named_with_its_block_s_maker) {
  figures_.observed = true;
  until_asked();
  notices_.waited({.name = "aten::mul", .site = "loop.py:9 in step", .waits = 9, .ns = 500 * ms,
                   .longest = {400 * ms, &block_, 2 * mib, "loop.py:1 in <module>"}});
  for (int i = 0; i < 2; ++i)
    notices_.waited({.name = "aten::add_", .site = "loop.py:7 in step", .waits = 3, .ns = 450 * ms,
                     .longest = {200 * ms, &block_, 8 * mib, "loop.py:3 in <module>"}});
  expect_in(". It waited longest for a block of 8MiB (allocated by loop.py:3 in <module>), in "
            "aten::add_, loop.py:7 in step (0.9 s in 6 waits). The working set is ",
            thrash());
}

TEST_F(ThrashNoticesTest, a_block_without_a_maker_is_said_as_such) {
  figures_.observed = true;
  until_asked();
  notices_.waited({.name = "aten::mul", .site = "", .waits = 1, .ns = 500 * ms,
                   .longest = {500 * ms, &block_, 1500 * mib, nullptr}});
  expect_in(" a block of 1.5GiB (allocated before Firn recorded this), in aten::mul (0.5 s",
            thrash());
}

TEST_F(ThrashNoticesTest, room_has_no_maker) {
  figures_.observed = true;
  until_asked();
  notices_.waited({.name = "", .site = "", .waits = 1, .ns = 500 * ms,
                   .longest = {500 * ms, nullptr, 3 * mib, nullptr}});
  expect_in(". It waited longest for room for 3MiB (0.5 s in 1 waits). ", thrash());
}

TEST_F(ThrashNoticesTest, without_a_front_end_the_waits_themselves_are_counted) {
  wait_.maker = "aten::ones";
  until_asked();
  expect_in(" for a block of 8MiB (allocated by aten::ones) (", thrash());
}

TEST_F(ThrashNoticesTest, with_a_front_end_they_are_left_to_it) {
  figures_.observed = true;
  const std::string line = thrash();
  EXPECT_EQ(line.find("It waited"), std::string::npos) << line;
}

TEST_F(ThrashNoticesTest, reports_count_only_while_they_are_asked_for) {
  const WaitedBy early{.name = "early", .site = "", .waits = 1, .ns = 900'000 * ms, .longest = {}};
  notices_.waited(early);
  notices_.made_by(block_, "early.py:1");
  EXPECT_EQ(notices_.maker_of(block_), nullptr);
  until_asked();
  notices_.waited(early);
  notices_.made_by(block_, "early.py:1");
  EXPECT_STREQ(notices_.maker_of(block_), "early.py:1");
  pause();
  until_asked();  // anew
  EXPECT_EQ(notices_.maker_of(block_), nullptr);
  const std::string line = thrash();
  EXPECT_EQ(line.find("early"), std::string::npos) << line;
}

TEST_F(ThrashNoticesTest, a_line_that_made_a_block_goes_before_the_operator) {
  EXPECT_EQ(notices_.maker_of(block_), nullptr);
  block_.maker.store("aten::ones");
  block_.maker_of.store(3);
  EXPECT_STREQ(notices_.maker_of(block_), "aten::ones");
  until_asked();
  notices_.made_by(block_, "loop.py:3");
  EXPECT_STREQ(notices_.maker_of(block_), "loop.py:3");
  block_.generation = 4;  // freed meanwhile
  EXPECT_EQ(notices_.maker_of(block_), nullptr);
  Block small;
  notices_.made_by(small, "loop.py:4");
  EXPECT_EQ(notices_.maker_of(small), nullptr);
}

TEST_F(ThrashNoticesTest, makers_live_on) {
  until_asked();
  const std::string text(200, 'm');
  notices_.made_by(block_, text);
  const char* const maker = notices_.maker_of(block_);
  pause();
  until_asked();
  for (int i = 0; i < 1'000; ++i) notices_.made_by(block_, text + std::to_string(i));
  notices_.made_by(block_, text);
  EXPECT_EQ(notices_.maker_of(block_), maker);
  EXPECT_EQ(maker, text);
}

TEST_F(ThrashNoticesTest, a_working_set_that_fits_says_so) {
  working_bytes_ = 31 * mib;
  figures_.observed = true;
  EXPECT_TRUE(thrash().ends_with(". The working set of 32MiB fits in the budget of 32MiB: Firn "
                                 "found no firn_budget that would stop the thrashing"))
      << lines_.back();
  EXPECT_EQ(device_asked_, 0u);
}

TEST_F(ThrashNoticesTest, a_budget_that_would_be_enough_is_said) {
  EXPECT_TRUE(thrash().ends_with(". The working set is 64MiB; firn_budget:64MiB would stop the "
                                 "thrashing (the budget is 32MiB now)"))
      << lines_.back();
  EXPECT_EQ(device_asked_, 1u);
}

TEST_F(ThrashNoticesTest, a_device_that_is_too_small_is_said) {
  device_bytes_ = 63 * mib;
  EXPECT_TRUE(thrash().ends_with(
      "; the device has only 63MiB: use a smaller batch or recomputation"))
      << lines_.back();
}

TEST_F(ThrashNoticesTest, a_device_that_just_suffices_is_not_mentioned) {
  device_bytes_ = 64 * mib;
  EXPECT_TRUE(thrash().ends_with("(the budget is 32MiB now)")) << lines_.back();
}

TEST_F(ThrashNoticesTest, a_device_that_does_not_answer_is_not_mentioned) {
  device_bytes_ = std::nullopt;
  EXPECT_TRUE(thrash().ends_with("(the budget is 32MiB now)")) << lines_.back();
}

TEST_F(ThrashNoticesTest, the_working_set_is_the_most_since_the_asking_began_with_room) {
  figures_.tick = 17;
  until_asked();
  EXPECT_TRUE(since_.empty());
  figures_.tick = 50;
  wait_once(mib);
  wait_ = {.ns = 8 * ms, .block = nullptr, .bytes = 10 * mib, .maker = nullptr};
  wait_once(mib);
  working_bytes_ = 40 * mib;
  expect_in("firn_budget:74MiB would", thrash());
  EXPECT_EQ(since_, std::vector<uint64_t>(since_.size(), 17));
}

TEST_F(ThrashNoticesTest, the_working_set_of_an_asking_before_is_forgotten) {
  until_asked();
  working_bytes_ = 500 * mib;
  wait_once(mib);
  pause();
  working_bytes_ = 64 * mib;
  until_asked();
  expect_in("firn_budget:64MiB would", thrash());
}

}  // namespace
