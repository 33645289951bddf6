// A program's events into a Learner, on a driver that does nothing: an iteration is a script that
// is played again and again.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "allocator/memory/units.h"
#include "allocator/policy/learner.h"
#include "tests/allocator/fake_gpu.h"

namespace firn::test {

/// A block that the script names by its variable: what it allocates while the variable has one
/// replaces that, which `free_old` frees.
struct Act {
  enum class What : uint8_t { allocate, read, write, free, free_old };
  What what;
  unsigned variable;
  uint32_t granules = 1;  // of an allocation
};
using Script = std::vector<Act>;

class PolicyTest : public ::testing::Test {
 protected:
  PolicyTest() {
    for (unsigned i = 0; i < 3; ++i)
      streams_.see(stream_[i] = reinterpret_cast<CUstream>(uintptr_t{i + 1} << 8));
  }

  Block& allocate(uint32_t granules, unsigned stream = 0, uint64_t asked = 0) {
    Block& block = *table_.make();
    block.pages = granules * granule_pages;
    block.stream = static_cast<uint16_t>(stream);
    block.asked.store(static_cast<uint32_t>((asked ? asked : granules * granule_bytes) /
                                            unit_bytes));
    happens(EventKind::allocate, block);
    return block;
  }
  void touch(Block& block, bool write = false) {
    happens(write ? EventKind::touch_write : EventKind::touch_read, block);
  }
  void free(Block& block) {
    happens(EventKind::free, block);
    table_.recycle(&block);
  }
  void happens(EventKind kind, const Block& block) {
    ring_.push(kind, block.index);
    feed();
  }
  /// Notes in begun_ which lives begin.
  bool feed() {
    return learner_.take_events(cpu_ns_, [this](Identity identity, const Block& block) {
      begun_.emplace_back(identity, &block);
    });
  }
  void act(const Act& act) {
    Block*& block = of_[act.variable];
    switch (act.what) {
      case Act::What::allocate:
        old_[act.variable] = std::exchange(block, &allocate(act.granules));
        break;
      case Act::What::read: return touch(*block);
      case Act::What::write: return touch(*block, true);
      case Act::What::free: return free(*std::exchange(block, nullptr));
      case Act::What::free_old: return free(*std::exchange(old_[act.variable], nullptr));
    }
  }
  void play(const Script& script, unsigned times = 1) {
    while (times-- > 0)
      for (const Act& each : script) act(each);
  }
  History& history() { return learner_.history(); }
  Identity identity(const Block& block) { return history().identity(learner_.life_of(block)); }

  FakeGpu gpu_;
  DeviceHealth health_{gpu_.driver(), 0};
  Streams streams_{gpu_.driver(), health_};
  CUstream stream_[3];
  EventRing ring_{1 << 10};
  BlockTable table_;
  Learner learner_{ring_, table_, streams_, true};
  uint64_t cpu_ns_ = 0;
  std::vector<std::pair<Identity, const Block*>> begun_;
  std::map<unsigned, Block*> of_, old_;  // by variable: its block, and the one before
};

/// `weights` that stay, made by begin(), and as many activations, of their own sizes each, that a
/// forward pass makes and a backward pass frees. Another `first` variable makes another program.
inline Script training(unsigned weights, unsigned first = 0) {
  using enum Act::What;
  Script script;
  for (unsigned i = first; i < first + weights; ++i) {
    script.push_back({read, i});
    script.push_back({allocate, 100 + i, 1 + i % 5});
    script.push_back({write, 100 + i});
  }
  for (unsigned i = first + weights; i-- > first;) {
    script.push_back({read, 100 + i});
    script.push_back({free, 100 + i});
    script.push_back({write, i});
  }
  return script;
}
inline Script begin(unsigned weights, unsigned first = 0) {
  Script script;
  for (unsigned i = first; i < first + weights; ++i)
    script.push_back({Act::What::allocate, i, 2 + i % 7});
  return script;
}

}  // namespace firn::test
