// What becomes of a directory whose disk answers errors or wrong bytes.
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "firn/said.h"
#include "tests/backing/store/store_faults.h"

namespace firn::testing_store {
namespace {

class StoreHealth : public StoreFaults {};

TEST_P(StoreHealth, room_that_gave_back_wrong_bytes_is_not_used_again) {
  Slot wrong = filled(1), healed = filled(2), well = filled(3);
  flip_reads(calls_, 3);
  EXPECT_EQ(read_now(store(), clock(), wrong, back()).error.code, Code::corrupt);
  flip_reads(calls_, 1);
  EXPECT_EQ(read_now(store(), clock(), healed, back()).error.code, Code::ok);
  calls_.at_end = nullptr;
  EXPECT_EQ(store().stats().quarantined_bytes, 0u) << "in use still";
  for (Slot slot : {wrong, healed, well}) store().discard(slot);
  const StoreStats stats = store().stats();
  EXPECT_EQ(stats.quarantined_bytes, 2u << 20);
  EXPECT_EQ(stats.dirs[0].quarantined_bytes, 2u << 20);
  std::map<uint64_t, int> written;
  calls_.at_begin = [&written](const FileCall& call) {
    if (call.write) ++written[call.offset >> 20];
    return static_cast<ssize_t>(call.bytes);
  };
  for (uint64_t seed = 0; seed < 8; ++seed) (void)filled(seed);
  calls_.at_begin = nullptr;
  EXPECT_FALSE(written.contains(0) || written.contains(1)) << "where these two lay";
  EXPECT_TRUE(written.contains(2));
}

TEST_P(StoreHealth, wrong_bytes_twice_take_a_directory_out_of_use) {
  open(2);
  std::vector<Slot> slots;
  for (uint64_t seed = 0; seed < 8; ++seed) slots.push_back(filled(seed));
  ::testing::internal::CaptureStderr();
  flip_reads(calls_, 1'000);
  unsigned corrupt = 0;
  for (size_t i = 0; i < slots.size() && corrupt < 3; ++i)  // every second one lies in the first
    if (i % 2 == 0)
      corrupt += read_now(store(), clock(), slots[i], back()).error.code == Code::corrupt;
  calls_.at_end = nullptr;
  Said::of_process().write();  // (I/O threads leave it to others)
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(corrupt, 3u);
  const StoreStats stats = store().stats();
  const size_t out = stats.dirs[0].writable ? 1 : 0;
  EXPECT_FALSE(stats.dirs[out].writable);
  EXPECT_TRUE(stats.dirs[1 - out].writable);
  EXPECT_NE(stats.dirs[out].trouble.find("for good"), std::string::npos) << stats.dirs[out].trouble;
  EXPECT_EQ(said, "firn: " + stats.dirs[out].trouble + "\n") << "once";
  for (size_t i = 0; i < slots.size(); ++i) {  // what is there is read
    EXPECT_EQ(read_now(store(), clock(), slots[i], back()).error.code, Code::ok);
    EXPECT_TRUE(holds(back(), i));
  }
  const uint64_t before = stats.dirs[out].written_bytes;
  for (uint64_t seed = 0; seed < 8; ++seed) (void)filled(seed);
  EXPECT_EQ(store().stats().dirs[out].written_bytes, before);
}

TEST_P(StoreHealth, after_an_error_a_directory_pauses) {
  Slot slot = filled(1);
  calls_.at_begin = [](const FileCall&) -> ssize_t { return -EIO; };
  EXPECT_EQ(read_now(store(), clock(), slot, back()).error.code, Code::io);
  calls_.at_begin = nullptr;
  Result<Slot> refused = store().reserve(4096);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::io) << "it is not full";
  EXPECT_NE(refused.error().text.find("Input/output error"), std::string::npos);
  EXPECT_FALSE(store().stats().dirs[0].writable);
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!store().reserve(4096) && std::chrono::steady_clock::now() < late)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(store().stats().dirs[0].writable) << "the disk is well again";
  (void)filled(2);
}

/// File systems without preallocation tell of a full disk only as it is written to.
TEST_P(StoreHealth, after_a_write_that_found_no_space_a_directory_pauses) {
  Slot slot = *store().reserve(bytes().size());
  calls_.at_begin = [](const FileCall&) -> ssize_t { return -ENOSPC; };
  EXPECT_EQ(write_now(store(), clock(), slot, bytes()).error.code, Code::no_space);
  calls_.at_begin = nullptr;
  const Result<Slot> refused = store().reserve(4096);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::no_space) << "nobody waits for it";
  EXPECT_FALSE(store().stats().dirs[0].writable);
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!store().reserve(4096) && std::chrono::steady_clock::now() < late)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(store().stats().dirs[0].writable) << "somebody made room";
  (void)filled(2);
}

TEST_P(StoreHealth, who_must_not_wait_does_not_wait_for_a_file_that_grows) {
  open(2);
  std::mutex held;
  std::atomic<int> tries{0};
  calls_.at_fallocate = [&](int, uint64_t, uint64_t) {
    ++tries;
    std::lock_guard wait(held);
    return 0;
  };
  std::unique_lock hold(held);
  for (int i = 0; i < 10; ++i) {
    const Result<Slot> slot = store().reserve(1u << 20, false);
    ASSERT_FALSE(slot);
    EXPECT_EQ(slot.error().code, Code::busy) << describe(slot.error());
  }
  hold.unlock();
  Result<Slot> slot = store().reserve(1u << 20, false);
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!slot && std::chrono::steady_clock::now() < late) {
    EXPECT_EQ(slot.error().code, Code::busy);
    clock().wait(1'000'000'000);
    slot = store().reserve(1u << 20, false);
  }
  ASSERT_TRUE(slot) << describe(slot.error());
  EXPECT_LE(tries, 3);  // once for each directory, or again where that was just over
  calls_.at_fallocate = nullptr;
}

TEST_P(StoreHealth, a_file_that_cannot_grow_is_no_space_not_busy_for_ever) {
  calls_.at_fallocate = [](int, uint64_t, uint64_t) { return -ENOSPC; };
  Result<Slot> slot = store().reserve(1u << 20, false);
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (slot.error().code == Code::busy && std::chrono::steady_clock::now() < late) {
    clock().wait(1'000'000);
    slot = store().reserve(1u << 20, false);
    ASSERT_FALSE(slot);
  }
  EXPECT_EQ(slot.error().code, Code::no_space) << describe(slot.error());
  calls_.at_fallocate = nullptr;
  open(1);  // which a limit of 0 would refuse
  calls_.file_limit = 0;
  do {
    clock().wait(1'000'000);
    slot = store().reserve(1u << 20, false);
    ASSERT_FALSE(slot);
  } while (slot.error().code == Code::busy && std::chrono::steady_clock::now() < late);
  EXPECT_EQ(slot.error().code, Code::no_space) << describe(slot.error());
  calls_.file_limit = UINT64_MAX;
}

INSTANTIATE_TEST_SUITE_P(Kinds, StoreHealth,
                         testing::Values(StoreOptions::Kind::io_uring, StoreOptions::Kind::threads),
                         [](const auto& kind) { return kind_name(kind.param); });

}  // namespace
}  // namespace firn::testing_store
