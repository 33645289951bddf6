// A real store on system calls that fail on command, by ring and by threads.
#pragma once

#include <memory>

#include "tests/backing/store/store_testing.h"

namespace firn::testing_store {

class StoreFaults : public testing::TestWithParam<StoreOptions::Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == StoreOptions::Kind::io_uring && !io_uring_trouble().empty())
      GTEST_SKIP() << io_uring_trouble();
    open(1);
  }
  void open(size_t dirs) {
    open_.store.reset();
    StoreOptions options = small_options(dirs_[0].path(), GetParam());
    for (size_t i = 1; i < dirs; ++i) options.dirs.push_back(dirs_[i].path());
    Result<std::unique_ptr<Store>> store = open_file_store(options, calls_);
    ASSERT_TRUE(store) << describe(store.error());
    open_.store = std::move(*store);
    add_staging(open_, 32u << 20);
  }
  Store& store() { return *open_.store; }
  Clock& clock() { return *open_.clock; }
  /// A slot of 1 MiB that holds fill(seed).
  Slot filled(uint64_t seed) {
    Result<Slot> slot = store().reserve(bytes().size());
    EXPECT_TRUE(slot) << describe(slot.error());
    fill(bytes(), seed);
    StoreCompletion done = write_now(store(), clock(), *slot, bytes());
    EXPECT_EQ(done.error.code, Code::ok) << describe(done.error);
    return *slot;
  }
  std::span<std::byte> bytes() { return open_.piece(0, 1u << 20); }
  std::span<std::byte> back() { return open_.piece(4u << 20, 1u << 20); }

  TempDir dirs_[2];
  FaultyCalls calls_;  // outlives the store
  OpenStore open_;
};

/// Flips a bit of the slot's first `times` reads.
inline void flip_reads(FaultyCalls& calls, int times) {
  auto left = std::make_shared<std::atomic<int>>(times);
  calls.at_end = [left](const FileCall& call, ssize_t result) {
    if (!call.write && result > 0 && call.offset % (1u << 20) == 0 && (*left)-- > 0)
      call.data[result / 2] ^= std::byte{16};
    return result;
  };
}

}  // namespace firn::testing_store
