// A stream's ready blocks (allocator/blocks/ready_blocks.h, ReadyStack): threads take and put them
// back. Nobody may have a block that another has, and none may go.
#include "tests/models/model.h"

namespace {

constexpr unsigned blocks = 3, threads = 2;

template <bool canary>
struct ReadyStack : rl::test_suite<ReadyStack<canary>, threads> {
  rl::atomic<unsigned> head;  // tag << 8 | index + 1
  rl::atomic<unsigned> next[blocks];
  rl::var<int> owned[blocks];

  // ReadyStack::push()
  void push(unsigned block) {
    unsigned at = head($).load(rl::mo_relaxed), mine;
    do {
      next[block]($).store(at & 0xFF, rl::mo_relaxed);
      mine = tag(at) | (block + 1);
    } while (!head($).compare_exchange_weak(at, mine, rl::mo_seq_cst, rl::mo_relaxed));
  }
  // ReadyStack::pop()
  int pop() {
    unsigned at = head($).load(rl::mo_seq_cst);
    for (;;) {
      const unsigned top = at & 0xFF;
      if (top == 0) return -1;
      const unsigned rest = tag(at) | next[top - 1]($).load(rl::mo_relaxed);
      if (head($).compare_exchange_weak(at, rest, rl::mo_acq_rel, rl::mo_acquire))
        return static_cast<int>(top) - 1;
    }
  }
  /// The canary: no tag against ABA.
  static unsigned tag(unsigned at) { return canary ? 0 : ((at >> 8) + 1) << 8; }

  void before() {
    head($) = 0;
    for (unsigned block = 0; block < blocks; ++block) {
      next[block]($) = 0;
      owned[block]($) = 0;
      push(block);
    }
  }
  void thread(unsigned) {
    for (int round = 0; round < 2; ++round) {
      const int first = take(), second = take();
      if (first >= 0) give(first);
      if (second >= 0) give(second);
    }
  }
  int take() {
    const int block = pop();
    if (block < 0) return block;
    RL_ASSERT(owned[block]($) == 0);
    owned[block]($) = 1;
    return block;
  }
  void give(int block) {
    owned[block]($) = 0;
    push(static_cast<unsigned>(block));
  }
  void after() {
    unsigned left = 0;
    while (take() >= 0) ++left;
    RL_ASSERT(left == blocks);
  }
};

}  // namespace

int main(int argc, char** argv) {
  return firn::models::run<ReadyStack>("ready stack", "heads without a tag", argc, argv);
}
