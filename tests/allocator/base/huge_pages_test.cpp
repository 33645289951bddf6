// Memory on huge pages: aligned, zeroed, given back as a whole.
#include "allocator/base/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <vector>

using namespace firn;

namespace {

bool mapped(const void* address) {
  unsigned char there = 0;
  return ::mincore(const_cast<void*>(address), 4096, &there) == 0;
}

}  // namespace

TEST(HugePages, are_aligned_and_zero_and_go_back_whole) {
  constexpr size_t page = 2u << 20;
  for (size_t bytes : {size_t{1}, page - 1, page, page + 1, 5 * page}) {
    std::vector<char*> taken;
    for (int i = 0; i < 3; ++i) {
      auto* memory = static_cast<char*>(take_huge(bytes));
      ASSERT_NE(memory, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % page, 0u);
      EXPECT_TRUE(std::all_of(memory, memory + bytes, [](char c) { return c == 0; }));
      std::fill_n(memory, bytes, 'x');
      taken.push_back(memory);
    }
    for (char* memory : taken) {
      give_huge(memory, bytes);
      EXPECT_FALSE(mapped(memory));
      EXPECT_FALSE(mapped(memory + (bytes - 1) / 4096 * 4096));
    }
  }
}

TEST(HugePages, what_no_machine_has_is_refused) { EXPECT_EQ(take_huge(size_t{1} << 60), nullptr); }
