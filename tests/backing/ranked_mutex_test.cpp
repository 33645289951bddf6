// Locks in the wrong order end the process in words that name both (built with the checks on,
// whatever the build's own option says).
#ifndef FIRN_LOCK_RANKS
#define FIRN_LOCK_RANKS
#endif
#include "firn/ranked_mutex.h"

#include <gtest/gtest.h>

#include <thread>

using namespace firn;

namespace {
RankedMutex<Rank::engine> engine;
RankedMutex<Rank::store> store;
RankedMutex<Rank::store> other_store;
}  // namespace

TEST(RankedMutex, the_order_is_kept_in_peace) {
  for (int round = 0; round < 2; ++round) {
    std::lock_guard first(engine);
    std::lock_guard second(store);
  }
  none_held("the end");
}

TEST(RankedMutex, locks_are_given_back_in_any_order) {
  std::unique_lock first(engine);
  std::lock_guard second(store);
  first.unlock();
  none_held("a wait", Rank::start, static_cast<int>(Rank::store));
}

TEST(RankedMutexDeathTest, the_wrong_order_names_both) {
  EXPECT_DEATH(
      {
        std::lock_guard first(store);
        std::lock_guard second(engine);
      },
      "taking the lock of rank engine while the lock of rank store");
}

TEST(RankedMutexDeathTest, two_of_one_rank_are_a_wrong_order) {
  EXPECT_DEATH(
      {
        std::lock_guard first(store);
        std::lock_guard second(other_store);
      },
      "taking the lock of rank store while the lock of rank store");
}

TEST(RankedMutexDeathTest, what_was_tried_for_counts_as_held) {
  std::unique_lock first(store);
  {
    std::unique_lock tried(engine, std::try_to_lock);
    EXPECT_TRUE(tried.owns_lock());
    first.unlock();
    EXPECT_DEATH(none_held("stderr"), "it comes to stderr while the lock of rank engine");
  }
  none_held("stderr");
}

TEST(RankedMutexDeathTest, a_wait_gives_its_lock_back_and_takes_it_again) {
  RankedMutex<Rank::worker> mutex;
  RankedCondition changed;
  bool told = false;
  std::thread teller;
  {
    std::unique_lock lock(mutex);
    teller = std::thread([&] {
      std::lock_guard lock(mutex);
      told = true;
      changed.notify_all();
    });
    changed.wait(lock, [&] { return told; });
    teller.join();
    EXPECT_DEATH(none_held("stderr"), "rank worker");
  }
  none_held("stderr");
}

TEST(RankedMutex, another_threads_locks_are_its_own) {
  std::lock_guard mine(store);
  std::thread([] { std::lock_guard theirs(engine); }).join();
}
