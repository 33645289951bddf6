// The exact search against a naive one, which tries everything at every unit of time: any transfer,
// any clean page dropped, any kernel that can begin. FIRN_SEED=N replays one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>

#include "tests/allocator/lifetimes/draw.h"
#include "tests/allocator/lifetimes/optimum.h"

using namespace firn;
using namespace firn::program;

namespace {

struct Naive {
  const Kernels& program;
  const TinyMachine& machine;
  const unsigned periods;

  struct State {
    unsigned kernel = 0, left = 0;  // over all periods
    std::vector<unsigned> dirty, clean;
    int out = -1, in = -1;  // -1: none; -2: its bytes are of no use; -3: and its memory is taken
    unsigned out_left = 0, in_left = 0;
    auto operator<=>(const State&) const = default;
  };

  const Kernels::Kernel& kernel(unsigned k) const {
    return program.kernels[k % program.kernels.size()];
  }
  unsigned count() const { return static_cast<unsigned>(program.blocks.size()); }
  unsigned size(unsigned b) const { return static_cast<unsigned>(program.blocks[b].size); }
  const Kernels::Use* use(unsigned k, unsigned b) const {
    for (const auto& use : kernel(k).uses)
      if (use.block == b) return &use;
    return nullptr;
  }
  bool bears(unsigned k, unsigned b) const {
    const auto& block = program.blocks[b];
    return !block.persistent && block.born == k % program.kernels.size() && use(k, b);
  }
  bool lives(const State& s, unsigned b) const {
    const auto& block = program.blocks[b];
    const size_t k = s.kernel % program.kernels.size();
    return block.persistent || (s.left ? block.born <= k && k <= block.dies
                                       : block.born < k && k <= block.dies);
  }
  unsigned taken(const State& s) const {
    unsigned taken = (s.in != -1) + (s.out == -3);
    for (unsigned b = 0; b < count(); ++b) taken += s.dirty[b] + s.clean[b];
    return taken;
  }

  /// All that can be made of the state without time going on.
  void at_once(const State& s, std::set<State>& all) const {
    if (!all.insert(s).second) return;
    for (unsigned b = 0; b < count(); ++b) {
      const Kernels::Use* used = s.left ? use(s.kernel, b) : nullptr;
      if (s.clean[b] && !used) {
        State next = s;
        --next.clean[b];
        at_once(next, all);
      }
      if (s.out == -1 && s.dirty[b] && !(used && used->write)) {
        State next = s;
        next.out = static_cast<int>(b);
        next.out_left = static_cast<unsigned>(machine.out_ns);
        at_once(next, all);
      }
      if (s.in == -1 && lives(s, b) && s.dirty[b] + s.clean[b] < size(b) &&
          taken(s) < machine.capacity) {
        State next = s;
        next.in = static_cast<int>(b);
        next.in_left = static_cast<unsigned>(machine.in_ns);
        at_once(next, all);
      }
    }
    if (s.left == 0) {
      State next = s;
      if (begin(next)) at_once(next, all);
    }
  }

  bool begin(State& s) const {
    for (const auto& used : kernel(s.kernel).uses) {
      const unsigned b = used.block;
      if (bears(s.kernel, b)) {
        s.dirty[b] = size(b);
        continue;
      }
      if (s.dirty[b] + s.clean[b] < size(b)) return false;
      if (!used.write) continue;
      s.dirty[b] = size(b);
      s.clean[b] = 0;
      if (s.out == static_cast<int>(b)) s.out = -2;
    }
    s.left = static_cast<unsigned>(kernel(s.kernel).ns);
    return taken(s) <= machine.capacity;
  }

  State a_unit_later(State s) const {
    if (s.out != -1 && --s.out_left == 0) {
      if (s.out >= 0) {
        --s.dirty[static_cast<size_t>(s.out)];
        ++s.clean[static_cast<size_t>(s.out)];
      }
      s.out = -1;
    }
    if (s.in != -1 && --s.in_left == 0) {
      ++s.clean[static_cast<size_t>(s.in)];
      s.in = -1;
    }
    if (s.left && --s.left == 0) {
      const size_t k = s.kernel % program.kernels.size();
      for (unsigned b = 0; b < count(); ++b) {
        if (program.blocks[b].persistent || program.blocks[b].dies != k) continue;
        s.dirty[b] = s.clean[b] = 0;
        if (s.out == static_cast<int>(b)) s.out = -3;
      }
      ++s.kernel;
    }
    return s;
  }

  uint64_t run() const {
    State s;
    s.dirty.assign(count(), 0);
    s.clean = s.dirty;
    uint64_t room = machine.warm ? machine.capacity : 0;
    for (unsigned b = 0; b < count(); ++b)
      if (program.blocks[b].persistent && size(b) <= room) {
        s.dirty[b] = size(b);
        room -= size(b);
      }
    std::set<State> now{s};
    for (uint64_t ns = 0; ns < 1000; ++ns) {
      std::set<State> all, next;
      for (const State& state : now) at_once(state, all);
      for (const State& state : all) {
        const State later = a_unit_later(state);
        if (later.kernel == periods * program.kernels.size()) return ns + 1;
        next.insert(later);
      }
      now.swap(next);
    }
    return 0;
  }
};

}  // namespace

TEST(OptimumSearch, agrees_with_a_naive_one) {
  uint64_t begin = 1, end = 100;
  if (const char* length = std::getenv("FIRN_TEST_LENGTH"); length && length[0] == 'q') end = 30;
  if (const char* seed = std::getenv("FIRN_SEED")) {
    begin = std::strtoull(seed, nullptr, 0);
    end = begin + 1;
  }
  unsigned stalled = 0;
  for (uint64_t seed = begin; seed < end; ++seed) {
    SCOPED_TRACE("replay: FIRN_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    Kernels program;
    do program = draw({.blocks = {3, 4}, .size = {1, 2}, .kernels = {2, 4}, .ns = {1, 3}}, random);
    while (program.working_set() >= program.peak());
    TinyMachine machine;
    machine.capacity = program.working_set() + random() % (program.peak() - program.working_set());
    machine.out_ns = 1 + random() % 3;
    machine.in_ns = 1 + random() % 3;
    machine.warm = random() % 2;
    uint64_t compute_ns = 0;
    for (const auto& kernel : program.kernels) compute_ns += 2 * kernel.ns;
    const uint64_t least = optimum(program, 2, machine, 1'000'000).ns;
    ASSERT_EQ(least, (Naive{program, machine, 2}.run()));
    stalled += least > compute_ns;
  }
  if (end - begin > 1) {
    EXPECT_GT(stalled, (end - begin) / 3);  // the programs are of interest
  }
}
