// Several processes on one SSD: each has its share of the requests in flight and of the limit on
// spill files, and its own directories before others.
#include <condition_variable>

#include "firn/neighbours.h"
#include "tests/backing/store/store_testing.h"

namespace firn::testing_store {
namespace {

constexpr size_t piece_bytes = 1 << 20;

/// Holds transfers where they begin, and counts how many are there together.
class Holding : public FileCalls {
 public:
  ssize_t begin(const FileCall& call) override {
    std::unique_lock lock(mutex_);
    most_ = std::max(most_, ++inside_);
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    return FileCalls::begin(call);
  }
  ssize_t end(const FileCall&, ssize_t result) override {
    std::lock_guard lock(mutex_);
    --inside_;
    return result;
  }
  void hold() {
    std::lock_guard lock(mutex_);
    open_ = false;
    most_ = 0;
  }
  bool await_inside(unsigned wanted) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return inside_ >= wanted; });
  }
  unsigned release() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
    return most_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  unsigned inside_ = 0, most_ = 0;
};

class Sharing : public testing::TestWithParam<StoreOptions::Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == StoreOptions::Kind::io_uring && !io_uring_trouble().empty())
      GTEST_SKIP() << io_uring_trouble();
  }
  StoreOptions options() { return small_options(dir.path(), GetParam()); }
  void open(const StoreOptions& with) {
    Result<std::unique_ptr<Store>> store = open_store(with);
    ASSERT_TRUE(store) << describe(store.error());
    it.store = std::move(*store);
    add_staging(it, 16 * piece_bytes);
  }
  Result<Slot> fill_one() {
    Result<Slot> slot = it.store->reserve(piece_bytes);
    if (!slot) return slot;
    StoreCompletion done = write_now(*it.store, *it.clock, *slot, it.piece(0, piece_bytes));
    EXPECT_EQ(done.error.code, Code::ok) << describe(done.error);
    return slot;
  }

  TempDir dir, second;
  OpenStore it;
};

TEST_P(Sharing, OwnDirectoriesFirst) {
  StoreOptions with = options();
  with.dirs = {dir.path(), second.path()};
  with.own_dirs = {1};
  with.max_bytes_per_dir = 4 * piece_bytes;
  open(with);
  std::vector<Slot> slots;
  for (int i = 0; i < 8; ++i) {
    Result<Slot> slot = fill_one();
    ASSERT_TRUE(slot) << describe(slot.error());
    slots.push_back(*slot);
    StoreStats stats = it.store->stats();
    const uint64_t here = stats.dirs[1].written_bytes, there = stats.dirs[0].written_bytes;
    EXPECT_EQ(here, std::min(i + 1, 4) * piece_bytes);
    EXPECT_EQ(there, std::max(i + 1 - 4, 0) * piece_bytes) << "beyond what its own holds";
  }
  EXPECT_FALSE(it.store->reserve(piece_bytes));
  it.store->discard(slots[1]);  // its own again, as soon as there is room
  ASSERT_TRUE(fill_one());
  EXPECT_EQ(it.store->stats().dirs[1].written_bytes, 5 * piece_bytes);
  EXPECT_FALSE(it.store->stats().dirs[0].own);
  EXPECT_TRUE(it.store->stats().dirs[1].own);
}

TEST_P(Sharing, AllAreOwnWhereNoneIsNamed) {
  StoreOptions with = options();
  with.dirs = {dir.path(), second.path()};
  open(with);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(fill_one());
  StoreStats stats = it.store->stats();
  for (const StoreDirStats& each : stats.dirs) {
    EXPECT_TRUE(each.own);
    EXPECT_EQ(each.written_bytes, 2 * piece_bytes);
  }
}

TEST_P(Sharing, TheLimitOnSpillFilesIsForAll) {
  StoreOptions with = options();
  with.max_bytes_per_dir = 8 * piece_bytes;
  with.grow_bytes = piece_bytes;
  open(with);
  int alone = 0;
  {
    Neighbours other = Neighbours::join({dir.path()});
    while (it.store->reserve(piece_bytes)) ++alone;
    EXPECT_EQ(alone, 4);
  }
  while (it.store->reserve(piece_bytes)) ++alone;
  EXPECT_EQ(alone, 8) << "all of it is ours again";
}

// By pread/pwrite threads, whose calls a test can hold.
TEST(SharingDepth, IsDivided) {
  TempDir dir;
  Holding calls;
  StoreOptions with = small_options(dir.path(), StoreOptions::Kind::threads);
  with.depth = 8;
  with.threads = 16;
  with.request_bytes = 64 << 10;
  OpenStore it;
  Result<std::unique_ptr<Store>> store = open_file_store(with, calls);
  ASSERT_TRUE(store) << describe(store.error());
  it.store = std::move(*store);
  add_staging(it, 2 * piece_bytes);
  ASSERT_EQ(Neighbours::join({dir.path()}).count(), 2u) << "the store is a neighbour itself";

  // Writes until the store has looked again, then holds one and counts what goes on with it. (More
  // than these two may use the disk meanwhile.)
  auto in_flight = [&](unsigned sharers) {
    Result<Slot> slot = it.store->reserve(piece_bytes);
    EXPECT_TRUE(slot);
    auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    do {
      EXPECT_EQ(write_now(*it.store, *it.clock, *slot, it.piece(0, piece_bytes)).error.code,
                Code::ok);
    } while (it.store->stats().dirs[0].sharers < sharers &&
             std::chrono::steady_clock::now() < end);
    const unsigned seen = it.store->stats().dirs[0].sharers;
    EXPECT_GE(seen, sharers);
    const unsigned wanted = std::max(8 / seen, 4u);
    calls.hold();
    EXPECT_TRUE(it.store->write(0, *slot, it.piece(0, piece_bytes), 7));
    EXPECT_TRUE(calls.await_inside(wanted));
    const unsigned most = calls.release();
    EXPECT_EQ(await_one(*it.store, *it.clock).error.code, Code::ok);
    EXPECT_EQ(most, wanted) << "with " << seen << " sharers";
    return most;
  };
  Neighbours one = Neighbours::join({dir.path()});
  EXPECT_EQ(in_flight(2), 4u);
  Neighbours two = Neighbours::join({dir.path()}), three = Neighbours::join({dir.path()});
  EXPECT_EQ(in_flight(4), 4u) << "never less than keeps an SSD busy";
}

INSTANTIATE_TEST_SUITE_P(Kinds, Sharing,
                         testing::Values(StoreOptions::Kind::io_uring,
                                         StoreOptions::Kind::threads),
                         [](const auto& kind) { return kind_name(kind.param); });

}  // namespace
}  // namespace firn::testing_store
