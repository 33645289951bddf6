// Transfers by themselves: a driver and a store that only note what they are asked for.
#include "allocator/movement/transfers.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/allocator/fake_gpu.h"
#include "tests/allocator/fake_store.h"
#include "tests/hand_clock.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr size_t piece_bytes = 2u << 20;

class TransfersTest : public ::testing::Test {
 protected:
  TransfersTest() {
    EXPECT_TRUE(transfers_.start(false));
    transfers_.know_streams(static_cast<unsigned>(streams_.see(transfers_.out_stream())),
                            static_cast<unsigned>(streams_.see(transfers_.in_stream())));
    block_.address = uint64_t{1} << 40;
    block_.pages = 3 * granule_pages;
    block_.spans.emplace_back();
    block_.spans.front().pages = block_.pages;
    block_.spans.front().frames.push_back(Frame{1, 3});
    for (uint64_t i = 0; i < 3; ++i) {
      Piece piece;
      piece.offset = i * piece_bytes;
      piece.bytes = piece_bytes;
      block_.pieces.push_back(piece);
    }
  }
  ~TransfersTest() override {
    for (Piece& piece : block_.pieces) give_host(piece);
    EXPECT_EQ(host_.used(), 0u) << "a reference to staging is left";
    transfers_.end();
    EXPECT_EQ(gpu_.streams_live, 0u);
  }
  Piece& piece(uint32_t index) { return block_.pieces[index]; }
  Staging* staging() { return host_.acquire(piece_bytes); }
  void give_host(Piece& piece) {
    if (piece.host) host_.unref(std::exchange(piece.host, nullptr));
  }
  void finish(CUstream stream, uint64_t count = UINT64_MAX) {
    gpu_.finish(stream, count);
    (void)streams_.poll();
  }
  /// As after a copy out.
  void in_host(uint32_t index) {
    piece(index).host = staging();
    piece(index).host_valid = true;
  }

  FakeGpu gpu_;
  FakeStore store_;
  HandClock clock_;
  DeviceHealth health_{gpu_.driver(), 0};
  Streams streams_{gpu_.driver(), health_};
  Uses uses_{streams_};
  HostTier host_{gpu_.driver(), &store_, 64u << 20, nullptr, 0, true};
  std::vector<std::string> told_;
  Transfers transfers_{{gpu_.driver(), health_, streams_, uses_, host_, {}, &store_, 0, clock_,
                        [this](const std::string& words) { told_.push_back(words); }}};
  Block block_;
};

TEST_F(TransfersTest, a_copy_out_ends_when_its_stream_has_come_to_it) {
  Staging* to = staging();
  ASSERT_TRUE(transfers_.copy_out(block_, 1, to, false));
  ASSERT_EQ(gpu_.work.size(), 1u);
  EXPECT_EQ(gpu_.work[0].call, "dtoh");
  EXPECT_EQ(gpu_.work[0].device, block_.address + piece_bytes);
  EXPECT_EQ(gpu_.work[0].host, reinterpret_cast<uint64_t>(to->data));
  EXPECT_EQ(gpu_.work[0].stream, transfers_.out_stream());
  EXPECT_TRUE(piece(1).copying_out);
  EXPECT_EQ(piece(1).host, to);
  EXPECT_EQ(to->refs, 2);
  EXPECT_EQ(transfers_.bytes_out(), piece_bytes);
  EXPECT_FALSE(uses_.over(block_));  // its memory may not be unmapped
  EXPECT_FALSE(transfers_.next_out());
  finish(transfers_.out_stream());
  const auto ended = transfers_.next_out();
  ASSERT_TRUE(ended);
  EXPECT_TRUE(current(*ended));
  EXPECT_EQ(ended->piece, 1u);
  EXPECT_EQ(to->refs, 1);
  EXPECT_TRUE(uses_.over(block_));
  EXPECT_FALSE(transfers_.next_out());
  EXPECT_FALSE(transfers_.copying());
}

TEST_F(TransfersTest, copies_end_one_by_one_in_their_order) {
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(transfers_.copy_out(block_, i, staging(), false));
    (void)streams_.close(streams_.now(transfers_.out()));
  }
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_FALSE(transfers_.next_out());
    finish(transfers_.out_stream(), i + 1);
    const auto ended = transfers_.next_out();
    ASSERT_TRUE(ended);
    EXPECT_EQ(ended->piece, i);
  }
}

TEST_F(TransfersTest, the_end_of_a_copy_of_a_block_that_was_freed_names_nobody) {
  ASSERT_TRUE(transfers_.copy_out(block_, 0, staging(), false));
  ++block_.generation;
  EXPECT_FALSE(transfers_.next_out());  // an event is recorded
  finish(transfers_.out_stream());
  const auto ended = transfers_.next_out();
  ASSERT_TRUE(ended);
  EXPECT_FALSE(current(*ended));
}

TEST_F(TransfersTest, a_refused_copy_leaves_the_piece_and_the_staging_as_they_were) {
  gpu_.refusals["cuMemcpyDtoHAsync"] = 1;
  Staging* to = staging();
  const Result<void> refused = transfers_.copy_out(block_, 0, to, false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::driver);
  EXPECT_FALSE(piece(0).copying_out);
  EXPECT_EQ(piece(0).host, nullptr);
  EXPECT_EQ(to->refs, 1);
  host_.unref(to);
  in_host(0);
  piece(0).on_device = false;
  gpu_.refusals["cuMemcpyHtoDAsync"] = 1;
  ASSERT_FALSE(transfers_.copy_in(block_, 0));
  EXPECT_FALSE(piece(0).on_device);
  EXPECT_EQ(piece(0).host->refs, 1);
  EXPECT_FALSE(transfers_.copying());
}

TEST_F(TransfersTest, a_copy_in_keeps_its_staging_until_it_is_over) {
  in_host(2);
  piece(2).on_device = false;
  ASSERT_TRUE(transfers_.copy_in(block_, 2));
  EXPECT_TRUE(piece(2).on_device);
  EXPECT_EQ(gpu_.work[0].stream, transfers_.in_stream());
  EXPECT_EQ(piece(2).host->refs, 2);
  EXPECT_EQ(transfers_.bytes_in(), piece_bytes);
  EXPECT_FALSE(uses_.over(block_));
  EXPECT_FALSE(transfers_.next_in());
  finish(transfers_.in_stream());
  ASSERT_TRUE(transfers_.next_in());
  EXPECT_EQ(piece(2).host->refs, 1);
  EXPECT_TRUE(uses_.over(block_));
}

TEST_F(TransfersTest, host_memory_at_device_addresses_is_copied_as_the_driver_takes_it) {
  block_.spans.front().frames.front().host = true;
  std::vector<std::byte> buffer(piece_bytes);
  gpu_.refusals["cuMemcpyHtoDAsync"] = 9;
  EXPECT_EQ(transfers_.copy(block_, piece(0), buffer.data(), true), CUDA_SUCCESS);
  EXPECT_EQ(gpu_.work.back().call, "any");
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(transfers_.copy(block_, piece(0), buffer.data(), true), CUDA_SUCCESS);
  EXPECT_EQ(gpu_.work.back().call, "any");
  EXPECT_EQ(told_.size(), 1u) << "said once";
  gpu_.refusals["cuMemcpyAsync"] = 9;
  // The processor moves the bytes when the stream comes to it, and not before.
  std::vector<std::byte> memory(piece_bytes, std::byte{7});
  block_.address = reinterpret_cast<uint64_t>(memory.data());
  EXPECT_EQ(transfers_.copy(block_, piece(0), buffer.data(), false), CUDA_SUCCESS);
  EXPECT_EQ(gpu_.work.back().call, "processor");
  EXPECT_NE(buffer, memory);
  gpu_.call_functions();
  EXPECT_EQ(buffer, memory);
  EXPECT_EQ(told_.size(), 2u);
}

TEST_F(TransfersTest, a_refusal_of_a_copy_on_the_device_is_no_reason_to_copy_otherwise) {
  gpu_.refusals["cuMemcpyDtoHAsync"] = 1;
  std::vector<std::byte> buffer(piece_bytes);
  EXPECT_NE(transfers_.copy(block_, piece(0), buffer.data(), false), CUDA_SUCCESS);
  EXPECT_TRUE(gpu_.work.empty());
}

TEST_F(TransfersTest, answers_come_in_the_store_s_order_and_give_the_staging_back) {
  for (uint32_t i = 0; i < 3; ++i) {
    in_host(i);
    ASSERT_TRUE(transfers_.write(block_, i, Slot{i + 1}));
    EXPECT_TRUE(piece(i).writing);
    EXPECT_EQ(piece(i).slot, Slot{i + 1});
  }
  EXPECT_EQ(transfers_.writing_bytes(), 3 * piece_bytes);
  EXPECT_FALSE(transfers_.next_answer());
  clock_.now += 77;
  store_.answer(2);
  store_.answer(0, make_error(Code::io, 0, "EIO"));
  auto answer = transfers_.next_answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->ref.piece, 2u);
  EXPECT_EQ(answer->bytes, piece_bytes);
  EXPECT_EQ(answer->begun_ns, 1'000u);
  EXPECT_FALSE(answer->reads);
  EXPECT_EQ(answer->completion.error.code, Code::ok);
  EXPECT_EQ(piece(2).host->refs, 1);
  EXPECT_EQ(piece(1).host->refs, 2);
  answer = transfers_.next_answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->ref.piece, 0u);
  EXPECT_EQ(answer->completion.error.code, Code::io);
  EXPECT_EQ(transfers_.writing_bytes(), piece_bytes);
  store_.answer(0);
  EXPECT_TRUE(transfers_.next_answer());
  EXPECT_FALSE(transfers_.requesting());
}

TEST_F(TransfersTest, more_answers_than_are_asked_for_at_once_all_come) {
  block_.pieces.resize(11, piece(0));
  for (uint32_t i = 0; i < 11; ++i) {
    in_host(i);
    ASSERT_TRUE(transfers_.write(block_, i, Slot{i + 1}));
  }
  for (uint32_t i = 0; i < 11; ++i) store_.answer(0);
  for (uint32_t i = 0; i < 11; ++i) {
    const auto answer = transfers_.next_answer();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->ref.piece, i);
  }
  EXPECT_FALSE(transfers_.next_answer());
}

TEST_F(TransfersTest, a_request_that_does_not_begin_changes_nothing) {
  store_.refuses = true;
  in_host(0);
  EXPECT_FALSE(transfers_.write(block_, 0, Slot{1}));
  EXPECT_FALSE(piece(0).writing);
  EXPECT_FALSE(piece(0).slot);
  EXPECT_EQ(piece(0).request, nullptr);
  EXPECT_EQ(piece(0).host->refs, 1);
  piece(1).slot = Slot{5};
  Staging* to = staging();
  EXPECT_FALSE(transfers_.read(block_, 1, to));
  EXPECT_FALSE(piece(1).reading);
  EXPECT_EQ(piece(1).host, nullptr);
  EXPECT_EQ(to->refs, 1);
  host_.unref(to);
  EXPECT_EQ(transfers_.writing_bytes(), 0u);
  EXPECT_FALSE(transfers_.requesting());
}

TEST_F(TransfersTest, a_read_fills_staging_that_nobody_else_gets_meanwhile) {
  piece(1).slot = Slot{5};
  Staging* to = staging();
  ASSERT_TRUE(transfers_.read(block_, 1, to));
  EXPECT_EQ(store_.requests.front().slot, Slot{5});
  EXPECT_EQ(transfers_.reading_bytes(), piece_bytes);
  // The block is freed while the store reads: the piece gives its reference back.
  transfers_.drop(piece(1));
  give_host(piece(1));
  EXPECT_EQ(to->refs, 1);
  Staging* other = staging();
  EXPECT_NE(other->data, to->data);
  ++block_.generation;
  store_.answer(0);
  const auto answer = transfers_.next_answer();
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->reads);
  EXPECT_FALSE(current(answer->ref));
  EXPECT_EQ(host_.used(), piece_bytes);  // the other's
  host_.unref(other);
}

TEST_F(TransfersTest, a_request_that_has_not_begun_is_taken_back) {
  in_host(0);
  ASSERT_TRUE(transfers_.write(block_, 0, Slot{1}));
  store_.cancels = true;
  transfers_.drop(piece(0));
  EXPECT_FALSE(piece(0).writing);
  EXPECT_FALSE(transfers_.requesting());
  EXPECT_EQ(transfers_.writing_bytes(), 0u);
  EXPECT_EQ(piece(0).host->refs, 1);
  EXPECT_TRUE(store_.requests.empty());
}

TEST_F(TransfersTest, what_is_without_an_answer_is_found_once_a_second) {
  constexpr uint64_t second = 1'000'000'000;
  EXPECT_EQ(transfers_.unanswered(30 * second), nullptr);
  in_host(0);
  ASSERT_TRUE(transfers_.write(block_, 0, Slot{1}));
  clock_.now += 30 * second;
  EXPECT_EQ(transfers_.unanswered(30 * second), nullptr);
  clock_.now += second / 2;
  EXPECT_EQ(transfers_.unanswered(30 * second), nullptr) << "looked half a second ago";
  clock_.now += second / 2;
  const IoRequest* request = transfers_.unanswered(30 * second);
  ASSERT_NE(request, nullptr);
  EXPECT_FALSE(request->reads);
  store_.answer(0);
  EXPECT_TRUE(transfers_.next_answer());
}

TEST_F(TransfersTest, all_copies_are_waited_for_at_the_end) {
  in_host(0);
  ASSERT_TRUE(transfers_.copy_in(block_, 0));
  ASSERT_TRUE(transfers_.copy_out(block_, 1, staging(), false));
  transfers_.wait_for_copies();
  EXPECT_TRUE(transfers_.next_out());
  EXPECT_TRUE(transfers_.next_in());
  EXPECT_FALSE(transfers_.copying());
}

TEST_F(TransfersTest, what_the_links_carried_is_measured_but_for_copies_that_waited) {
  using lifetimes::Channel;
  for (int i = 0; i < 64; ++i) {
    const bool waited = i % 2 == 1;
    ASSERT_TRUE(transfers_.copy_out(block_, 0, staging(), waited));
    clock_.now += waited ? 1'000'000'000 : 1'000'000;
    EXPECT_FALSE(transfers_.next_out());  // an event is recorded
    finish(transfers_.out_stream());
    ASSERT_TRUE(transfers_.next_out());
    give_host(piece(0));
  }
  EXPECT_NEAR(transfers_.bandwidths().bytes_s(Channel::host_out), piece_bytes * 1e3,
              piece_bytes * 1e2);
}

TEST(TransfersStart, a_stream_that_is_refused_leaves_none) {
  FakeGpu gpu;
  FakeStore store;
  HandClock clock;
  DeviceHealth health{gpu.driver(), 0};
  Streams streams{gpu.driver(), health};
  Uses uses{streams};
  HostTier host{gpu.driver(), &store, 64u << 20, nullptr, 0, true};
  for (int nth = 1; nth <= 2; ++nth) {
    Transfers transfers{{gpu.driver(), health, streams, uses, host, {}, &store, 0, clock, {}}};
    gpu.refusals["cuStreamCreate"] = 1;
    gpu.passes["cuStreamCreate"] = nth - 1;
    EXPECT_FALSE(transfers.start(false));
    EXPECT_FALSE(transfers.started());
    EXPECT_EQ(gpu.streams_live, 0u);
  }
}

}  // namespace
