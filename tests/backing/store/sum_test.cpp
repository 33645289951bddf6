// The hash: both kernels agree with each other and with published values, in any pieces.
#include "backing/store/sum.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace firn {
namespace {

std::vector<std::byte> random_bytes(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> data(bytes);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random());
  return data;
}

Sum with(const SumKernel& kernel, const std::vector<std::byte>& data) {
  SumState state;
  kernel.reset(state);
  kernel.update(state, data.data(), data.size());
  return kernel.digest(state);
}

TEST(Sum, is_xxh3_128) {
  // XXH128 of no bytes, seed 0, as published with the algorithm.
  Sum none = with(sum_kernel_generic, {});
  EXPECT_EQ(none.words(), "99aa06d3014798d86001c324468d497f");
}

TEST(Sum, kernels_agree) {
  for (size_t bytes : {1u, 240u, 241u, 4096u, 65537u, 1000003u})
    EXPECT_EQ(with(sum_kernel(), random_bytes(bytes, bytes)),
              with(sum_kernel_generic, random_bytes(bytes, bytes)))
        << bytes;
}

TEST(Sum, in_pieces_is_the_same) {
  std::mt19937_64 random(5);
  std::vector<std::byte> data = random_bytes(300'000, 1);
  Sum whole = sum_of(data.data(), data.size());
  for (int round = 0; round < 20; ++round) {
    Summer summer;
    while (summer.summed() < data.size())
      summer.sum_to(data.data(), std::min(data.size(), summer.summed() + 1 + random() % 50'000));
    EXPECT_EQ(summer.digest(), whole);
  }
  data[123'456] ^= std::byte{4};
  EXPECT_NE(sum_of(data.data(), data.size()), whole);
}

TEST(Sum, can_be_begun_again) {
  std::vector<std::byte> data = random_bytes(10'000, 2);
  Summer summer;
  summer.sum_to(data.data(), 5'000);
  summer.reset();
  summer.sum_to(data.data(), data.size());
  EXPECT_EQ(summer.digest(), sum_of(data.data(), data.size()));
}

}  // namespace
}  // namespace firn
