// Mapper with a driver that only notes what it is asked for, and two blocks, under the lock.
#pragma once

#include <gtest/gtest.h>

#include <future>
#include <string>
#include <utility>
#include <vector>

#include "allocator/movement/mapper.h"
#include "tests/allocator/fake_gpu.h"
#include "tests/hand_clock.h"

namespace firn::test {

inline constexpr uint32_t span_granules = 2;
inline constexpr uint64_t pause_ns = 100;

class MapperTest : public ::testing::Test {
 protected:
  MapperTest() {
    make(block_, 1, 5);
    make(other_, 2, 3);
  }
  ~MapperTest() override {
    gpu_.beside = {};
    EXPECT_EQ(mapper_.in_hand().granules, 0u);
    EXPECT_EQ(mapper_.in_hand().shared_pages, 0u);
    EXPECT_FALSE(mapper_.mapping());
    EXPECT_FALSE(mapper_.unmapping());
    if (health_.dead()) return;
    frames_.trim();
    EXPECT_EQ(gpu_.frames_live, 0u) << "frames were not given back";
    EXPECT_TRUE(gpu_.mapped.empty());
  }
  static void make(Block& block, uint64_t number, uint32_t granules) {
    block.address = number << 40;
    block.pages = granules * granule_pages;
    block.shape = {0, granules, 0};
    make_spans(block, span_granules);
  }
  /// All that is missing of it.
  Mapping claim(Block& block) {
    const uint64_t pages = block.pages - block.mapped;
    Result<Mapping> claimed = mapper_.claim(block, pages, frames_.reserve(pages / granule_pages));
    EXPECT_TRUE(claimed);
    return std::move(*claimed);
  }
  void map(Block& block) {
    Mapping mapping = claim(block);
    ASSERT_TRUE(mapper_.map_apart(lock_, mapping));
    Mapper::install(mapping);
  }
  void unmap(Block& block) {
    (void)mapper_.give_up(block);
    while (mapper_.unmap_next(lock_, block)) continue;
  }
  /// Calls that were made since the last look: "map 0+2" is of two granules at the first one's
  /// beginning.
  std::vector<std::string> calls() {
    std::vector<std::string> all;
    for (const FakeGpu::MemoryCall& call : std::exchange(gpu_.memory, {})) {
      all.push_back(call.call);
      if (call.call == "create" || call.call == "release") continue;
      all.back() += " " + std::to_string(call.address % (uint64_t{1} << 40) / granule_bytes) + "+" +
                    std::to_string(call.bytes / granule_bytes);
      for (const int device : call.devices) all.back() += " for " + std::to_string(device);
      if (call.reads_only) all.back() += " to read";
    }
    return all;
  }
  /// Another thread adds the peer while the next frame is mapped.
  void come(int device) {
    gpu_.beside = [this, device, came = false](const std::string& call) mutable {
      if (call != "map" || std::exchange(came, true)) return;
      std::async(std::launch::async, [this, device] {
        const Mapper::Lock lock(mutex_);
        (void)mapper_.add_peer(device, [](const Mapper::Open&) { return Result<void>(); });
      }).get();
    };
  }
  void all_is_as_before(const Block& block) {
    EXPECT_EQ(block.mapped, 0u);
    EXPECT_EQ(block.device, 0u);
    EXPECT_EQ(block.coming, 0u);
    EXPECT_EQ(block.going, 0u);
    for (const Span& span : block.spans) EXPECT_FALSE(span.mapped() || span.coming || span.going);
    EXPECT_TRUE(gpu_.mapped.empty());
    EXPECT_EQ(mapper_.in_hand().granules, 0u);
    EXPECT_EQ(frames_.free_granules(), frames_.held_granules());
  }

  using Calls = std::vector<std::string>;
  FakeGpu gpu_;
  HandClock clock_;
  DriverTimes times_;
  DriverTimedMutex mutex_{times_};
  Mapper::Lock lock_{mutex_};
  DeviceHealth health_{gpu_.driver(), 0};
  Frames frames_{gpu_.driver(), health_, 0, 64 * granule_bytes};
  CopyGate gate_{gpu_.driver()};
  Mapper mapper_{{gpu_.driver(), health_, frames_, gate_, clock_, 0, span_granules, pause_ns}};
  Block block_, other_;
};

}  // namespace firn::test
