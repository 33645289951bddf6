// The gate between copies to the host, on the software GPU's wall clock.
#include "allocator/memory/copy_gate.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "allocator/blocks/block.h"

using namespace firn;

namespace {

class Gate : public ::testing::Test {
 protected:
  static Driver& driver() {
    static Driver& opened = [&]() -> Driver& {
      const char* library = std::getenv("FIRN_TEST_GPU");
      auto found = open_driver(library ? library : "");
      if (!found) {
        std::fprintf(stderr, "%s\n", describe(found.error()).c_str());
        std::abort();
      }
      EXPECT_EQ((*found)->init(0), CUDA_SUCCESS);
      return *found->release();
    }();
    return opened;
  }
  Gate() {
    Driver& d = driver();
    EXPECT_EQ(d.device_primary_ctx_retain(&context_, 0), CUDA_SUCCESS);
    EXPECT_EQ(d.ctx_set_current(context_), CUDA_SUCCESS);
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    EXPECT_EQ(d.mem_address_reserve(&block_, granule_bytes, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(d.mem_create(&handle_, granule_bytes, &prop, 0), CUDA_SUCCESS);
    EXPECT_EQ(d.mem_map(block_, granule_bytes, 0, handle_, 0), CUDA_SUCCESS);
    EXPECT_EQ(d.mem_set_access(block_, granule_bytes, &access, 1), CUDA_SUCCESS);
    EXPECT_EQ(d.mem_host_register(host_.data(), host_.size(), 0), CUDA_SUCCESS);
    EXPECT_EQ(d.stream_create(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    EXPECT_EQ(d.memset_d8_async(block_, 7, granule_bytes, stream_), CUDA_SUCCESS);
    EXPECT_EQ(d.stream_synchronize(stream_), CUDA_SUCCESS);
  }
  ~Gate() override {
    Driver& d = driver();
    EXPECT_EQ(d.ctx_synchronize(), CUDA_SUCCESS);
    EXPECT_EQ(d.stream_destroy(stream_), CUDA_SUCCESS);
    EXPECT_EQ(d.mem_host_unregister(host_.data()), CUDA_SUCCESS);
    EXPECT_EQ(d.mem_unmap(block_, granule_bytes), CUDA_SUCCESS);
    EXPECT_EQ(d.mem_release(handle_), CUDA_SUCCESS);
    EXPECT_EQ(d.mem_address_free(block_, granule_bytes), CUDA_SUCCESS);
  }

  void copy_out(CopyGate& gate) {
    std::memset(host_.data(), 0, host_.size());
    gate.pass(stream_);
    ASSERT_EQ(driver().memcpy_dtoh_async(host_.data(), block_, host_.size(), stream_),
              CUDA_SUCCESS);
  }
  bool pending() { return driver().stream_query(stream_) == CUDA_ERROR_NOT_READY; }
  void expect_copied() {
    ASSERT_EQ(driver().stream_synchronize(stream_), CUDA_SUCCESS);
    EXPECT_EQ(host_.front(), 7);
    EXPECT_EQ(host_.back(), 7);
  }

  CUcontext context_ = nullptr;
  CUdeviceptr block_ = 0;
  CUmemGenericAllocationHandle handle_ = 0;
  CUstream stream_ = nullptr;
  std::vector<char> host_ = std::vector<char>(4096);
};

TEST_F(Gate, copies_pass_while_it_is_open) {
  CopyGate gate(driver());
  gate.start();
  copy_out(gate);
  expect_copied();
  EXPECT_EQ(gate.forced(), 0u);
  gate.end();
}

TEST_F(Gate, a_copy_waits_for_all_who_give_access) {
  CopyGate gate(driver());
  gate.start();
  // (Shorter than the gate allows a call: else others' load would end the test's own scopes.)
  for (int attempt = 0; attempt < 100; ++attempt) {
    const uint64_t forced = gate.forced();
    std::optional<CopyGate::Closed> one(std::in_place, gate), other(std::in_place, gate);
    copy_out(gate);
    const bool both = pending();
    one.reset();
    const bool left = pending();
    const bool in_time = gate.forced() == forced;
    other.reset();
    expect_copied();
    if (!in_time) continue;
    EXPECT_TRUE(both);
    EXPECT_TRUE(left) << "one scope ended, and the other did not";
    gate.end();
    return;
  }
  gate.end();
  GTEST_SKIP() << "this machine never came to it within 2 ms";
}

/// Its thread may be waiting, in the driver, for one that waits for these very copies.
TEST_F(Gate, a_call_that_does_not_end_keeps_no_copy_back) {
  CopyGate gate(driver());
  gate.start();
  std::optional<CopyGate::Closed> stuck(std::in_place, gate);
  copy_out(gate);
  expect_copied();
  EXPECT_EQ(gate.forced(), 1u);
  copy_out(gate);  // open until that call ends
  expect_copied();
  EXPECT_EQ(gate.forced(), 1u);
  stuck.reset();
  std::optional<CopyGate::Closed> next(std::in_place, gate);
  copy_out(gate);
  expect_copied();
  EXPECT_EQ(gate.forced(), 2u) << "it closes again for the next";
  next.reset();
  gate.end();
}

TEST_F(Gate, threads_close_it_as_they_come) {
  CopyGate gate(driver());
  gate.start();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 1000; ++round) const CopyGate::Closed closed(gate);
    });
  for (int round = 0; round < 100; ++round) {
    copy_out(gate);
    expect_copied();
  }
  for (std::thread& thread : threads) thread.join();
  copy_out(gate);
  expect_copied();
  gate.end();
}

TEST_F(Gate, it_stands_open_where_the_driver_cannot_wait) {
  Driver without = driver();
  without.handle = nullptr;
  CopyGate gate(without);
  gate.start();
  const CopyGate::Closed closed(gate);
  copy_out(gate);
  expect_copied();
  EXPECT_EQ(gate.forced(), 0u);
  gate.end();
}

TEST_F(Gate, a_scope_outlasts_its_end) {
  CopyGate gate(driver());
  gate.start();
  {
    const CopyGate::Closed closed(gate);
    gate.end();
  }
  copy_out(gate);
  expect_copied();
}

}  // namespace
