// What is particular to the simulated disk: its time, its seed, its faults.
#include "backing/store/simulated_store.h"

#include "tests/backing/store/store_testing.h"

namespace firn::testing_store {
namespace {

struct Disk {
  StepClock clock;
  std::unique_ptr<SimulatedStore> store;
  std::unique_ptr<StagingMemory> staging;

  explicit Disk(SimulatedStoreOptions options) {
    options.clock = &clock;
    store = open_simulated_store(options);
    clock.store = store.get();
    staging = std::make_unique<StagingMemory>(std::move(*StagingMemory::create(16u << 20)));
  }
  std::span<std::byte> piece(size_t number) {
    return staging->bytes().subspan(number << 20, 1u << 20);
  }
  Slot filled(uint64_t seed) {
    Slot slot = *store->reserve(1u << 20);
    fill(piece(0), seed);
    EXPECT_EQ(write_now(*store, clock, slot, piece(0)).error.code, Code::ok);
    return slot;
  }
};

SimulatedStoreOptions round_numbers() {
  SimulatedStoreOptions options;
  options.write_bytes_s = double(1u << 20) * 1000;  // 1 MiB in a millisecond
  options.read_bytes_s = double(1u << 20) * 2000;
  options.latency_ns = 10'000;
  return options;
}

TEST(SimulatedStore, bandwidth_is_shared_and_directions_are_apart) {
  Disk disk(round_numbers());
  Slot a = disk.filled(1), b = disk.filled(2), c = *disk.store->reserve(1u << 20);
  uint64_t begin = disk.clock.now_ns();
  EXPECT_EQ(disk.store->next_completion_ns(), UINT64_MAX);
  ASSERT_TRUE(disk.store->write(0, c, disk.piece(0), 1));
  ASSERT_TRUE(disk.store->read(0, a, disk.piece(1), 2));
  ASSERT_TRUE(disk.store->read(0, b, disk.piece(2), 3));
  EXPECT_EQ(disk.store->next_completion_ns(), begin + 500'000 + 10'000);
  StoreCompletion none[1];
  EXPECT_EQ(disk.store->poll(0, none), 0u) << "time has not gone on";
  uint64_t busy[4] = {};
  for (auto& done : await(*disk.store, disk.clock, 0, 3)) busy[done.tag] = done.busy_ns;
  EXPECT_EQ(busy[2], 510'000u);
  EXPECT_EQ(busy[3], 1'010'000u);  // after the other read
  EXPECT_EQ(busy[1], 1'010'000u);  // beside both
  EXPECT_EQ(disk.clock.now_ns(), begin + 1'010'000);
  EXPECT_TRUE(holds(disk.piece(1), 1));
  EXPECT_TRUE(holds(disk.piece(2), 2));
}

TEST(SimulatedStore, its_speed_is_measured) {
  Disk disk(round_numbers());
  std::vector<Slot> slots;
  for (uint64_t i = 0; i < 31; ++i) slots.push_back(disk.filled(i));
  EXPECT_EQ(disk.store->stats().dirs[0].write_bytes_s, 0) << "too little to say";
  slots.push_back(disk.filled(31));
  for (Slot slot : slots)
    (void)read_now(*disk.store, disk.clock, slot, disk.piece(1));
  const StoreDirStats dir = disk.store->stats().dirs[0];
  EXPECT_NEAR(dir.write_bytes_s, round_numbers().write_bytes_s, 1);
  EXPECT_NEAR(dir.read_bytes_s, round_numbers().read_bytes_s, 1);
}

TEST(SimulatedStore, memory_is_not_filled_before_its_time) {
  Disk disk(round_numbers());
  Slot slot = disk.filled(1);
  fill(disk.piece(1), 1);
  ASSERT_TRUE(disk.store->read(0, slot, disk.piece(1), 1));
  EXPECT_FALSE(holds(disk.piece(1), 1)) << "who looks too early is to notice";
  (void)await_one(*disk.store, disk.clock);
  EXPECT_TRUE(holds(disk.piece(1), 1));
}

TEST(SimulatedStore, without_bytes_only_time_passes) {
  SimulatedStoreOptions options = round_numbers();
  options.keep_bytes = false;
  Disk disk(options);
  *disk.staging = std::move(*StagingMemory::create(16u << 20, true));  // to touch it is to die
  EXPECT_STREQ(disk.staging->pages(), "none");
  Slot slot = *disk.store->reserve(1u << 20);
  EXPECT_FALSE(disk.store->read(0, slot, disk.piece(0), 1)) << "nothing was written";
  EXPECT_EQ(write_now(*disk.store, disk.clock, slot, disk.piece(0)).busy_ns, 1'010'000u);
  ASSERT_TRUE(disk.store->read(0, slot, disk.piece(1), 2));
  StoreCompletion done = await_one(*disk.store, disk.clock);
  EXPECT_EQ(done.error.code, Code::ok);
  EXPECT_EQ(done.busy_ns, 510'000u);
  EXPECT_EQ(disk.store->stats().read_bytes, 1u << 20);
}

TEST(SimulatedStore, what_nobody_polls_does_not_stop_time) {
  Disk disk(round_numbers());
  Slot a = disk.filled(1), b = disk.filled(2);
  ASSERT_TRUE(disk.store->read(1, a, disk.piece(1), 1));  // another engine's, which sleeps
  ASSERT_TRUE(disk.store->read(0, b, disk.piece(2), 2));
  EXPECT_EQ(await_one(*disk.store, disk.clock, 0).tag, 2u);
  EXPECT_EQ(await_one(*disk.store, disk.clock, 1).tag, 1u);
  EXPECT_EQ(disk.store->next_completion_ns(), UINT64_MAX);
}

TEST(SimulatedStoreDeath, changing_bytes_in_flight_aborts) {
  EXPECT_DEATH(
      {
        Disk disk(round_numbers());
        Slot slot = *disk.store->reserve(1u << 20);
        (void)disk.store->write(0, slot, disk.piece(0), 1);
        disk.piece(0)[77] ^= std::byte{1};
        (void)await_one(*disk.store, disk.clock);
      },
      "changed while they were being written");
}

/// Every completion of a fixed piece of work, in words.
std::string story(uint64_t seed) {
  SimulatedStoreOptions options = round_numbers();
  options.seed = seed;
  options.write_error_rate = options.read_error_rate = 0.1;
  options.corrupt_rate = 0.2;
  options.lasting_corrupt_rate = 0.1;
  Disk disk(options);
  std::string words;
  for (uint64_t i = 0; i < 100; ++i) {
    Slot slot = *disk.store->reserve(1u << 20);
    fill(disk.piece(0), i);
    StoreCompletion wrote = write_now(*disk.store, disk.clock, slot, disk.piece(0));
    words += std::to_string(disk.clock.now_ns()) + code_name(wrote.error.code);
    if (wrote.error.code != Code::ok) continue;
    StoreCompletion read = read_now(*disk.store, disk.clock, slot, disk.piece(1));
    words += std::to_string(read.busy_ns) + code_name(read.error.code) + "\n";
    if (read.error.code == Code::ok) {
      EXPECT_TRUE(holds(disk.piece(1), i));
    } else {
      EXPECT_FALSE(holds(disk.piece(1), i)) << "wrong bytes, or right ones called wrong";
    }
    disk.store->discard(slot);
  }
  StoreStats stats = disk.store->stats();
  return words + std::to_string(stats.reread) + "/" + std::to_string(stats.corrupt);
}

TEST(SimulatedStore, a_seed_tells_one_story) {
  EXPECT_EQ(story(1), story(1));
  EXPECT_NE(story(1), story(2));
}

TEST(SimulatedStore, faults_come_at_their_rates) {
  SimulatedStoreOptions options = round_numbers();
  options.corrupt_rate = 0.25;
  Disk disk(options);
  Slot slot = disk.filled(1);
  for (int i = 0; i < 400; ++i)
    ASSERT_EQ(read_now(*disk.store, disk.clock, slot, disk.piece(1)).error.code, Code::ok);
  EXPECT_NEAR(static_cast<double>(disk.store->stats().reread), 100, 40);
  EXPECT_EQ(disk.store->stats().corrupt, 0u);

  options.corrupt_rate = 0;
  options.lasting_corrupt_rate = 1;
  Disk bad(options);
  Slot lost = bad.filled(1);
  for (int i = 0; i < 3; ++i) {
    StoreCompletion read = read_now(*bad.store, bad.clock, lost, bad.piece(1));
    ASSERT_EQ(read.error.code, Code::corrupt);
    EXPECT_EQ(read.busy_ns, 3 * 500'000u + 10'000u) << "read three times";
  }
  EXPECT_EQ(bad.store->stats().corrupt, 3u);
}

/// What was reported written and is not on the disk is never handed over.
void expect_damaged(double SimulatedStoreOptions::* rate, uint64_t SimulatedFaults::* count) {
  SimulatedStoreOptions options = round_numbers();
  options.*rate = 1;
  Disk disk(options);
  const Slot other = *disk.store->reserve(1u << 20);
  fill(disk.piece(0), 9);
  EXPECT_EQ(write_now(*disk.store, disk.clock, other, disk.piece(0)).error.code, Code::ok);
  const Slot slot = disk.filled(1);
  EXPECT_GT(disk.store->faults().*count, 0u);
  EXPECT_TRUE(disk.store->damaged(slot));
  EXPECT_EQ(read_now(*disk.store, disk.clock, slot, disk.piece(1)).error.code, Code::corrupt);
  EXPECT_FALSE(holds(disk.piece(1), 1));
  disk.store->end_faults();
  const Slot well = disk.filled(2);
  EXPECT_FALSE(disk.store->damaged(well));
  EXPECT_EQ(read_now(*disk.store, disk.clock, well, disk.piece(1)).error.code, Code::ok);
  EXPECT_EQ(read_now(*disk.store, disk.clock, slot, disk.piece(1)).error.code, Code::corrupt);
}

TEST(SimulatedStore, lost_torn_and_misdirected_writes_are_corrupt) {
  expect_damaged(&SimulatedStoreOptions::lost_write_rate, &SimulatedFaults::lost_writes);
  expect_damaged(&SimulatedStoreOptions::torn_rate, &SimulatedFaults::torn);
  expect_damaged(&SimulatedStoreOptions::misdirected_write_rate,
                 &SimulatedFaults::misdirected_writes);
}

TEST(SimulatedStore, a_misdirected_write_damages_who_it_meets) {
  SimulatedStoreOptions options = round_numbers();
  options.misdirected_write_rate = 1;
  Disk disk(options);
  const Slot first = disk.filled(1);  // there is no other to meet
  EXPECT_FALSE(disk.store->damaged(first));
  (void)disk.filled(2);
  EXPECT_TRUE(disk.store->damaged(first));
  EXPECT_EQ(read_now(*disk.store, disk.clock, first, disk.piece(1)).error.code, Code::corrupt);
}

TEST(SimulatedStore, reads_that_find_something_else_once_are_healed) {
  for (auto rate : {&SimulatedStoreOptions::misdirected_read_rate,
                    &SimulatedStoreOptions::stale_read_rate}) {
    SimulatedStoreOptions options = round_numbers();
    options.*rate = 1;
    Disk disk(options);
    (void)disk.filled(1);
    const Slot slot = disk.filled(2);
    EXPECT_EQ(read_now(*disk.store, disk.clock, slot, disk.piece(1)).error.code, Code::ok);
    EXPECT_TRUE(holds(disk.piece(1), 2));
    EXPECT_EQ(disk.store->stats().reread, 1u);
  }
}

TEST(SimulatedStore, errors_and_lack_of_room_last_as_long_as_was_said) {
  SimulatedStoreOptions options = round_numbers();
  options.reads_fail_from_ns = options.full_from_ns = 10'000'000;
  options.reads_fail_until_ns = options.full_until_ns = 20'000'000;
  Disk disk(options);
  const Slot slot = disk.filled(1);
  EXPECT_EQ(read_now(*disk.store, disk.clock, slot, disk.piece(1)).error.code, Code::ok);
  disk.clock.wait(10'000'000);
  EXPECT_EQ(read_now(*disk.store, disk.clock, slot, disk.piece(1)).error.code, Code::io);
  const Result<Slot> refused = disk.store->reserve(1u << 20);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::no_space);
  while (disk.clock.now_ns() < 20'000'000) disk.clock.wait(20'000'000 - disk.clock.now_ns());
  EXPECT_EQ(read_now(*disk.store, disk.clock, slot, disk.piece(1)).error.code, Code::ok);
  EXPECT_TRUE(disk.store->reserve(1u << 20));
}

TEST(SimulatedStore, late_completions_overtake_each_other) {
  SimulatedStoreOptions options = round_numbers();
  options.late_rate = 0.5;
  options.late_ns_most = 10'000'000;
  Disk disk(options);
  const Slot slot = disk.filled(1);
  for (uint64_t tag = 1; tag <= 8; ++tag)
    ASSERT_TRUE(disk.store->read(0, slot, disk.piece(tag), tag));
  EXPECT_EQ(disk.store->in_flight(0), 8u);
  uint64_t before = 0, overtaken = 0;
  for (auto& done : await(*disk.store, disk.clock, 0, 8)) {
    overtaken += done.tag < before;
    before = done.tag;
  }
  EXPECT_GT(overtaken, 0u);
  EXPECT_EQ(disk.store->in_flight(0), 0u);
}

TEST(SimulatedStore, a_failed_write_holds_nothing) {
  SimulatedStoreOptions options = round_numbers();
  options.write_error_rate = 1;
  Disk disk(options);
  Slot slot = *disk.store->reserve(1u << 20);
  EXPECT_EQ(write_now(*disk.store, disk.clock, slot, disk.piece(0)).error.code, Code::io);
  EXPECT_FALSE(disk.store->read(0, slot, disk.piece(0), 1));
  EXPECT_TRUE(disk.store->reserve(4096)) << "transient: a later try may pass";
}

}  // namespace
}  // namespace firn::testing_store
