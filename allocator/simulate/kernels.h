// Programs as kernels with durations, as decide() and rehearse() take them: persistent blocks and
// ones that are born and die within an iteration. For tests and benches.
// Owns: nothing. Locks: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/lifetimes/rehearse.h"

namespace firn::program {

struct Kernels {
  struct Block {
    uint64_t size = 0;  // pages
    bool persistent = false;
    size_t born = 0, dies = 0;  // kernels: before the one, after the other; not persistent ones
  };
  struct Use {
    uint32_t block;
    bool write;
  };
  struct Kernel {
    uint64_t ns = 0;
    std::vector<Use> uses;  // each block once
  };
  std::vector<Block> blocks;
  std::vector<Kernel> kernels;

  /// Pages that the kernel's blocks have together, at most over all kernels.
  uint64_t working_set() const;
  /// Pages alive at most.
  uint64_t peak() const;
};

/// Training of a network of so many layers: forward, backward and optimizer, 7 kernels and 11
/// blocks a layer. Sizes and times depend on the seed and are alike in every layer.
Kernels train(size_t layers, uint64_t seed);

/// For rehearse(): what it needs, of the program.
struct Script {
  explicit Script(const Kernels& program);
  std::vector<lifetimes::Item> items;  // persistent ones are away
  std::vector<lifetimes::Step> steps;
  std::vector<uint64_t> before_ns;
  uint64_t after_ns = 0;
  /// As many persistent blocks as fit are on the device, not clean, in the order of their numbers.
  void start_warm(uint64_t capacity);
  lifetimes::Rehearsal rehearsal(const lifetimes::RehearsalMachine& machine) const;
};

/// Processor time of this thread.
double cpu_s();

/// Seconds of the program's decision at the start of an iteration, half of what persists being on
/// the device; the least of `tries`. `decision`: the last one made.
double decision_s(const Kernels& program, int tries, lifetimes::Decision& decision);

}  // namespace firn::program
