// What is handed out, counted by many threads each in its own cell: exact where threads take turns,
// and in sum where they do not.
#include "allocator/engine/tallies.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

using namespace firn;

namespace {

struct Model {
  struct One {
    int64_t current = 0, peak = 0, allocated = 0, freed = 0;
    void add(int64_t by) {
      current += by, allocated += by;
      peak = std::max(peak, current);
    }
    void remove(int64_t by) { current -= by, freed += by; }
  };
  One of[LiveTallies::quantities][3];  // all, small, large

  void add(bool large, const LiveTallies::Amounts& amounts) {
    for (unsigned q = 0; q < LiveTallies::quantities; ++q)
      for (const int pool : {0, 1 + large}) of[q][pool].add(amounts[q]);
  }
  void remove(bool large, const LiveTallies::Amounts& amounts) {
    for (unsigned q = 0; q < LiveTallies::quantities; ++q)
      for (const int pool : {0, 1 + large}) of[q][pool].remove(amounts[q]);
  }
  void reset_peaks() {
    for (auto& pools : of)
      for (One& one : pools) one.peak = one.current;
  }
  void reset_totals() {
    for (auto& pools : of)
      for (One& one : pools) one.allocated = one.freed = 0;
  }
};

void expect_same(const LiveTallies& tallies, const Model& model) {
  for (const auto q : {LiveTallies::blocks, LiveTallies::bytes, LiveTallies::requested}) {
    Tally told[3];
    tallies.told(q).get(told);
    for (int pool = 0; pool < 3; ++pool) {
      const Model::One& one = model.of[q][pool];
      ASSERT_EQ(told[pool].current, one.current) << q << " " << pool;
      ASSERT_EQ(told[pool].peak, one.peak) << q << " " << pool;
      ASSERT_EQ(told[pool].allocated, one.allocated) << q << " " << pool;
      ASSERT_EQ(told[pool].freed, one.freed) << q << " " << pool;
    }
  }
}

/// Random calls, against the model after each.
struct Calls {
  LiveTallies tallies;
  Model model;
  std::vector<std::pair<bool, LiveTallies::Amounts>> live;
  std::mt19937_64 random;

  void one() {
    const uint64_t draw = random() % 100;
    if (draw < 55 || live.empty()) {
      const auto bytes = static_cast<int64_t>(512 * (1 + random() % 5000));
      live.push_back({random() % 2 == 0, {1, bytes, bytes - static_cast<int64_t>(random() % 512)}});
      tallies.add(thread_cell(), live.back().first, live.back().second);
      model.add(live.back().first, live.back().second);
    } else if (draw < 97) {
      std::swap(live[random() % live.size()], live.back());
      tallies.remove(thread_cell(), live.back().first, live.back().second);
      model.remove(live.back().first, live.back().second);
      live.pop_back();
    } else if (draw < 98) {
      tallies.reset_peaks();
      model.reset_peaks();
    } else if (draw < 99) {
      tallies.reset_totals();
      model.reset_totals();
    }
    expect_same(tallies, model);
  }
};

TEST(LiveTallies, one_thread) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Calls calls;
    calls.random.seed(seed);
    for (int i = 0; i < 500; ++i) ASSERT_NO_FATAL_FAILURE(calls.one()) << "seed " << seed;
  }
}

TEST(LiveTallies, threads_that_take_turns) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Calls calls;
    calls.random.seed(seed);
    std::mutex turn;
    std::vector<std::thread> threads;
    for (int t = 0; t < 12; ++t)  // some share the last cell, and some end before others begin
      threads.emplace_back([&, t] {
        for (int i = 0; i < 20 + 10 * t; ++i) {
          std::lock_guard lock(turn);
          calls.one();
        }
      });
    for (std::thread& thread : threads) thread.join();
    ASSERT_NO_FATAL_FAILURE(expect_same(calls.tallies, calls.model)) << "seed " << seed;
  }
}

TEST(LiveTallies, threads_at_once) {
  constexpr int threads = 12, rounds = 20000;
  LiveTallies tallies;
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t)
    running.emplace_back([&] {
      for (int i = 0; i < rounds; ++i) {
        tallies.add(thread_cell(), i % 2, {1, 1024, 1000});
        if (i % 4 != 0) tallies.remove(thread_cell(), i % 2, {1, 1024, 1000});
      }
    });
  for (std::thread& thread : running) thread.join();
  constexpr int64_t left = threads * rounds / 4, made = threads * rounds;
  Tally told[3];
  tallies.told(LiveTallies::bytes).get(told);
  EXPECT_EQ(told[0].current, left * 1024);
  EXPECT_EQ(told[0].allocated, made * 1024);
  EXPECT_EQ(told[0].freed, (made - left) * 1024);
  EXPECT_GE(told[0].peak, left * 1024);
  EXPECT_LE(told[0].peak, (left + threads) * 1024);
  EXPECT_EQ(told[1].current, left * 1024);  // every fourth is of the small ones
  EXPECT_EQ(told[2].current, 0);
}

TEST(ThreadCells, a_cell_is_one_threads_while_it_lives) {
  for (int round = 0; round < 20; ++round) {
    constexpr int threads = 20;
    std::barrier together(threads);
    std::vector<unsigned> cell(threads);
    std::vector<std::thread> running;
    for (int t = 0; t < threads; ++t)
      running.emplace_back([&, t] {
        cell[static_cast<size_t>(t)] = thread_cell();
        together.arrive_and_wait();  // all live at once
        EXPECT_EQ(thread_cell(), cell[static_cast<size_t>(t)]);
        EXPECT_LT(thread_cell(), thread_cells_used());
      });
    for (std::thread& thread : running) thread.join();
    std::multiset<unsigned> given(cell.begin(), cell.end());
    const size_t shared = given.count(cells - 1);
    // (The main thread may have one, too.)
    EXPECT_GE(shared, threads - cells_own);
    EXPECT_LE(shared, threads - cells_own + 1);
    for (unsigned own = 0; own < cells_own; ++own) EXPECT_LE(given.count(own), 1u);
  }
  EXPECT_LE(thread_cells_used(), cells);
}

// Threads that a fork ended have numbers, and pointers that the child's threads may have again.
TEST(ThreadCells, are_one_threads_in_the_child_of_a_fork_too) {
  constexpr int threads = 4;
  const auto given = [] {
    std::barrier together(threads);
    std::vector<unsigned> cell(threads);
    std::vector<std::thread> running;
    for (unsigned& mine : cell)
      running.emplace_back([&] {
        mine = thread_cell();
        together.arrive_and_wait();
        if (thread_cell() != mine) mine = cells;
      });
    for (std::thread& thread : running) thread.join();
    cell.push_back(thread_cell());
    return std::multiset<unsigned>(cell.begin(), cell.end());
  };
  std::barrier there(threads + 1), done(threads + 1);
  std::vector<std::thread> others;
  for (int t = 0; t < threads; ++t)
    others.emplace_back([&] {
      (void)thread_cell();
      there.arrive_and_wait();
      done.arrive_and_wait();
    });
  there.arrive_and_wait();
  const pid_t child = fork();
  if (child == 0) {
    const auto cell = given();
    for (unsigned own = 0; own < cells_own; ++own)
      if (cell.count(own) > 1) _exit(1);
    _exit(cell.count(cells) == 0 ? 0 : 2);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  done.arrive_and_wait();
  for (std::thread& thread : others) thread.join();
}

}  // namespace
