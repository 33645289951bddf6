// Mapped memory and the devices that it is open to.
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "tests/allocator/simulation.h"

namespace firn::test {
namespace {

void* make(Engine& engine, size_t bytes) {
  Result<void*> block = engine.allocate(bytes, nullptr);
  FIRN_CHECK(block, "%s", describe(block.error()).c_str());
  return *block;
}

/// May kernels of `device` use what is at `address`?
bool open_to(int device, const void* address) {
  unsigned long long flags = 0;
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  using GetAccess = CUresult(unsigned long long*, const CUmemLocation*, CUdeviceptr);
  auto* get = reinterpret_cast<GetAccess*>(
      ::dlsym(::dlopen(std::getenv("FIRN_TEST_GPU"), RTLD_NOW | RTLD_NOLOAD), "cuMemGetAccess"));
  return get && get(&flags, &location, reinterpret_cast<CUdeviceptr>(address)) == CUDA_SUCCESS &&
         flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

TEST(EngineMap, blocks_that_share_frames_have_addresses_of_their_own) {
  Simulation sim({});
  Engine& engine = sim.engine(0);
  for (int i = 0; i < 20; ++i) {
    auto* block = static_cast<char*>(make(engine, (9u << 18)));
    const auto found = [&](const char* at) {
      const auto info = engine.find(at);
      return info && info->base == block;
    };
    EXPECT_TRUE(found(block) && found(block + (9u << 18) - 1));
    EXPECT_FALSE(found(block - 1) || found(block + (9u << 18)));
  }
  // 2.25 MiB each: what they hold is what they asked for, and less than a frame.
  EXPECT_LT(engine.stats().device_bytes, (20u * 9u << 18) + (2u << 20));
  engine.check();
}

TEST(EngineMap, room_is_made_though_a_block_that_leaves_frees_no_frame) {
  SimulationOptions o;
  o.budget_bytes = 40u << 20;
  o.watch_fraction = 0;
  Simulation sim(o);
  Engine& engine = sim.engine(0);
  std::vector<void*> blocks;
  for (int i = 0; i < 36; ++i) blocks.push_back(make(engine, 17u << 16));
  for (size_t i = 0; i < blocks.size(); ++i) {
    Result<Hold> hold = engine.touch(blocks[i], nullptr, Access::write);
    ASSERT_TRUE(hold) << describe(hold.error());
    engine.release(*hold, nullptr);
  }
  engine.spill_all();
  // Back without a use: each has a valid copy elsewhere, and nothing that its leaving waits for.
  for (size_t i = 0; i < blocks.size(); ++i) ASSERT_TRUE(engine.prefetch(blocks[i], 1, nullptr));
  const auto away = [&] {
    return std::any_of(blocks.begin(), blocks.end(), [&](void* block) {
      return std::string_view(engine.find(block)->state) != "resident";
    });
  };
  for (int i = 0; i < 10'000 && away(); ++i)
    if (!engine.pump()) sim.clock().wait(1'000'000);
  ASSERT_FALSE(away());
  // Every second one leaves before the others: its frames are its neighbours' still.
  for (size_t first : {0, 1})
    for (size_t i = first; i < blocks.size(); i += 2)
      ASSERT_TRUE(engine.prefetch(blocks[i], 1, nullptr));
  for (int i = 0; i < 18; ++i) {
    Result<void*> made = engine.allocate(2u << 20, nullptr);
    ASSERT_TRUE(made) << describe(made.error());
  }
  engine.check();
}

TEST(EngineMap, a_peer_may_use_what_is_mapped_before_and_after) {
  SimulationOptions o;
  o.devices = 2;
  Simulation sim(o);
  Engine& engine = sim.engine(0);
  void* before = make(engine, 40u << 20);
  void* sharing = make(engine, 5u << 20);
  void* beside = make(engine, (5u << 20) - 1);  // in one of the frames, at addresses of its own
  void* small = make(engine, 1000);
  EXPECT_TRUE(open_to(0, before));
  EXPECT_FALSE(open_to(1, before));
  ASSERT_TRUE(engine.allow_peer(1));
  ASSERT_TRUE(engine.allow_peer(1));
  void* after = make(engine, 4u << 20);
  for (const void* block : {before, static_cast<void*>(static_cast<char*>(before) + (39u << 20)),
                            sharing, beside, static_cast<void*>(static_cast<char*>(beside) +
                            (5u << 20) - 2), small, after}) {
    EXPECT_TRUE(open_to(0, block));
    EXPECT_TRUE(open_to(1, block));
  }
  Result<Hold> hold = engine.touch(before, nullptr, Access::write);
  ASSERT_TRUE(hold);
  engine.release(*hold, nullptr);
  engine.spill_all();
  EXPECT_FALSE(open_to(1, before));
  hold = engine.touch(before, nullptr, Access::read);
  ASSERT_TRUE(hold);
  EXPECT_TRUE(open_to(1, before));
  engine.release(*hold, nullptr);
  EXPECT_FALSE(open_to(0, make(sim.engine(1), 4u << 20)));
}

}  // namespace
}  // namespace firn::test
