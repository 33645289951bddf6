// Five thousand wrong bytes on each kind of store: whatever a disk gives back in their place, and by
// whichever path, what is handed over is right, or the slot is said to be corrupt; the others go on.
#include <fcntl.h>

#include <array>
#include <map>

#include "firn/said.h"
#include "tests/backing/store/store_faults.h"

namespace firn::testing_store {
namespace {

enum class Instead { bits, zeroes, another_slot, old_version, half };
enum class Where { first_read, both_direct_reads, every_read, disk };
constexpr std::array insteads{Instead::bits, Instead::zeroes, Instead::another_slot,
                              Instead::old_version, Instead::half};
constexpr std::array wheres{Where::first_read, Where::both_direct_reads, Where::every_read,
                            Where::disk};
constexpr std::array<const char*, 5> instead_words{"flipped bits", "zeroes", "another slot's bytes",
                                                   "an old version", "half of an old version"};
constexpr std::array<const char*, 4> where_words{"the first read", "both direct reads",
                                                 "every read", "the disk"};
constexpr size_t slot_bytes = 16u << 10, batch_slots = 250, batches = 25;

struct Case {
  Instead instead;
  Where where;
  uint64_t seed;
  Slot slot;
  bool heals() const { return where == Where::first_read || where == Where::both_direct_reads; }
  std::string words() const {
    return "seed " + std::to_string(seed) + ": " + instead_words[static_cast<size_t>(instead)] +
           " from " + where_words[static_cast<size_t>(where)];
  }
};

/// Some slots among the others are well: of no one kind, for 7 and 20 have no common divisor.
bool is_well(size_t slot) { return slot % 7 == 6; }

uint64_t old_seed(uint64_t seed) { return seed + 1'000'000; }

/// The bytes that come in place of the slot's.
void spoil(std::span<std::byte> bytes, const Case& of) {
  std::mt19937_64 random(of.seed);
  const std::span<std::byte> second = bytes.subspan(bytes.size() / 2);
  switch (of.instead) {
    case Instead::bits:
      for (uint64_t flips = 1 + random() % 3; flips > 0; --flips)
        bytes[random() % bytes.size()] ^= static_cast<std::byte>(1u << random() % 8);
      break;
    case Instead::zeroes: std::fill(bytes.begin(), bytes.end(), std::byte{0}); break;
    case Instead::another_slot: fill(bytes, of.seed == 1 ? 2 : of.seed - 1); break;
    case Instead::old_version: fill(bytes, old_seed(of.seed)); break;
    case Instead::half: {
      std::vector<std::byte> old(bytes.size());
      fill(old, old_seed(of.seed));
      std::copy(old.begin() + static_cast<ptrdiff_t>(old.size() / 2), old.end(), second.begin());
      break;
    }
  }
}

class StoreCorruption : public StoreFaults {
 protected:
  void write(Slot slot, uint64_t seed) {
    const std::span<std::byte> bytes = open_.piece(0, slot_bytes);
    fill(bytes, seed);
    const StoreCompletion done = write_now(store(), clock(), slot, bytes);
    ASSERT_EQ(done.error.code, Code::ok) << describe(done.error);
  }

  /// Spoils every slot's reads, or what the disk holds, when they come.
  void begin_spoiling(std::map<uint64_t, Case>& by_offset) {
    calls_.at_begin = [&](const FileCall& call) -> ssize_t {
      const auto found = by_offset.find(call.offset);
      if (!call.write && found != by_offset.end() && found->second.where == Where::disk) {
        const std::span<std::byte> bytes = open_.piece(slot_bytes, slot_bytes);
        fill(bytes, found->second.seed);
        spoil(bytes, found->second);
        const ssize_t written = ::pwrite(call.fd, bytes.data(), bytes.size(),
                                         static_cast<off_t>(call.offset));
        EXPECT_EQ(written, static_cast<ssize_t>(slot_bytes)) << std::strerror(errno);
      }
      return static_cast<ssize_t>(call.bytes);
    };
    auto reads = std::make_shared<std::map<uint64_t, int>>();
    calls_.at_end = [&by_offset, reads](const FileCall& call, ssize_t result) {
      const auto found = by_offset.find(call.offset);
      if (call.write || found == by_offset.end()) return result;
      const int before = (*reads)[call.offset]++;
      const Where where = found->second.where;
      if (where == Where::every_read || (where == Where::first_read && before < 1) ||
          (where == Where::both_direct_reads && before < 2))
        spoil({call.data, static_cast<size_t>(result)}, found->second);
      return result;
    };
  }
};

TEST_P(StoreCorruption, is_always_found) {
  uint64_t healed = 0, lost = 0, seed = 0, spoiled_slots = 0;
  for (size_t batch = 0; batch < batches; ++batch) {
    open(1);
    std::vector<Case> cases;
    std::map<uint64_t, Case> by_offset;
    uint64_t last_offset = 0;
    calls_.at_begin = [&](const FileCall& call) {
      last_offset = call.offset;
      return static_cast<ssize_t>(call.bytes);
    };
    for (size_t i = 0; i < batch_slots; ++i) {
      Result<Slot> slot = store().reserve(slot_bytes);
      ASSERT_TRUE(slot) << describe(slot.error());
      ++seed;
      cases.push_back({insteads[seed % insteads.size()],
                       wheres[seed / insteads.size() % wheres.size()], seed, *slot});
      write(*slot, old_seed(seed));
      write(*slot, seed);
      if (is_well(i)) continue;
      ++spoiled_slots;
      ASSERT_TRUE(by_offset.emplace(last_offset, cases.back()).second);
    }
    ::testing::internal::CaptureStderr();
    begin_spoiling(by_offset);
    unsigned spoiled = 0, corrupt = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
      const Case& each = cases[i];
      const bool well = is_well(i);
      const std::span<std::byte> to = open_.piece(2 * slot_bytes, slot_bytes);
      std::fill(to.begin(), to.end(), std::byte{0x5a});
      const StoreCompletion read = read_now(store(), clock(), each.slot, to);
      if (well || each.heals()) {
        ASSERT_EQ(read.error.code, Code::ok) << each.words() << ": " << describe(read.error);
        ASSERT_TRUE(holds(to, each.seed)) << each.words();
        spoiled += !well;
        continue;
      }
      ASSERT_EQ(read.error.code, Code::corrupt) << each.words() << ": " << describe(read.error);
      ASSERT_NE(read.error.text.find("slot " + std::to_string(each.slot.id)), std::string::npos)
          << read.error.text;
      ++corrupt;
    }
    const StoreStats stats = store().stats();
    EXPECT_EQ(stats.reread, spoiled);
    EXPECT_EQ(stats.corrupt, corrupt);
    EXPECT_FALSE(stats.dirs[0].writable) << "nothing more is trusted to it";
    Said::of_process().write();  // (I/O threads leave it to others)
    EXPECT_NE(::testing::internal::GetCapturedStderr().find(
                  "Firn stops writing to this directory for good"), std::string::npos);
    calls_.at_begin = nullptr;
    calls_.at_end = nullptr;
    for (const Case& each : cases) store().discard(each.slot);
    EXPECT_EQ(store().stats().quarantined_bytes, (spoiled + corrupt) * slot_bytes);
    healed += spoiled;
    lost += corrupt;
  }
  EXPECT_EQ(healed + lost, spoiled_slots);
  EXPECT_GE(spoiled_slots, 5'000u);
  std::printf("%llu corruptions: %llu healed, %llu corrupt, 0 handed over\n",
              static_cast<unsigned long long>(healed + lost),
              static_cast<unsigned long long>(healed), static_cast<unsigned long long>(lost));
}

INSTANTIATE_TEST_SUITE_P(Kinds, StoreCorruption,
                         testing::Values(StoreOptions::Kind::io_uring, StoreOptions::Kind::threads),
                         [](const auto& kind) { return kind_name(kind.param); });

}  // namespace
}  // namespace firn::testing_store
