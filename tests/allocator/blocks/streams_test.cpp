// Epochs and uses by themselves, on the software GPU's streams and clock.
#include <dlfcn.h>

#include <map>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/allocator/blocks/streams_fixture.h"
#include "tests/allocator/capture.h"

using namespace firn;
using namespace firn::test;

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

TEST_F(StreamsTest, the_end_of_one_that_may_have_ended_is_nothing_new) {
  const uint64_t begin = now();
  const unsigned index = see(busy(sim.make_stream(0)));
  streams.may_end(index);
  streams.ends(index);
  EXPECT_EQ(now(), begin) << "it waited for the device";
  EXPECT_TRUE(streams.may_end_known(index));
}

TEST_F(StreamsTest, a_driver_that_knows_no_captures_has_none) {
  sim.driver().stream_is_capturing = nullptr;
  const Use use = streams.now(see(busy(sim.make_stream(0))));
  EXPECT_FALSE(streams.any_captured());
  EXPECT_TRUE(streams.close(use));
}

TEST_F(StreamsTest, what_is_over_is_ordered_without_a_call) {
  const unsigned first = see(busy(sim.make_stream(0))), second = see(sim.make_stream(0));
  const Use use = streams.now(first);
  ASSERT_TRUE(streams.wait(use));
  const uint64_t calls = sim.gpu().fallible_calls();
  EXPECT_TRUE(streams.order(second, use));
  EXPECT_TRUE(streams.wait(use));
  EXPECT_TRUE(streams.close(use));
  EXPECT_EQ(sim.gpu().fallible_calls(), calls);
}

TEST_F(StreamsTest, a_dead_device_is_asked_nothing) {
  const unsigned first = see(busy(sim.make_stream(0))), second = see(sim.make_stream(0));
  const Use closed = streams.now(first);
  ASSERT_TRUE(streams.close(closed));
  const Use open = streams.now(first);
  health.end("cuSomething", CUDA_ERROR_ILLEGAL_ADDRESS);
  const uint64_t calls = sim.gpu().fallible_calls();
  EXPECT_FALSE(streams.close(open));
  for (const Use use : {closed, open}) {
    const Result<void> ordered = streams.order(second, use), waited = streams.wait(use);
    ASSERT_FALSE(ordered || waited);
    for (const Error& error : {ordered.error(), waited.error()})
      EXPECT_NE(error.text.find("cuSomething"), std::string::npos) << error.text;
  }
  EXPECT_FALSE(streams.poll());
  EXPECT_EQ(sim.gpu().fallible_calls(), calls);
}

/// An event in a graph is nobody's to ask for, and its end may be refused: once is enough.
TEST_F(StreamsTest, an_event_that_a_capture_may_have_is_given_up) {
  static decltype(Driver::event_destroy) destroy;
  static unsigned destroyed;
  const auto counted = [](CUevent event) {
    ++destroyed;
    return destroy(event);
  };
  for (const bool refused : {false, true}) {
    auto other = std::make_unique<Streams>(sim.driver(), health);
    const Use use = other->now(static_cast<unsigned>(other->see(busy(sim.make_stream(0)))));
    destroyed = 0;
    destroy = std::exchange(sim.driver().event_destroy, counted);
    sim.gpu().fail_at("cuStreamIsCapturing", 2, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (refused) sim.gpu().fail_at("cuEventDestroy", 1, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    const uint64_t events = sim.counts(0).events;
    EXPECT_FALSE(other->close(use));
    EXPECT_FALSE(other->pending());
    EXPECT_EQ(sim.counts(0).events, events + refused);
    other.reset();
    EXPECT_EQ(sim.counts(0).events, events);
    EXPECT_EQ(destroyed, refused ? 2u : 1u);
    sim.driver().event_destroy = destroy;
  }
}

TEST_F(StreamsTest, under_a_capture_there_is_neither_an_event_nor_a_wait) {
  const CUstream stream = busy(sim.make_stream(0));
  const unsigned index = see(stream), other = see(sim.make_stream(0));
  const Use use = streams.now(index);
  const uint64_t events = sim.counts(0).events;
  Capture capture(sim, stream);
  EXPECT_TRUE(streams.any_captured());
  EXPECT_FALSE(streams.close(use));
  const Result<void> waited = streams.wait(use), ordered = streams.order(other, use);
  ASSERT_FALSE(waited || ordered);
  EXPECT_NE(waited.error().text.find("a capture is under way"), std::string::npos)
      << waited.error().text;
  EXPECT_EQ(ordered.error().code, Code::busy) << ordered.error().text;
  EXPECT_FALSE(streams.ask(use)) << "the question would spoil it";
  EXPECT_EQ(sim.counts(0).events, events);
  // Its own work waits for nothing outside: that has to be over before.
  const Use outside = streams.now(see(busy(sim.make_stream(0))));
  const uint64_t begin = now();
  EXPECT_EQ(streams.order(index, outside).error().code, Code::busy);
  EXPECT_EQ(now(), begin) << "it waited in the calling thread";
  pass(10 * ms);
  (void)streams.poll();
  EXPECT_TRUE(streams.order(index, outside)) << "it was closed";
  EXPECT_EQ(capture.end(), CUDA_SUCCESS) << "it is whole";
  EXPECT_FALSE(streams.any_captured());
  EXPECT_TRUE(streams.wait(use));
  EXPECT_EQ(health.refusals(), 0u);
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

TEST_F(StreamsTest, a_handle_may_be_another_contexts_later) {
  const CUstream stream = sim.make_stream(1);
  const unsigned index = see(stream);
  EXPECT_EQ(see(stream, sim.context(1)), index);
  busy(stream);
  EXPECT_TRUE(streams.close(streams.now(index)));
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

TEST_F(StreamsTest, events_are_left_to_the_drivers_end) {
  const uint64_t before = sim.counts(0).events;
  {
    Streams other(sim.driver(), health);
    const int index = other.see(sim.make_stream(0));
    ASSERT_TRUE(other.close(other.now(static_cast<unsigned>(index))));
    other.abandon();
  }
  EXPECT_EQ(sim.counts(0).events, before + 1);
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

// All places are taken: by streams of another context that are names alone, given to no driver.
namespace {
struct NoPlaceLeft : StreamsTest {
  const CUcontext theirs = sim.context(1);
  uint64_t names = 0;

  static CUstream name(uint64_t number) { return reinterpret_cast<CUstream>(number << 20 | 7); }
  unsigned fill() {
    while (streams.count() < Streams::capacity) see(name(++names), theirs);
    return Streams::capacity;
  }
};
}  // namespace

TEST_F(NoPlaceLeft, one_that_has_ended_gives_its_place_once_its_work_is_over) {
  const CUstream one = busy(sim.make_stream(0)), other = sim.make_stream(0);
  const unsigned index = see(one);
  const Use use = streams.now(index);
  fill();
  EXPECT_EQ(streams.see(other), -1);
  streams.ends(index);
  EXPECT_EQ(streams.see(other), -1) << "its work is under way";
  EXPECT_EQ(streams.find(one), static_cast<int>(index));
  pass(10 * ms);
  EXPECT_TRUE(streams.poll());
  EXPECT_EQ(streams.see(other), static_cast<int>(index));
  EXPECT_EQ(streams.find(one), -1);
  EXPECT_TRUE(streams.over(use));
  busy(other);
  const Use theirs_now = streams.now(index);
  EXPECT_FALSE(streams.over(theirs_now));
  EXPECT_TRUE(streams.close(theirs_now));
  EXPECT_EQ(streams.see(one), -1);
}

TEST_F(NoPlaceLeft, one_that_is_in_use_again_keeps_its_place) {
  const CUstream one = sim.make_stream(0), other = sim.make_stream(0);
  const unsigned first = see(one), second = see(other);
  fill();
  for (const unsigned index : {first, second}) {
    ASSERT_TRUE(streams.close(streams.now(index)));
    streams.ends(index);
  }
  (void)streams.poll();
  streams.used(first);
  EXPECT_EQ(streams.see(name(++names), theirs), static_cast<int>(second));
  EXPECT_EQ(streams.find(one), static_cast<int>(first));
  EXPECT_EQ(streams.see(name(++names), theirs), -1);
}

/// Of two that are looked for in one place first only the one that has ended is not found there.
TEST_F(NoPlaceLeft, what_lies_behind_a_place_that_was_left_is_found) {
  std::map<size_t, CUstream> known;
  CUstream one = nullptr, other = nullptr;
  while (!other) {
    const CUstream next = name(++names);
    const auto [at, first] = known.emplace(Streams::hash(next), next);
    if (!first) one = at->second, other = next;
  }
  const unsigned first = see(one, theirs), second = see(other, theirs);
  fill();
  for (const auto& [ends, stays] : {std::pair{second, first}, std::pair{first, second}}) {
    streams.context_ends(theirs);
    for (unsigned index = 0; index < streams.count(); ++index)
      if (index != ends) streams.used(index);
    const CUstream next = name(++names);
    const CUstream gone = streams.key(ends), there = streams.key(stays);
    EXPECT_EQ(streams.see(next, theirs), static_cast<int>(ends));
    EXPECT_EQ(streams.find(gone), -1);
    EXPECT_EQ(streams.find(there), static_cast<int>(stays));
    EXPECT_EQ(streams.find(next), static_cast<int>(ends));
  }
}

/// So many have come and gone that no place in the table is as it was at first.
TEST_F(NoPlaceLeft, one_that_was_never_seen_is_looked_for_to_the_end) {
  fill();
  for (int i = 0; i < 60'000; ++i) {
    int index = streams.see(name(++names), theirs);
    if (index >= 0) continue;
    streams.context_ends(theirs);
    index = streams.see(name(names), theirs);
    ASSERT_GE(index, 0);
  }
  EXPECT_EQ(streams.find(name(++names)), -1);
  EXPECT_GE(streams.find(name(names - 1)), 0);
}
