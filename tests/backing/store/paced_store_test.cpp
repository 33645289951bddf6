// The modelled SSD in front of a store: to the nanosecond over the simulated disk, by a clock that
// is set by hand; and over real files.
#include "backing/store/paced_store.h"

#include "tests/backing/store/store_testing.h"
#include "tests/hand_clock.h"

namespace firn::testing_store {
namespace {

constexpr double mib_in_ms = double(1u << 20) * 1000;

struct Paced {
  test::HandClock clock;
  std::unique_ptr<Store> store;
  StagingMemory staging = std::move(*StagingMemory::create(16u << 20));

  explicit Paced(double lower_bytes_s = 1e15) {
    SimulatedStoreOptions options;
    options.clock = &clock;
    options.read_bytes_s = options.write_bytes_s = lower_bytes_s;
    options.latency_ns = 0;
    const StorePace pace{.read_bytes_s = 2 * mib_in_ms, .write_bytes_s = mib_in_ms,
                         .latency_ns = 10'000};
    store = std::make_unique<PacedStore>(open_simulated_store(options), pace, clock);
  }
  std::span<std::byte> piece(size_t number) {
    return staging.bytes().subspan(number << 20, 1u << 20);
  }
  /// The tags of what has come by `ns`, as one number; 0: none.
  uint64_t come(uint64_t ns) {
    clock.now = ns;
    StoreCompletion done[8];
    uint64_t tags = 0;
    for (size_t count = store->poll(0, done), i = 0; i < count; ++i) {
      EXPECT_EQ(done[i].error.code, Code::ok);
      tags = tags * 10 + done[i].tag;
      busy[done[i].tag] = done[i].busy_ns;
    }
    return tags;
  }
  Slot filled(uint64_t seed) {
    Slot slot = *store->reserve(1u << 20);
    fill(piece(0), seed);
    EXPECT_TRUE(store->write(0, slot, piece(0), 1));
    EXPECT_EQ(come(clock.now + 2'000'000), 1u);
    return slot;
  }
  uint64_t busy[10] = {};
};

TEST(PacedStore, one_request_at_a_time_in_each_direction) {
  Paced paced;
  const Slot a = paced.filled(1), b = paced.filled(2), c = *paced.store->reserve(1u << 20);
  const uint64_t begin = paced.clock.now;
  ASSERT_TRUE(paced.store->write(0, c, paced.piece(3), 3));
  ASSERT_TRUE(paced.store->read(0, a, paced.piece(1), 1));
  ASSERT_TRUE(paced.store->read(0, b, paced.piece(2), 2));
  EXPECT_EQ(paced.come(begin + 509'999), 0u) << "the lower store is done, the modelled SSD is not";
  EXPECT_EQ(paced.come(begin + 510'000), 1u);
  EXPECT_EQ(paced.come(begin + 1'009'999), 0u);
  EXPECT_EQ(paced.come(begin + 1'010'000), 32u);  // the write beside both reads
  EXPECT_EQ(paced.busy[1], 510'000u);
  EXPECT_EQ(paced.busy[2], 1'010'000u);
  EXPECT_EQ(paced.busy[3], 1'010'000u);
  EXPECT_TRUE(holds(paced.piece(1), 1));
  EXPECT_TRUE(holds(paced.piece(2), 2));
}

TEST(PacedStore, an_idle_ssd_saves_no_time_up) {
  Paced paced;
  const Slot slot = paced.filled(1);
  const uint64_t begin = paced.clock.now += 1'000'000'000;
  ASSERT_TRUE(paced.store->read(0, slot, paced.piece(1), 1));
  EXPECT_EQ(paced.come(begin + 509'999), 0u);
  EXPECT_EQ(paced.come(begin + 510'000), 1u);
}

TEST(PacedStore, a_slower_store_below_counts) {
  Paced paced(mib_in_ms / 4);
  const Slot slot = *paced.store->reserve(1u << 20);
  const uint64_t begin = paced.clock.now;
  ASSERT_TRUE(paced.store->write(0, slot, paced.piece(0), 1));
  EXPECT_EQ(paced.come(begin + 3'999'999), 0u);
  EXPECT_EQ(paced.come(begin + 4'000'000), 1u);
  EXPECT_EQ(paced.busy[1], 4'000'000u);
}

TEST(PacedStore, what_is_withdrawn_does_not_come) {
  Paced paced(mib_in_ms / 4);
  const Slot a = *paced.store->reserve(1u << 20), b = *paced.store->reserve(1u << 20);
  ASSERT_TRUE(paced.store->write(0, a, paced.piece(0), 1));
  ASSERT_TRUE(paced.store->write(0, b, paced.piece(1), 2));
  EXPECT_TRUE(paced.store->cancel(0, 2));
  EXPECT_FALSE(paced.store->cancel(0, 2));
  EXPECT_FALSE(paced.store->cancel(0, 1)) << "it has begun";
  EXPECT_EQ(paced.come(paced.clock.now + 1'000'000'000), 1u);
  EXPECT_EQ(paced.store->stats().written_bytes, 1u << 20);
}

TEST(PacedStore, queues_are_apart) {
  Paced paced;
  const Slot slot = *paced.store->reserve(1u << 20);
  ASSERT_TRUE(paced.store->write(5, slot, paced.piece(0), 1));
  EXPECT_EQ(paced.come(paced.clock.now + 1'000'000'000), 0u);
  StoreCompletion done[1];
  EXPECT_EQ(paced.store->poll(5, done), 1u);
}

TEST(PacedStore, real_files_take_the_modelled_time) {
  TempDir dir;
  StoreOptions options = small_options(dir.path(), StoreOptions::Kind::automatic);
  options.pace = {.read_bytes_s = double(64u << 20), .write_bytes_s = double(32u << 20)};
  OpenStore open;
  Result<std::unique_ptr<Store>> store = open_store(options);
  ASSERT_TRUE(store) << describe(store.error());
  open.store = std::move(*store);
  add_staging(open, 16u << 20);
  const Slot slot = *open.store->reserve(4u << 20);
  fill(open.piece(0, 4u << 20), 1);
  const StoreCompletion wrote =
      write_now(*open.store, *open.clock, slot, open.piece(0, 4u << 20));
  ASSERT_EQ(wrote.error.code, Code::ok) << describe(wrote.error);
  EXPECT_GE(wrote.busy_ns, 125'000'000u);
  const StoreCompletion read =
      read_now(*open.store, *open.clock, slot, open.piece(4u << 20, 4u << 20));
  ASSERT_EQ(read.error.code, Code::ok) << describe(read.error);
  EXPECT_GE(read.busy_ns, 62'500'000u);
  EXPECT_TRUE(holds(open.piece(4u << 20, 4u << 20), 1));
  EXPECT_NE(open.store->stats().why.find("modelled SSD: reads 64 MiB/s, writes 32 MiB/s"),
            std::string::npos)
      << open.store->stats().why;
}

}  // namespace
}  // namespace firn::testing_store
