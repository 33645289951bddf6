// What the tests of orders share: random graphs from a seed, a naive reading of what an order
// needs, and the best order by trying all. Owns: nothing. Locks: none.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "allocator/order/order.h"
#include "tests/allocator/layout/instance.h"

namespace firn::order {

using layout::replay;
using layout::seeds;

struct Program {
  std::vector<Storage> storages;
  std::vector<Op> ops;
};

/// Any graph: operators that read, make and write a few storages, some alive throughout or from
/// the start, some of 0 bytes, wide or narrow.
inline Program random_program(uint64_t seed, size_t ops_most) {
  std::mt19937_64 random(seed);
  Program program;
  const size_t ops = 1 + random() % ops_most;
  const uint64_t sizes = 1 + random() % (random() % 2 ? 6 : 1000);
  const size_t reach = 1 + random() % 12;
  const auto add = [&](Life life) {
    program.storages.push_back({random() % 12 == 0 ? 0 : 1 + random() % sizes, life});
    return static_cast<uint32_t>(program.storages.size() - 1);
  };
  for (size_t i = random() % 3; i > 0; --i) add(Life::throughout);
  for (size_t i = random() % 4; i > 0; --i) add(Life::from_start);
  for (size_t i = 0; i < ops; ++i) {
    Op op;
    const size_t known = program.storages.size();
    for (size_t reads = known == 0 ? 0 : random() % 4; reads > 0; --reads)
      op.reads.push_back(static_cast<uint32_t>(known - 1 - random() % std::min(known, reach)));
    if (!op.reads.empty() && random() % 6 == 0) op.writes.push_back(op.reads[0]);
    for (size_t makes = random() % 8 == 0 ? random() % 3 : 1; makes > 0; --makes)
      op.makes.push_back(add(Life::made));
    program.ops.push_back(op);
  }
  return program;
}

/// A training step of a chain of layers: forward, loss, backward, and for each weight an update
/// that makes two storages of its own as large as the weight. All updates come last.
inline Program training_step(uint64_t seed, size_t layers) {
  std::mt19937_64 random(seed);
  Program program;
  const auto add = [&](uint64_t bytes, Life life) {
    program.storages.push_back({bytes, life});
    return static_cast<uint32_t>(program.storages.size() - 1);
  };
  std::vector<uint32_t> weights, values = {add(1 + random() % 4000, Life::from_start)}, gradients;
  for (size_t i = 0; i < layers; ++i) {
    weights.push_back(add(1 + random() % 5000, Life::throughout));
    values.push_back(add(1 + random() % 4000, Life::made));
    program.ops.push_back({{values[i], weights[i]}, {values[i + 1]}, {}});
  }
  uint32_t error = add(program.storages[values.back()].bytes, Life::made);
  program.ops.push_back({{values.back()}, {error}, {}});
  for (size_t i = layers; i-- > 0;) {
    gradients.push_back(add(program.storages[weights[i]].bytes, Life::made));
    program.ops.push_back({{error, values[i]}, {gradients.back()}, {}});
    if (i == 0) break;
    const uint32_t next = add(program.storages[values[i]].bytes, Life::made);
    program.ops.push_back({{error, weights[i]}, {next}, {}});
    error = next;
  }
  for (size_t i = 0; i < layers; ++i) {
    const uint32_t weight = weights[i], gradient = gradients[layers - 1 - i];
    const uint32_t m = add(program.storages[weight].bytes, Life::made);
    const uint32_t v = add(program.storages[weight].bytes, Life::made);
    program.ops.push_back({{weight}, {m}, {}});
    program.ops.push_back({{weight}, {v}, {}});
    program.ops.push_back({{m, gradient}, {}, {m}});
    program.ops.push_back({{v, gradient}, {}, {v}});
    program.ops.push_back({{weight, m, v}, {}, {weight}});
  }
  return program;
}

/// What the README of the graphs says, read as naively as can be.
class Naive {
 public:
  explicit Naive(const Program& program) : program_(program), needs_(program.ops.size()) {
    const auto& ops = program.ops;
    const auto named = [](const Op& op) {
      std::set<uint32_t> all(op.reads.begin(), op.reads.end());
      all.insert(op.makes.begin(), op.makes.end());
      all.insert(op.writes.begin(), op.writes.end());
      return all;
    };
    const auto written = [](const Op& op) {
      std::set<uint32_t> all(op.makes.begin(), op.makes.end());
      all.insert(op.writes.begin(), op.writes.end());
      return all;
    };
    for (size_t i = 0; i < ops.size(); ++i) {
      names_.push_back(named(ops[i]));
      for (size_t j = 0; j < i; ++j)
        for (const uint32_t storage : names_[i])
          if (names_[j].contains(storage) &&
              (written(ops[i]).contains(storage) || written(ops[j]).contains(storage)))
            needs_[i].insert(static_cast<uint32_t>(j));
      for (const uint32_t other : std::set<uint32_t>(needs_[i]))
        needs_[i].insert(needs_[other].begin(), needs_[other].end());
    }
  }

  /// Of the order's peak, in bytes; fails where the order is none.
  uint64_t peak(const std::vector<uint32_t>& order) const {
    std::set<uint32_t> done;
    uint64_t peak = 0;
    for (const uint32_t op : order) {
      EXPECT_TRUE(ready(op, done)) << "operator " << op << " comes too early";
      peak = std::max(peak, alive(done, op));
      EXPECT_TRUE(done.insert(op).second) << "operator " << op << " comes twice";
    }
    EXPECT_EQ(done.size(), program_.ops.size());
    return peak;
  }

  /// First and last position of each storage; (1, 0): never alive.
  std::vector<std::pair<uint64_t, uint64_t>> lives(const std::vector<uint32_t>& order) const {
    std::vector<std::pair<uint64_t, uint64_t>> lives(program_.storages.size(), {1, 0});
    for (size_t position = order.size(); position-- > 0;)
      for (const uint32_t storage : names_[order[position]]) {
        if (lives[storage].first > lives[storage].second) lives[storage].second = position;
        lives[storage].first = position;
      }
    for (size_t i = 0; i < lives.size(); ++i) {
      const Life life = program_.storages[i].life;
      const bool named = lives[i].first <= lives[i].second;
      if (life == Life::throughout || (life == Life::from_start && !named))
        lives[i] = {0, order.empty() ? 0 : order.size() - 1};
      else if (life == Life::from_start)
        lives[i].first = 0;
    }
    return lives;
  }

  /// Of each operator: all that must run before it.
  const std::vector<std::set<uint32_t>>& all_before() const { return needs_; }

  /// Of each operator: the least that is alive when it runs, over all sets that may have run.
  std::vector<uint64_t> least_alive() const {
    std::vector<uint64_t> least(program_.ops.size(), ~uint64_t{0});
    for (uint32_t bits = 0; bits < 1u << program_.ops.size(); ++bits) {
      std::set<uint32_t> done;
      for (uint32_t op = 0; op < program_.ops.size(); ++op)
        if (bits >> op & 1) done.insert(op);
      if (!std::ranges::all_of(done, [&](uint32_t op) { return ready(op, done); })) continue;
      for (uint32_t op = 0; op < program_.ops.size(); ++op)
        if (!done.contains(op) && ready(op, done)) least[op] = std::min(least[op], alive(done, op));
    }
    return least;
  }

  /// The least peak of any order.
  uint64_t least_peak() const {
    // Sets of operators by the least peak with which they can be reached.
    std::map<std::set<uint32_t>, uint64_t> reached = {{{}, 0}};
    for (size_t count = 0; count < program_.ops.size(); ++count) {
      std::map<std::set<uint32_t>, uint64_t> next;
      for (const auto& [done, peak] : reached)
        for (uint32_t op = 0; op < program_.ops.size(); ++op) {
          if (done.contains(op) || !ready(op, done)) continue;
          std::set<uint32_t> more = done;
          more.insert(op);
          const uint64_t then = std::max(peak, alive(done, op));
          const auto [at, is_new] = next.emplace(std::move(more), then);
          if (!is_new) at->second = std::min(at->second, then);
        }
      reached = std::move(next);
    }
    return reached.begin()->second;
  }

 private:
  bool ready(uint32_t op, const std::set<uint32_t>& done) const {
    return std::ranges::all_of(needs_[op], [&](uint32_t other) { return done.contains(other); });
  }
  /// While `op` runs after `done`.
  uint64_t alive(const std::set<uint32_t>& done, uint32_t op) const {
    uint64_t bytes = 0;
    for (uint32_t storage = 0; storage < program_.storages.size(); ++storage) {
      const Storage& each = program_.storages[storage];
      bool named = false, before = each.life == Life::from_start, after = false;
      for (uint32_t other = 0; other < program_.ops.size(); ++other) {
        if (!names_[other].contains(storage)) continue;
        named = true;
        if (other == op) before = after = true;
        else (done.contains(other) ? before : after) = true;
      }
      if (each.life == Life::throughout || (each.life == Life::from_start && !named) ||
          (before && after))
        bytes += each.bytes;
    }
    return bytes;
  }

  const Program& program_;
  std::vector<std::set<uint32_t>> needs_, names_;
};

/// Every pair of storages, one by one.
inline void expect_valid(const Program& program, const Plan& plan) {
  const Naive naive(program);
  EXPECT_EQ(naive.peak(plan.order), plan.peak);
  ASSERT_EQ(plan.offsets.size(), program.storages.size());
  const auto lives = naive.lives(plan.order);
  uint64_t height = 0;
  for (size_t i = 0; i < lives.size(); ++i) {
    if (lives[i].first > lives[i].second || program.storages[i].bytes == 0) continue;
    height = std::max(height, plan.offsets[i] + program.storages[i].bytes);
    for (size_t j = 0; j < i; ++j) {
      const bool together = lives[j].first <= lives[j].second && program.storages[j].bytes > 0 &&
                            lives[i].first <= lives[j].second && lives[j].first <= lives[i].second;
      ASSERT_TRUE(!together || plan.offsets[i] >= plan.offsets[j] + program.storages[j].bytes ||
                  plan.offsets[j] >= plan.offsets[i] + program.storages[i].bytes)
          << "storages " << j << " and " << i << " overlap";
    }
  }
  EXPECT_EQ(height, plan.height);
  EXPECT_LE(plan.bound, plan.peak);
  EXPECT_LE(plan.peak, plan.peak_given);
  EXPECT_LE(plan.peak, plan.height);
}

}  // namespace firn::order
