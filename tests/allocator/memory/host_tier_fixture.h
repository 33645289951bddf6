// A host tier by itself, with a driver that only counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>
#include <span>
#include <utility>

#include <gtest/gtest.h>

#include "allocator/memory/host_tier.h"
#include "tests/allocator/fake_store.h"
#include "tests/backing/store/huge_pages.h"

namespace firn::test {

inline constexpr uint64_t mib = 1u << 20, extent = 128 * mib;

inline uint64_t registered = 0;
inline int pinned_extents = 0;
inline int asked_to_pin = 0;
inline CUresult answer = CUDA_SUCCESS;
inline bool huge_refused = false;
inline CUresult register_host(void* data, size_t bytes, unsigned) {
  ++asked_to_pin;
  if (huge_refused && testing_store::huge_pages.hold(data)) return CUDA_ERROR_INVALID_VALUE;
  if (answer == CUDA_SUCCESS) registered += bytes, ++pinned_extents;
  return answer;
}
inline CUresult unregister_host(void*) {
  --pinned_extents;
  return CUDA_SUCCESS;
}
inline CUresult no_words(CUresult, const char** words) {
  *words = "refused";
  return CUDA_SUCCESS;
}

/// Takes no staging: it says so, or lacks memory for its note.
class NoStore : public FakeStore {
 public:
  explicit NoStore(bool throws) : throws_(throws) {}
  Result<void> attach_staging(std::span<std::byte>) override {
    if (throws_) throw std::bad_alloc();
    return make_error(Code::io, 0, "no staging here");
  }

 private:
  const bool throws_;
};

class Host : public ::testing::Test {
 protected:
  Host() {
    driver.mem_host_register = register_host;
    driver.mem_host_unregister = unregister_host;
    driver.get_error_name = driver.get_error_string = no_words;
    registered = 0;
    pinned_extents = asked_to_pin = 0;
    answer = CUDA_SUCCESS;
  }
  /// `ahead`, of addresses without memory.
  HostTier tier(uint64_t budget, bool ahead, std::atomic<uint64_t>* left = nullptr) {
    return HostTier(driver, nullptr, budget, left, 0, true, -1, ahead);
  }
  static void make_ahead(HostTier& tier) {
    HostTier::Ahead ahead = tier.begin_ahead();
    EXPECT_GT(ahead.bytes, 0u);
    tier.prepare(ahead);
    tier.end_ahead(std::move(ahead));
  }
  Driver driver;
};

}  // namespace firn::test
