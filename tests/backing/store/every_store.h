// All kinds of store, for tests of what each promises: io_uring, threads, the simulated disk, files
// held to a modelled SSD, encrypted files.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "tests/backing/store/store_testing.h"

namespace firn::testing_store {

enum class Kind { io_uring, threads, simulated, paced, encrypted };

/// An open store with staging.
class EveryStore : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == Kind::io_uring && !io_uring_trouble().empty())
      GTEST_SKIP() << io_uring_trouble();
    open(1, SIZE_MAX);
    if (HasFatalFailure()) return;
    add_staging(open_, 64u << 20);
  }

  void open(size_t dirs, size_t capacity_bytes) {
    open_.store.reset();
    if (GetParam() == Kind::simulated) {
      SimulatedStoreOptions options;
      options.clock = &open_.steps;
      options.capacity_bytes = capacity_bytes;
      auto simulated = open_simulated_store(options);
      open_.steps.store = simulated.get();
      open_.clock = &open_.steps;
      open_.store = std::move(simulated);
      return;
    }
    const StoreOptions::Kind kind = GetParam() == Kind::io_uring ? StoreOptions::Kind::io_uring
                                    : GetParam() == Kind::threads
                                        ? StoreOptions::Kind::threads
                                        : StoreOptions::Kind::automatic;
    StoreOptions options = small_options(dirs_[0].path(), kind);
    if (GetParam() == Kind::paced) options.pace = {4e9, 2e9, 50'000};
    options.encrypt = GetParam() == Kind::encrypted;
    options.max_bytes_per_dir = capacity_bytes;
    for (size_t i = 1; i < dirs; ++i) options.dirs.push_back(dirs_[i].path());
    Result<std::unique_ptr<Store>> store = open_store(options);
    ASSERT_TRUE(store) << describe(store.error());
    open_.store = std::move(*store);
  }

  Store& store() { return *open_.store; }
  Clock& clock() { return *open_.clock; }
  Slot reserve(size_t bytes) {
    Result<Slot> slot = store().reserve(bytes);
    EXPECT_TRUE(slot) << describe(slot.error());
    return slot ? *slot : Slot{};
  }

  TempDir dirs_[3];
  OpenStore open_;
};

inline std::string name_of(const testing::TestParamInfo<Kind>& kind) {
  return kind.param == Kind::io_uring    ? "io_uring"
         : kind.param == Kind::threads   ? "threads"
         : kind.param == Kind::paced     ? "paced"
         : kind.param == Kind::encrypted ? "encrypted"
                                         : "simulated";
}

inline const auto every_kind =
    testing::Values(Kind::io_uring, Kind::threads, Kind::simulated, Kind::paced, Kind::encrypted);

}  // namespace firn::testing_store
