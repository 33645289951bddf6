// Addresses without their gaps: order is kept, what is in one block stays together, nothing else is
// drawn.
#include "allocator/report/address_axis.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace firn::report {
namespace {

TEST(AddressAxis, against_a_count_of_used_addresses) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<Life> lives(random() % 12);
    for (Life& life : lives) {
      life.address = 1000 + random() % 300;
      life.bytes = random() % 40;
    }
    const uint64_t rows = 1 + seed % 9;
    std::set<uint64_t> used;
    for (const Life& life : lives)
      for (uint64_t at = 0; at < std::max<uint64_t>(life.bytes, 1); at += rows)
        for (uint64_t i = 0; i < rows; ++i) used.insert(life.address + at + i);
    const AddressAxis axis(lives, rows);
    EXPECT_EQ(axis.bytes(), used.size()) << seed;
    for (const Life& life : lives)
      for (uint64_t at = 0; at < std::max<uint64_t>(life.bytes, 1); ++at) {
        const uint64_t address = life.address + at;
        const auto before = std::distance(used.begin(), used.find(address));
        EXPECT_EQ(axis.position(address), static_cast<uint64_t>(before)) << seed << " " << address;
      }
  }
}

// As a trace may say: it is no address, and nobody else's position.
TEST(AddressAxis, of_blocks_that_would_end_behind_the_last_address) {
  std::vector<Life> lives(2);
  lives[0].address = 4096;
  lives[0].bytes = 512;
  lives[1].address = UINT64_MAX - 4096;
  for (const uint64_t bytes : {uint64_t{8192}, UINT64_MAX, UINT64_MAX - 511}) {
    lives[1].bytes = bytes;
    const AddressAxis axis(lives, 512);
    EXPECT_EQ(axis.position(lives[1].address), 512u) << bytes;
    EXPECT_EQ(axis.bytes(), 512u + 4096u) << bytes;
  }
}

}  // namespace
}  // namespace firn::report
