// Files that grow while nobody waits for them.
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/backing/store/store_faults.h"

namespace firn::testing_store {
namespace {

class StoreGrowth : public StoreFaults {
 protected:
  /// fallocate() does not return before let_grow().
  void hold_growth() {
    held_ = true;
    calls_.at_fallocate = [this](int, uint64_t, uint64_t) {
      ++growing_;
      while (held_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return 0;
    };
  }
  void let_grow() { held_ = false; }
  void TearDown() override { let_grow(); }
  void open_own(std::vector<size_t> own) {
    open_.store.reset();
    StoreOptions options = small_options(dirs_[0].path(), GetParam());
    options.dirs.push_back(dirs_[1].path());
    options.own_dirs = std::move(own);
    Result<std::unique_ptr<Store>> store = open_file_store(options, calls_);
    ASSERT_TRUE(store) << describe(store.error());
    open_.store = std::move(*store);
    add_staging(open_, 32u << 20);
  }
  /// Asks again until there is room, or something else than "busy".
  Result<Slot> reserve_soon(size_t bytes) {
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    Result<Slot> slot = store().reserve(bytes, false);
    while (!slot && slot.error().code == Code::busy && std::chrono::steady_clock::now() < late) {
      clock().wait(1'000'000);
      slot = store().reserve(bytes, false);
    }
    return slot;
  }

  std::atomic<bool> held_{false};
  std::atomic<int> growing_{0};
};

TEST_P(StoreGrowth, who_does_not_wait_is_told_so_and_has_room_soon) {
  hold_growth();
  for (int i = 0; i < 3; ++i) {
    Result<Slot> slot = store().reserve(1u << 20, false);
    ASSERT_FALSE(slot);
    EXPECT_EQ(slot.error().code, Code::busy) << describe(slot.error());
  }
  let_grow();
  Result<Slot> slot = reserve_soon(1u << 20);
  ASSERT_TRUE(slot) << describe(slot.error());
  EXPECT_EQ(growing_, 1) << "by one step for all who asked";
}

TEST_P(StoreGrowth, while_its_own_directory_grows_another_ranks_is_not_taken) {
  open_own({0});
  hold_growth();
  Result<Slot> slot = store().reserve(1u << 20, false);
  ASSERT_FALSE(slot);
  EXPECT_EQ(slot.error().code, Code::busy);
  const StoreStats stats = store().stats();
  EXPECT_EQ(stats.dirs[1].file_bytes, 0u);
  let_grow();
  for (int i = 0; i < 24; ++i) {
    slot = reserve_soon(1u << 20);
    ASSERT_TRUE(slot) << describe(slot.error());
    fill(bytes(), 1);
    ASSERT_EQ(write_now(store(), clock(), *slot, bytes()).error.code, Code::ok);
  }
  EXPECT_EQ(store().stats().dirs[0].written_bytes, 24u << 20);
  EXPECT_EQ(store().stats().dirs[1].written_bytes, 0u);
}

TEST_P(StoreGrowth, a_full_directory_of_its_own_is_no_reason_to_wait) {
  open_own({0});
  std::atomic<int> calls{0};
  calls_.at_fallocate = [&calls](int, uint64_t, uint64_t) { return calls++ == 0 ? -ENOSPC : 0; };
  Result<Slot> slot = reserve_soon(1u << 20);
  for (int i = 0; i < 16 && slot; ++i) slot = reserve_soon(1u << 20);
  EXPECT_TRUE(slot) << describe(slot.error());
}

INSTANTIATE_TEST_SUITE_P(Kinds, StoreGrowth,
                         testing::Values(StoreOptions::Kind::io_uring, StoreOptions::Kind::threads),
                         [](const auto& kind) { return kind_name(kind.param); });

}  // namespace
}  // namespace firn::testing_store
