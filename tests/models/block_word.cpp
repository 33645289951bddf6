// The block's word (allocator/blocks/block_state.h) between a touch, a spill, and a free after
// which memory and descriptor are another block's. `frames` stands for the mapped memory: who holds
// the block reads it, who unmaps it writes it. Nobody may unmap what somebody holds.
#include "tests/models/model.h"

namespace {

enum State : unsigned { free_ = 0, ready, resident, spilling, hosted };
constexpr unsigned state_mask = 7, freed = 8, copies = 16, hold_one = 32;
constexpr unsigned state(unsigned w) { return w & state_mask; }
constexpr unsigned holds(unsigned w) { return w / hold_one; }
constexpr unsigned with_state(unsigned w, unsigned s) { return (w & ~state_mask) | s; }

template <bool canary>
struct BlockWord : rl::test_suite<BlockWord<canary>, 3> {
  rl::atomic<unsigned> word;
  rl::var<int> frames;
  rl::mutex engine;

  void before() {
    word($) = resident;
    frames($) = 1;
  }

  void thread(unsigned index) {
    if (index == 0) touch();
    else if (index == 1) spill();
    else free_and_reuse();
  }

  // allocator/engine/touch.cpp: touch(), hold_live(); allocator/engine/hot.h: drop_hold().
  void touch() {
    unsigned w = word($).load(rl::mo_acquire);
    while (state(w) == resident && !(w & freed)) {
      if (!word($).compare_exchange_weak(w, w + hold_one, rl::mo_acq_rel)) continue;
      RL_ASSERT(frames($) == 1);
      // The canary: the look at the memory may come after the hold has gone.
      w = word($).fetch_sub(hold_one, canary ? rl::mo_relaxed : rl::mo_acq_rel);
      RL_ASSERT(holds(w) > 0);
      if ((w & freed) && holds(w) == 1) {
        engine.lock($);
        finish_free();
        engine.unlock($);
      }
      return;
    }
  }

  // allocator/movement/spill.cpp: start_spill(), then finish_spill() and carry_out() of its
  // unmapping.
  void spill() {
    engine.lock($);
    unsigned w = word($).load(rl::mo_acquire);
    do {
      if (state(w) != resident || holds(w) > 0 || (w & freed)) {  // AgeOrder::may_leave()
        engine.unlock($);
        return;
      }
    } while (!word($).compare_exchange_weak(w, with_state(w | copies, spilling), rl::mo_acq_rel));
    frames($) = 0;
    transit(hosted, 0);
    engine.unlock($);
  }

  // allocator/engine/free.cpp: free(), free_slow(); allocator/engine/room.cpp: reclaim_parked();
  // then an allocation.
  void free_and_reuse() {
    unsigned w = word($).load(rl::mo_acquire);
    bool done = false;
    while (state(w) == resident && !(w & (copies | freed)) && holds(w) == 0) {
      if (!word($).compare_exchange_weak(w, with_state(w, ready), rl::mo_acq_rel)) continue;
      done = true;
      break;
    }
    engine.lock($);
    if (!done) {
      w = word($).load(rl::mo_acquire);
      while (!word($).compare_exchange_weak(w, w | freed, rl::mo_acq_rel)) {}
      if (holds(w) == 0) finish_free();
    }
    w = word($).load(rl::mo_acquire);
    if (state(w) == ready) {
      frames($) = 0;  // unmapped, and mapped again for the next owner
      transit(free_, 0);
      frames($) = 1;
      transit(resident, 0);
    }
    engine.unlock($);
  }

  // allocator/engine/free.cpp: finish_free(). The lock is held, word::freed is set and nobody holds
  // it.
  void finish_free() {
    const unsigned w = word($).load(rl::mo_acquire);
    transit(state(w) == resident ? ready : free_, freed | copies);
  }

  // block.cpp: transit().
  void transit(unsigned to, unsigned clear) {
    unsigned w = word($).load(rl::mo_acquire);
    while (!word($).compare_exchange_weak(w, with_state(w & ~clear, to), rl::mo_acq_rel)) {}
  }

  void after() { RL_ASSERT(holds(word($).load(rl::mo_relaxed)) == 0); }
};

}  // namespace

int main(int argc, char** argv) {
  return firn::models::run<BlockWord>("block word", "a hold is dropped without releasing", argc,
                                      argv);
}
