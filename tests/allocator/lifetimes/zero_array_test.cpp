#include "allocator/base/zero_array.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>
#include <vector>

#include "allocator/lifetimes/history.h"

using namespace firn;

namespace {

constexpr size_t mib = 1 << 20;

size_t pages_in_memory(const void* begin, size_t bytes) {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> there((bytes + page - 1) / page);
  EXPECT_EQ(::mincore(const_cast<void*>(begin), bytes, there.data()), 0);
  return static_cast<size_t>(std::count_if(there.begin(), there.end(), [](int c) { return c & 1; }));
}

/// Of this process.
size_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (size_t kib = 0; word == "RssAnon:" && status >> kib) return kib << 10;
  ADD_FAILURE() << "no RssAnon in /proc/self/status";
  return 0;
}

}  // namespace

TEST(ZeroArray, takes_memory_where_it_is_written) {
  ZeroArray<std::atomic<uint32_t>> array(16 * mib);
  EXPECT_EQ(array.bytes(), 64 * mib);
  EXPECT_EQ(pages_in_memory(&array[0], array.bytes()), 0u);
  for (const size_t i : {size_t{0}, size_t{12345}, 16 * mib - 1}) {
    EXPECT_EQ(array[i].load(), 0u);
    array[i].store(7);
    EXPECT_EQ(array[i].load(), 7u);
  }
  EXPECT_EQ(pages_in_memory(&array[0], array.bytes()), 3u);
}

TEST(ZeroArray, is_handed_on_with_what_is_in_it) {
  std::vector<ZeroArray<uint64_t>> arrays;
  for (uint64_t i = 0; i < 20; ++i) arrays.emplace_back(100)[99] = i;
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(arrays[i][99], i);
    EXPECT_EQ(arrays[i][98], 0u);
    EXPECT_EQ(arrays[i].size(), 100u);
  }
}

TEST(ZeroArray, too_large_is_no_memory) {
  EXPECT_THROW(ZeroArray<uint64_t>(size_t{1} << 57), std::bad_alloc);
}

TEST(ZeroArray, a_history_of_nothing_takes_next_to_no_memory) {
  const size_t before = anonymous_bytes();
  lifetimes::History history(mib);
  EXPECT_GT(history.bytes(), 16 * mib);
  EXPECT_LT(anonymous_bytes(), before + 2 * mib);
}
