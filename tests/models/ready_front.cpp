// The block that a thread freed last (allocator/blocks/ready_blocks.h, ReadyFront): it alone puts
// one there, and everybody takes it from there. One takes it, and sees all that was done to it
// before.
#include "tests/models/model.h"

namespace {

constexpr unsigned size_class = 3;

template <bool canary>
struct ReadyFront : rl::test_suite<ReadyFront<canary>, 3> {
  rl::atomic<unsigned> place;  // size class << 8 | index + 1
  rl::var<int> contents[2];    // of each block
  unsigned taken[2];           // how often (one thread at a time runs)

  void before() {
    place($) = 0;
    for (unsigned block = 0; block < 2; ++block) {
      contents[block]($) = 0;
      taken[block] = 0;
    }
  }
  void thread(unsigned index) {
    if (index > 0) {
      (void)take();
      return;
    }
    for (unsigned block = 0; block < 2; ++block) {
      contents[block]($) = 1;
      while (!put(block)) (void)take();
    }
  }
  // ReadyFront::put()
  bool put(unsigned block) {
    if (place($).load(rl::mo_relaxed) != 0) return false;
    // The canary: what was done to the block is not released with it.
    place($).store(size_class << 8 | (block + 1), canary ? rl::mo_relaxed : rl::mo_release);
    return true;
  }
  // ReadyFront::take_from()
  bool take() {
    unsigned found = place($).load(rl::mo_relaxed);
    if (found == 0 || found >> 8 != size_class ||
        !place($).compare_exchange_strong(found, 0, rl::mo_acquire, rl::mo_relaxed))
      return false;
    const unsigned block = (found & 0xFF) - 1;
    RL_ASSERT(contents[block]($) == 1);
    contents[block]($) = 2;
    RL_ASSERT(++taken[block] == 1);
    return true;
  }
  void after() {
    while (take()) {}
    RL_ASSERT(taken[0] == 1 && taken[1] == 1);
  }
};

}  // namespace

int main(int argc, char** argv) {
  return firn::models::run<ReadyFront>(
      "ready front", "a block is put there without releasing", argc, argv);
}
