// When writes to the store may begin, as its answers and the time tell.
#include "allocator/movement/write_back.h"

#include <gtest/gtest.h>

#include "allocator/movement/io_pause.h"
#include "tests/hand_clock.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr uint64_t ms = 1'000'000, second = 1'000 * ms, patience = 100 * second;

class WriteBackTest : public ::testing::Test {
 protected:
  uint64_t& now() { return clock_.now; }
  bool may_begin() const { return write_back_.may_begin(clock_.now); }
  bool pauses() const { return write_back_.pauses(clock_.now); }
  /// A write, begun and answered now, fails. True: that is to be said.
  bool fail(Code code = Code::io) {
    return write_back_.failed(make_error(code, 0, "refused, in a test"), now(), now());
  }
  /// Moves to the end of the pause, which is as long as that.
  void pause_is(uint64_t ns) {
    EXPECT_FALSE(write_back_.may_begin(now() + ns - 1));
    now() += ns;
    (void)write_back_.begin_round(now());
    EXPECT_TRUE(may_begin());
  }
  /// Each write fails, until the store counts as full. How many did before.
  unsigned fail_until_full() {
    for (unsigned failed = 0;; ++failed) {
      fail();
      if (write_back_.full() || failed == 1'000) return failed;
      EXPECT_TRUE(pauses());
      while (!may_begin()) now() += ms;
    }
  }

  HandClock clock_;
  WriteBack write_back_{patience};
};

TEST_F(WriteBackTest, without_failures_writes_begin_at_once) {
  EXPECT_FALSE(write_back_.begin_round(now()));
  EXPECT_TRUE(may_begin());
  EXPECT_FALSE(write_back_.full());
  EXPECT_FALSE(write_back_.grows());
  EXPECT_FALSE(pauses());
}

TEST_F(WriteBackTest, pauses_double_up_to_the_longest) {
  for (uint64_t pause = ms; pause < second; pause *= 2) {
    fail();
    EXPECT_TRUE(pauses());
    pause_is(pause);
    EXPECT_FALSE(pauses());
  }
  for (int i = 0; i < 95; ++i) {
    fail();
    pause_is(second);
  }
}

TEST_F(WriteBackTest, the_first_failure_of_a_row_is_to_be_said) {
  EXPECT_TRUE(fail());
  EXPECT_FALSE(fail());
  EXPECT_FALSE(fail(Code::no_space));
  write_back_.slot_came_free();
  EXPECT_FALSE(fail());
  write_back_.succeeded();
  EXPECT_TRUE(fail(Code::no_space));
}

TEST_F(WriteBackTest, a_full_store_is_asked_again_after_a_pause) {
  EXPECT_TRUE(fail(Code::no_space));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(write_back_.full());
    EXPECT_FALSE(may_begin());
    EXPECT_FALSE(pauses());  // no thread waits for it
    now() += WriteBack::full_pause_ns - 1;
    EXPECT_FALSE(write_back_.begin_round(now()));
    EXPECT_TRUE(write_back_.full());
    now() += 1;
    EXPECT_FALSE(may_begin());
    EXPECT_TRUE(write_back_.begin_round(now()));
    EXPECT_FALSE(write_back_.full());
    EXPECT_TRUE(may_begin());
    EXPECT_FALSE(write_back_.begin_round(now()));
    EXPECT_FALSE(fail(Code::no_space));
  }
}

TEST_F(WriteBackTest, a_store_that_fails_for_all_of_the_patience_is_full) {
  const uint64_t begun = now();
  EXPECT_EQ(fail_until_full(), 10u + 99);
  EXPECT_EQ(now(), begun + 100'023 * ms);  // 1,023 ms of pauses that double, and 99 of a second
  EXPECT_FALSE(pauses());
  // From here on each try that fails ends so, also the first after a while without anything to
  // write.
  for (const uint64_t idle : {uint64_t{0}, second, 10 * second}) {
    pause_is(second);
    now() += idle;
    fail();
    EXPECT_TRUE(write_back_.full());
  }
}

TEST_F(WriteBackTest, failures_with_nothing_to_write_between_them_are_no_row) {
  fail();
  pause_is(ms);
  fail();
  pause_is(2 * ms);
  now() += io_pause_most_ns;
  fail();
  pause_is(4 * ms);  // the same row
  now() += io_pause_most_ns + 1;
  fail();
  pause_is(ms);  // another one
  for (int i = 0; i < 10; ++i) {
    now() += io_pause_most_ns + 1;
    fail();
    EXPECT_FALSE(write_back_.full());
    pause_is(ms);
  }
}

TEST_F(WriteBackTest, the_row_goes_on_where_the_write_began_in_time_and_was_answered_late) {
  fail();
  pause_is(ms);
  const uint64_t begun = now();
  now() += patience;
  write_back_.failed(make_error(Code::io, 0, "late, in a test"), begun, now());
  EXPECT_TRUE(write_back_.full());
}

TEST_F(WriteBackTest, without_patience_the_first_failure_makes_it_full) {
  WriteBack impatient(0);
  EXPECT_TRUE(impatient.failed(make_error(Code::io, 0, "refused, in a test"), now(), now()));
  EXPECT_TRUE(impatient.full());
}

TEST_F(WriteBackTest, a_success_forgets_the_failures_before_it) {
  const uint64_t begun = now();
  while (now() < begun + patience - second) {
    fail();
    while (!may_begin()) now() += ms;
  }
  fail();
  EXPECT_TRUE(pauses());
  write_back_.succeeded();  // another write, begun before that
  EXPECT_FALSE(pauses());
  now() += second;
  EXPECT_TRUE(fail());
  EXPECT_FALSE(write_back_.full());
  pause_is(ms);
}

TEST_F(WriteBackTest, a_slot_that_comes_free_ends_full) {
  fail(Code::no_space);
  write_back_.slot_came_free();
  EXPECT_FALSE(write_back_.full());
  EXPECT_TRUE(may_begin());
  EXPECT_FALSE(write_back_.begin_round(now()));
  // So it does where other failures came before.
  fail();
  fail(Code::no_space);
  write_back_.slot_came_free();
  EXPECT_TRUE(may_begin());
}

TEST_F(WriteBackTest, a_slot_that_comes_free_does_not_end_the_pause_after_a_failure) {
  fail();
  write_back_.slot_came_free();
  EXPECT_FALSE(may_begin());
  pause_is(ms);
  fail_until_full();
  ASSERT_TRUE(write_back_.full());
  write_back_.slot_came_free();
  EXPECT_FALSE(write_back_.full());
  EXPECT_TRUE(pauses());
  EXPECT_FALSE(write_back_.begin_round(now()));
  pause_is(WriteBack::full_pause_ns);
}

TEST_F(WriteBackTest, a_store_that_grows_pauses_until_the_next_round) {
  write_back_.store_grows();
  EXPECT_TRUE(write_back_.grows());
  EXPECT_TRUE(pauses());
  EXPECT_TRUE(may_begin());
  EXPECT_FALSE(write_back_.begin_round(now()));
  EXPECT_FALSE(write_back_.grows());
  EXPECT_FALSE(pauses());
  fail(Code::no_space);
  write_back_.store_grows();
  EXPECT_TRUE(pauses());
  EXPECT_FALSE(may_begin());
}

}  // namespace
