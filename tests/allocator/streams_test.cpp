// Epochs and uses by themselves, on the software GPU's streams and clock.
#include "allocator/streams.h"

#include <gtest/gtest.h>

#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr uint64_t ms = 1'000'000;

struct StreamsTest : testing::Test {
  static SimulationOptions two_devices() {
    SimulationOptions o;
    o.devices = 2;
    return o;
  }
  Simulation sim{two_devices()};
  DeviceHealth health{sim.driver(), 0};
  Streams streams{sim.driver(), health};
  Driver::ContextGuard guard{sim.driver(), sim.context(0)};

  CUstream busy(CUstream stream, uint64_t ns = 10 * ms) {
    EXPECT_EQ(sim.gpu().busy(stream, ns), 0);
    return stream;
  }
  unsigned see(CUstream stream, CUcontext context = nullptr) {
    const int index = streams.see(stream, context);
    EXPECT_GE(index, 0);
    return static_cast<unsigned>(index);
  }
  void pass(uint64_t ns) {
    for (const uint64_t end = now() + ns; now() < end;) sim.clock().wait(end - now());
  }
  uint64_t now() { return sim.clock().now_ns(); }
};

}  // namespace

TEST_F(StreamsTest, a_use_is_over_when_its_work_is) {
  const unsigned index = see(busy(sim.make_stream(0)));
  const Use use = streams.now(index);
  EXPECT_FALSE(streams.over(use));
  ASSERT_TRUE(streams.close(use));
  EXPECT_FALSE(streams.poll());
  EXPECT_FALSE(streams.over(use));
  pass(10 * ms);
  EXPECT_TRUE(streams.poll());
  EXPECT_TRUE(streams.over(use));
  EXPECT_FALSE(streams.pending());
}

TEST_F(StreamsTest, events_are_used_again) {
  const CUstream stream = sim.make_stream(0);
  const unsigned index = see(stream);
  const uint64_t before = sim.counts(0).events;
  for (int i = 0; i < 100; ++i) {
    busy(stream, 1000);
    ASSERT_TRUE(streams.close(streams.now(index)));
    pass(1000);
    (void)streams.poll();
  }
  EXPECT_LE(sim.counts(0).events, before + 2);
}

TEST_F(StreamsTest, what_an_ended_stream_did_is_over_no_earlier_than_its_work) {
  const unsigned index = see(busy(sim.make_stream(0)));
  const Use use = streams.now(index);
  streams.ends(index);
  const Use later = streams.now(index);  // named by who had not heard
  ASSERT_TRUE(streams.close(later));
  EXPECT_FALSE(streams.over(use));
  EXPECT_FALSE(streams.over(later));
  pass(10 * ms);
  (void)streams.poll();
  EXPECT_TRUE(streams.over(use));
  EXPECT_TRUE(streams.over(later));
}

TEST_F(StreamsTest, an_order_is_kept_and_nobody_waits_here) {
  const CUstream one = sim.make_stream(0), other = sim.make_stream(0);
  const unsigned first = see(one), second = see(other);
  busy(one);
  const Use use = streams.now(first);
  const uint64_t begin = now();
  ASSERT_TRUE(streams.order(second, use));
  EXPECT_EQ(now(), begin) << "it waited in the calling thread";
  busy(other, 1 * ms);
  const Use behind = streams.now(second);
  ASSERT_TRUE(streams.close(behind));
  pass(5 * ms);
  (void)streams.poll();
  EXPECT_FALSE(streams.over(behind));
  pass(6 * ms);
  (void)streams.poll();
  EXPECT_TRUE(streams.over(behind));
}

TEST_F(StreamsTest, a_stream_of_its_own_is_in_order_without_an_event) {
  const unsigned index = see(busy(sim.make_stream(0)));
  const uint64_t before = sim.counts(0).events;
  ASSERT_TRUE(streams.order(index, streams.now(index)));
  EXPECT_EQ(sim.counts(0).events, before);
}

TEST_F(StreamsTest, who_waits_waits_for_no_later_work) {
  const CUstream stream = sim.make_stream(0);
  const unsigned index = see(busy(stream));
  const Use use = streams.now(index);
  ASSERT_TRUE(streams.close(use));
  busy(stream, 100 * ms);
  const uint64_t begin = now();
  ASSERT_TRUE(streams.wait(use));
  EXPECT_TRUE(streams.over(use));
  EXPECT_GE(now(), begin + 10 * ms);
  EXPECT_LT(now(), begin + 50 * ms);
}

TEST_F(StreamsTest, work_of_another_context_has_events_of_its_own) {
  const unsigned index = see(busy(sim.make_stream(1)), sim.context(1));
  const Use use = streams.now(index);
  ASSERT_TRUE(streams.close(use));
  EXPECT_FALSE(streams.over(use));
  pass(10 * ms);
  EXPECT_TRUE(streams.poll());
  EXPECT_TRUE(streams.over(use));
  EXPECT_EQ(health.refusals(), 0u);
}

TEST_F(StreamsTest, a_stream_of_ours_is_no_other_contexts_when_it_is_seen_again) {
  const CUstream stream = sim.make_stream(1);
  const unsigned index = see(stream, sim.context(1));
  EXPECT_EQ(see(stream), index);
  busy(stream);
  ASSERT_TRUE(streams.close(streams.now(index)));
  EXPECT_EQ(health.refusals(), 0u);
}

TEST_F(StreamsTest, a_contexts_end_is_that_of_its_streams_alone) {
  const unsigned theirs = see(busy(sim.make_stream(1)), sim.context(1));
  const unsigned ours = see(busy(sim.make_stream(0)));
  const Use their_use = streams.now(theirs), our_use = streams.now(ours);
  ASSERT_TRUE(streams.close(their_use) && streams.close(our_use));
  streams.context_ends(sim.context(1));
  EXPECT_TRUE(streams.over(their_use));
  EXPECT_FALSE(streams.over(our_use));
  pass(10 * ms);
  (void)streams.poll();
  EXPECT_TRUE(streams.over(our_use));
  EXPECT_FALSE(streams.pending());
}

TEST_F(StreamsTest, events_are_given_back_at_the_end) {
  const uint64_t before = sim.counts(0).events + sim.counts(1).events;
  {
    Streams other(sim.driver(), health);
    const int ours = other.see(sim.make_stream(0));
    const int theirs = other.see(sim.make_stream(1), sim.context(1));
    for (int i = 0; i < 3; ++i)
      for (int index : {ours, theirs})
        ASSERT_TRUE(other.close(other.now(static_cast<unsigned>(index))));
    (void)other.poll();
  }
  EXPECT_EQ(sim.counts(0).events + sim.counts(1).events, before);
}

// A call that the driver refuses, and does nothing: nobody takes it for done.
namespace {
struct RefusedOnce : StreamsTest {
  void refuse(const char* entry) { sim.gpu().fail_at(entry, 1, CUDA_ERROR_UNKNOWN); }
  /// A use of 10 ms: `ask` is refused where `entries` are, and nothing is over before its time.
  template <class Ask>
  void expect_refusal(std::initializer_list<const char*> entries, Ask&& ask) {
    const uint64_t begin = now();
    const Use use = streams.now(see(busy(sim.make_stream(0))));
    for (const char* entry : entries) refuse(entry);
    EXPECT_FALSE(ask(use));
    EXPECT_FALSE(streams.pending() && streams.poll());
    EXPECT_LT(now(), begin + 10 * ms) << "its work runs";
    EXPECT_FALSE(streams.over(use));
    pass(20 * ms);
    ASSERT_TRUE(streams.close(use));
    (void)streams.poll();
    EXPECT_TRUE(streams.over(use));
  }
};
}  // namespace

TEST_F(RefusedOnce, an_event_that_was_not_recorded_says_nothing) {
  expect_refusal({"cuEventRecord"}, [&](Use use) { return streams.close(use); });
}

TEST_F(RefusedOnce, an_event_that_was_not_made_is_none) {
  expect_refusal({"cuEventCreate"}, [&](Use use) { return streams.close(use); });
}

TEST_F(RefusedOnce, a_wait_for_an_event) {
  expect_refusal({"cuEventSynchronize"}, [&](Use use) { return bool(streams.wait(use)); });
}

TEST_F(RefusedOnce, neither_an_event_nor_the_stream) {
  expect_refusal({"cuEventCreate", "cuStreamSynchronize"},
                 [&](Use use) { return bool(streams.wait(use)); });
}

TEST_F(RefusedOnce, the_device_of_a_stream_that_may_have_ended) {
  expect_refusal({"cuCtxSynchronize"}, [&](Use use) {
    streams.may_end(use.stream());
    return streams.close(use);
  });
}

TEST_F(RefusedOnce, an_order_waits_here_where_the_stream_will_not) {
  const unsigned first = see(busy(sim.make_stream(0))), second = see(sim.make_stream(0));
  const Use use = streams.now(first);
  const uint64_t begin = now();
  refuse("cuStreamWaitEvent");
  ASSERT_TRUE(streams.order(second, use));
  EXPECT_TRUE(streams.over(use));
  EXPECT_GE(now(), begin + 10 * ms);
}

TEST_F(RefusedOnce, without_an_event_the_stream_is_waited_for) {
  const uint64_t begin = now();
  const Use use = streams.now(see(busy(sim.make_stream(0))));
  refuse("cuEventCreate");
  ASSERT_TRUE(streams.wait(use));
  EXPECT_TRUE(streams.over(use));
  EXPECT_GE(now(), begin + 10 * ms);
}

TEST_F(RefusedOnce, the_event_behind_a_stream_that_ends) {
  const uint64_t begin = now();
  const unsigned index = see(busy(sim.make_stream(0)));
  const Use use = streams.now(index);
  refuse("cuEventRecord");
  streams.ends(index);
  EXPECT_TRUE(streams.may_end_known(index));
  (void)streams.poll();
  EXPECT_FALSE(streams.over(use));
  ASSERT_TRUE(streams.close(use));  // by the device, which it waits for
  EXPECT_TRUE(streams.over(use));
  EXPECT_GE(now(), begin + 10 * ms);
}

TEST_F(StreamsTest, what_names_an_ended_stream_is_waited_for_without_its_handle) {
  const CUstream stream = sim.make_stream(0);
  const unsigned index = see(busy(stream));
  streams.ends(index);
  pass(10 * ms);
  ASSERT_TRUE(streams.poll());
  const Use later = streams.now(index);  // named by who had not heard
  sim.gpu().fail_from("cuStreamSynchronize", 1, CUDA_ERROR_INVALID_HANDLE);
  EXPECT_TRUE(streams.wait(later));
  EXPECT_TRUE(streams.over(later));
  sim.gpu().fail_from("cuStreamSynchronize", 0, 0);
}
