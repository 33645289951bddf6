// Epochs (allocator/blocks/streams.h): work is enqueued, then reads the open epoch; who closes an
// epoch raises the number, then records an event behind all that is enqueued by then. A use that is
// over by its number lies before that event, or memory is unmapped under work.
#include "tests/models/model.h"

namespace {

template <bool canary>
struct Streams : rl::test_suite<Streams<canary>, 3> {
  rl::atomic<unsigned> open, done;
  rl::atomic<unsigned> use;        // of the block: epoch; 0: none
  rl::mutex driver;                // the stream's queue is the driver's
  rl::var<unsigned> enqueued;      // how much work is in it
  rl::var<unsigned> work;          // the block's is the nth
  rl::var<unsigned> behind;        // so much lies before the last event recorded
  rl::mutex engine;
  unsigned recorded = 0;

  void before() {
    open($) = 1;
    done($) = 0;
    use($) = 0;
    enqueued($) = 0;
    work($) = 0;
    behind($) = 0;
    recorded = 0;
  }
  void thread(unsigned index) {
    if (index == 0) launch();
    else if (index == 1) close();
    else unmap();
  }
  // A launch, then EngineImpl::release(): Streams::now(), set_use().
  void launch() {
    driver.lock($);
    enqueued($) = enqueued($) + 1;
    work($) = enqueued($);
    driver.unlock($);
    use($).store(open($).load(rl::mo_acquire), rl::mo_release);
  }
  // Streams::close(), and poll() when the event has completed. The canary: the event first.
  void close() {
    for (int round = 0; round < 2; ++round) {
      engine.lock($);
      if (canary) record();
      const unsigned epoch = open($).fetch_add(1, rl::mo_seq_cst);
      if (!canary) record();
      recorded = epoch;
      done($).store(epoch, rl::mo_release);
      engine.unlock($);
    }
  }
  void record() {
    driver.lock($);
    behind($) = enqueued($);
    driver.unlock($);
  }
  // Uses::over(): Streams::over().
  void unmap() {
    engine.lock($);
    const unsigned last = use($).load(rl::mo_acquire);
    if (last != 0 && last <= done($).load(rl::mo_acquire)) {
      driver.lock($);
      RL_ASSERT(work($) <= behind($));
      driver.unlock($);
    }
    engine.unlock($);
  }
};

}  // namespace

int main(int argc, char** argv) {
  return firn::models::run<Streams>(
      "streams", "an epoch's event is recorded before its number is raised", argc, argv);
}
