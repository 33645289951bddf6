// The ring of events (allocator/policy/event_ring.h): two writers, one of whom may sleep while the
// other goes round, and a reader. The reader takes for event n exactly what was pushed as n, and
// events come in their order; some may be lost, none twice.
#include "tests/models/model.h"

namespace {

constexpr unsigned entries = 4, mask = entries - 1, events = 3;

template <bool canary>
struct EventRing : rl::test_suite<EventRing<canary>, 3> {
  rl::atomic<unsigned> head;
  rl::atomic<unsigned> slots[entries];  // number << 8 | what the event is
  unsigned tail = 0;                    // the reader's

  static unsigned number(unsigned at) { return at + 1; }  // never that of an empty slot
  /// What event n is: here something that tells it from those a lap away.
  static unsigned content(unsigned at) { return at * 7 + 1; }

  void before() {
    head($) = 0;
    tail = 0;
    for (auto& slot : slots) slot($) = 0;
  }
  void thread(unsigned index) {
    if (index < 2)
      for (unsigned i = 0; i < events; ++i) push();
    else
      for (unsigned i = 0; i < events; ++i) pop();
  }
  void after() {
    while (pop()) {}
    RL_ASSERT(tail <= head($).load(rl::mo_relaxed));
  }

  // EventRing::push()
  void push() {
    const unsigned at = head($).fetch_add(1, rl::mo_relaxed);
    slots[at & mask]($).store(number(at) << 8 | content(at), rl::mo_release);
  }
  // EventRing::pop()
  bool pop() {
    for (;;) {
      const unsigned found = slots[tail & mask]($).load(rl::mo_acquire);
      const int behind = static_cast<int>(number(tail) - (found >> 8));
      // The canary: whatever is there counts, of this round or another.
      if (behind == 0 || (canary && found != 0)) {
        RL_ASSERT((found & 0xFF) == content(tail));
        ++tail;
        return true;
      }
      if (behind > 0) return false;  // of the round before: not written yet
      const unsigned on = head($).load(rl::mo_relaxed) - mask / 2;
      RL_ASSERT(on > tail);  // never back: an event would come twice
      tail = on;
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  return firn::models::run<EventRing>("event ring", "a slot's number is not looked at", argc, argv);
}
