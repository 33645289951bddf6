// Slots that are made and given back while operator new fails: no room of a file is lost.
#include <new>
#include <vector>

#include "tests/backing/store/every_store.h"
#include "tests/scarce_memory.h"

namespace firn::testing_store {
namespace {

constexpr size_t slot_bytes = 1u << 20, slots = 8;

class StoreMemory : public EveryStore {
 protected:
  void SetUp() override {
    EveryStore::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    open(1, slots * slot_bytes);
  }

  /// Tries with no memory, then with ever more, until there is a slot; how often there was none.
  size_t reserve_scarcely(Slot& slot) {
    for (long given = 0;; ++given) {
      test::memory_left = given;
      bool refused = false;
      try {
        Result<Slot> made = store().reserve(slot_bytes);
        refused = !made;
        if (made) slot = *made;
      } catch (const std::bad_alloc&) {
        refused = true;
      }
      test::memory_left = -1;
      if (!refused) return static_cast<size_t>(given);
      if (given > 1000) {
        ADD_FAILURE() << "no slot with memory for 1000 things";
        return 0;
      }
    }
  }
};

TEST_P(StoreMemory, no_room_is_lost_where_it_lacks) {
  for (int round = 0; round < 5; ++round) {
    std::vector<Slot> made(slots);
    size_t refusals = 0;
    for (Slot& slot : made) refusals += reserve_scarcely(slot);
    EXPECT_GT(refusals, 0u);
    EXPECT_FALSE(store().reserve(slot_bytes)) << "there is more room than was asked for";
    EXPECT_EQ(store().stats().slots_in_use, slots);
    for (size_t i = 0; i < slots; ++i) {
      test::memory_left = static_cast<long>(i % 3);
      store().discard(made[i]);
      test::memory_left = -1;
    }
    const StoreStats stats = store().stats();
    EXPECT_EQ(stats.slots_in_use, 0u);
    EXPECT_EQ(stats.slot_bytes_in_use, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, StoreMemory,
                         testing::Values(Kind::io_uring, Kind::threads, Kind::encrypted), name_of);

}  // namespace
}  // namespace firn::testing_store
