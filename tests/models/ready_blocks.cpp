// Who takes all of a stream's ready blocks skips stacks whose bit is clear
// (allocator/blocks/ready_blocks.h, ReadyBlocks::push() and take_all()): no block may be left in
// such a stack, for nobody would ever find it. The stack itself is in ready_stack.cpp: here it
// counts.
#include "tests/models/model.h"

namespace {

template <bool canary>
struct ReadyBlocks : rl::test_suite<ReadyBlocks<canary>, 3> {
  rl::atomic<unsigned> stack;  // how many are there
  rl::atomic<unsigned> used;   // the bit

  void before() {
    stack($) = 0;
    used($) = 0;
  }
  void thread(unsigned index) {
    if (index < 2) push();
    else take_all();
  }
  // ReadyBlocks::push()
  void push() {
    unsigned count = stack($).load(rl::mo_relaxed);
    while (!stack($).compare_exchange_weak(count, count + 1, rl::mo_seq_cst, rl::mo_relaxed)) {}
    if (!used($).load(rl::mo_seq_cst)) used($).fetch_or(1, rl::mo_seq_cst);
  }
  // ReadyBlocks::take_all()
  void take_all() {
    for (int round = 0; round < 2; ++round) {
      if (used($).load(rl::mo_seq_cst) == 0) continue;
      // The canary: the stack is emptied before the bit is cleared.
      if (canary) empty();
      used($).fetch_and(0, rl::mo_seq_cst);
      if (!canary) empty();
    }
  }
  void empty() {
    unsigned count = stack($).load(rl::mo_seq_cst);
    while (count > 0)
      if (stack($).compare_exchange_weak(count, count - 1, rl::mo_acq_rel, rl::mo_acquire)) --count;
  }
  void after() { RL_ASSERT(stack($).load(rl::mo_relaxed) == 0 || used($).load(rl::mo_relaxed)); }
};

}  // namespace

int main(int argc, char** argv) {
  return firn::models::run<ReadyBlocks>(
      "ready blocks", "a stack is emptied before its bit is cleared", argc, argv);
}
