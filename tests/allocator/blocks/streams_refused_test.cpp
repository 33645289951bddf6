// Calls of streams that the driver refuses once.
#include <string>

#include "tests/allocator/blocks/streams_fixture.h"

using namespace firn;
using namespace firn::test;

// A call that the driver refuses, and does nothing: nobody takes it for done.
namespace {
struct RefusedOnce : StreamsTest {
  /// As the engine does, once close() asked for it.
  bool wait_for_device() {
    const auto wait = streams.begin_device_wait();
    if (!wait) return false;
    const CUresult result = sim.driver().ctx_synchronize();
    streams.end_device_wait(*wait, result);
    return result == CUDA_SUCCESS;
  }
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

TEST_F(RefusedOnce, a_question_after_an_event) {
  const Use use = streams.now(see(busy(sim.make_stream(0))));
  ASSERT_TRUE(streams.close(use));
  refuse("cuEventQuery");
  EXPECT_FALSE(streams.poll());
  EXPECT_FALSE(streams.over(use));
  EXPECT_TRUE(streams.pending());
}

/// A refusal because of a capture says nothing of the device; any other is counted.
TEST_F(RefusedOnce, counts_unless_it_is_about_a_capture) {
  for (const std::string entry :
       {"cuEventRecord", "cuStreamIsCapturing", "cuEventQuery", "cuCtxSynchronize",
        "cuStreamQuery"})
    for (const CUresult answer : {CUDA_ERROR_UNKNOWN, CUDA_ERROR_INVALID_HANDLE,
                                  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                                  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT}) {
      SCOPED_TRACE(entry + " answers " + std::to_string(answer));
      const Use use = streams.now(see(busy(sim.make_stream(0))));
      if (entry == "cuCtxSynchronize") streams.may_end(use.stream());
      const uint64_t before = health.refusals();
      sim.gpu().fail_at(entry.c_str(), 1, answer);
      if (entry == "cuStreamQuery")
        EXPECT_FALSE(streams.ask(use));
      else if (entry == "cuCtxSynchronize")
        EXPECT_FALSE(streams.close(use) && wait_for_device());
      else
        EXPECT_FALSE(streams.close(use) && streams.poll());
      const bool counts = answer == CUDA_ERROR_UNKNOWN || answer == CUDA_ERROR_INVALID_HANDLE;
      EXPECT_EQ(health.refusals() - before, counts);
      EXPECT_FALSE(streams.over(use));
      pass(20 * ms);
      for (int i = 0; i < 1'000; ++i) (void)streams.poll();  // (a pause ends)
    }
}

TEST_F(RefusedOnce, whoever_cannot_be_waited_for_is_told_why) {
  const Use use = streams.now(see(busy(sim.make_stream(0))));
  for (const CUresult answer : {CUDA_ERROR_UNKNOWN, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT}) {
    for (const uint64_t nth : {1, 2}) sim.gpu().fail_at("cuStreamIsCapturing", nth, answer);
    const Result<void> waited = streams.wait(use);
    ASSERT_FALSE(waited);
    EXPECT_NE(waited.error().text.find(answer == CUDA_ERROR_UNKNOWN ? "cuStreamIsCapturing"
                                                                    : "a capture is under way"),
              std::string::npos)
        << waited.error().text;
  }
  EXPECT_TRUE(streams.wait(use));
}

TEST_F(RefusedOnce, what_is_known_to_be_over_stays_so) {
  const CUstream stream = sim.make_stream(0);
  const unsigned index = see(busy(stream, ms));
  ASSERT_TRUE(streams.close(streams.now(index)));
  busy(stream, ms);
  const Use use = streams.now(index);
  ASSERT_TRUE(streams.close(use));
  ASSERT_TRUE(streams.wait(use));
  sim.gpu().fail_at("cuEventQuery", 2, CUDA_ERROR_UNKNOWN);
  EXPECT_TRUE(streams.poll());
  EXPECT_TRUE(streams.over(use));
}

TEST_F(RefusedOnce, neither_an_event_nor_the_stream) {
  expect_refusal({"cuEventCreate", "cuStreamSynchronize"},
                 [&](Use use) { return bool(streams.wait(use)); });
}

TEST_F(RefusedOnce, the_device_of_a_stream_that_may_have_ended) {
  const uint64_t begin = now();
  const Use use = streams.now(see(busy(sim.make_stream(0))));
  streams.may_end(use.stream());
  EXPECT_FALSE(streams.device_wait_due());
  ASSERT_TRUE(streams.close(use) && streams.close(use)) << "it can become over";
  EXPECT_TRUE(streams.device_wait_due());
  refuse("cuCtxSynchronize");
  EXPECT_FALSE(wait_for_device());
  EXPECT_FALSE(streams.over(use) || streams.device_wait_due()) << "nobody waits for it any more";
  EXPECT_EQ(now(), begin);
  ASSERT_TRUE(streams.close(use) && wait_for_device());
  EXPECT_TRUE(streams.over(use));
  EXPECT_GE(now(), begin + 10 * ms);
  EXPECT_FALSE(streams.device_wait_due() || streams.begin_device_wait());
}

/// A use that begins while the device is waited for is not over by that.
TEST_F(RefusedOnce, a_wait_for_the_device_ends_no_later_use) {
  const CUstream stream = busy(sim.make_stream(0));
  const unsigned index = see(stream);
  const Use before = streams.now(index);
  streams.may_end(index);
  ASSERT_TRUE(streams.close(before));
  const auto wait = streams.begin_device_wait();
  ASSERT_TRUE(wait);
  ASSERT_EQ(sim.driver().ctx_synchronize(), CUDA_SUCCESS);
  busy(stream);
  const Use meanwhile = streams.now(index);
  streams.end_device_wait(*wait, CUDA_SUCCESS);
  EXPECT_TRUE(streams.over(before));
  EXPECT_FALSE(streams.over(meanwhile));
}

/// One context's device is waited for at a time.
TEST_F(RefusedOnce, waits_for_two_devices_are_two) {
  const CUcontext theirs = sim.context(1);
  const unsigned own = see(sim.make_stream(0)), other = see(sim.make_stream(1), theirs);
  for (const unsigned index : {own, other}) {
    streams.may_end(index);
    ASSERT_TRUE(streams.close(streams.now(index)));
  }
  const auto first = streams.begin_device_wait(), second = streams.begin_device_wait();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->over.size(), 1u);
  EXPECT_EQ(second->over.size(), 1u);
  EXPECT_EQ(first->context, nullptr);
  EXPECT_EQ(second->context, theirs);
}

/// No wait is made in a context that has ended.
TEST_F(RefusedOnce, a_context_s_end_is_the_end_of_its_wait) {
  const CUcontext theirs = sim.context(1);
  const unsigned other = see(busy(sim.make_stream(1)), theirs);
  const Use use = streams.now(other);
  streams.may_end(other);
  ASSERT_TRUE(streams.close(use) && streams.device_wait_due());
  streams.context_ends(theirs);
  EXPECT_FALSE(streams.device_wait_due() || streams.begin_device_wait());
  EXPECT_TRUE(streams.over(use));
  const Use later = streams.now(other);  // named by who had not heard
  EXPECT_TRUE(streams.close(later) && streams.over(later));
  EXPECT_FALSE(streams.device_wait_due());
}

/// Uses that the wait under way covers are closed: it is not asked for again, whatever is captured.
TEST_F(RefusedOnce, a_wait_under_way_is_asked_for_once) {
  const CUstream stream = busy(sim.make_stream(0));
  const Use use = streams.now(see(stream));
  streams.may_end(use.stream());
  ASSERT_TRUE(streams.close(use));
  const auto wait = streams.begin_device_wait();
  ASSERT_TRUE(wait);
  sim.gpu().fail_from("cuStreamIsCapturing", 1, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_TRUE(streams.close(use)) << "it will be over";
  EXPECT_FALSE(streams.device_wait_due());
  const Use later = streams.now(use.stream());
  EXPECT_TRUE(streams.close(later)) << "of a stream without a handle nobody asks";
  EXPECT_TRUE(streams.device_wait_due()) << "the wait does not cover it";
  sim.gpu().fail_from("cuStreamIsCapturing", 0, 0);
  streams.end_device_wait(*wait, sim.driver().ctx_synchronize());
  EXPECT_TRUE(streams.over(use));
  EXPECT_FALSE(streams.over(later));
  ASSERT_TRUE(wait_for_device());
  EXPECT_TRUE(streams.over(later));
}

/// A capture of a stream that was never seen forbids the wait: it is left alone for a while, and
/// whoever waits learns that nothing moves.
TEST_F(RefusedOnce, a_wait_that_a_capture_forbids_pauses) {
  const Use use = streams.now(see(busy(sim.make_stream(0))));
  streams.may_end(use.stream());
  ASSERT_TRUE(streams.close(use));
  sim.gpu().fail_at("cuCtxSynchronize", 1, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_FALSE(wait_for_device());
  EXPECT_FALSE(streams.close(use) || streams.begin_device_wait());
  for (int i = 0; i < 1'000; ++i) (void)streams.poll();
  EXPECT_TRUE(streams.close(use) && wait_for_device());
  EXPECT_TRUE(streams.over(use));
}

TEST_F(RefusedOnce, an_order_that_the_stream_refuses_is_put_off) {
  const unsigned first = see(busy(sim.make_stream(0))), second = see(sim.make_stream(0));
  const Use use = streams.now(first);
  const uint64_t begin = now();
  refuse("cuStreamWaitEvent");
  EXPECT_EQ(streams.order(second, use).error().code, Code::busy);
  EXPECT_EQ(now(), begin) << "it waited in the calling thread";
  EXPECT_FALSE(streams.over(use));
  EXPECT_TRUE(streams.order(second, use));
}

/// Without events: an idle stream has nothing left to do, a busy one may have.
TEST_F(RefusedOnce, without_an_event_the_stream_is_asked) {
  const CUstream stream = busy(sim.make_stream(0));
  const Use use = streams.now(see(stream));
  EXPECT_FALSE(streams.ask(use));
  EXPECT_FALSE(streams.over(use));
  pass(10 * ms);
  EXPECT_TRUE(streams.ask(use));
  EXPECT_TRUE(streams.over(use));
  busy(stream);
  EXPECT_FALSE(streams.over(streams.now(use.stream()))) << "later work is no part of it";
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
  ASSERT_TRUE(streams.close(use) && wait_for_device());
  EXPECT_TRUE(streams.over(use));
  EXPECT_GE(now(), begin + 10 * ms);
}
