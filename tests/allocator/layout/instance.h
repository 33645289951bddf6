// What the tests of layouts share: random instances from a seed, and a naive check of a layout.
// Owns: nothing. Locks: none.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "allocator/layout/layout.h"

namespace firn::layout {

/// FIRN_SEED=N replays one seed; else seeds 1 to `count`, times ten in long tests.
inline std::vector<uint64_t> seeds(uint64_t count) {
  if (const char* one = std::getenv("FIRN_SEED")) return {std::strtoull(one, nullptr, 10)};
  const char* length = std::getenv("FIRN_TEST_LENGTH");
  if (length && std::string(length) == "long") count *= 10;
  std::vector<uint64_t> all(count);
  for (uint64_t i = 0; i < count; ++i) all[i] = i + 1;
  return all;
}

inline std::string replay(uint64_t seed) {
  return "replay: FIRN_SEED=" + std::to_string(seed) + " and this test's name in --gtest_filter";
}

/// Few or many distinct times and sizes, short or long lifetimes, twins now and then.
inline std::vector<Buffer> random_buffers(uint64_t seed, size_t most) {
  std::mt19937_64 random(seed);
  const size_t count = 1 + random() % most;
  const uint64_t times = 2 + random() % (random() % 2 ? 10 : 4 * count);
  const uint64_t sizes = 1 + random() % (random() % 2 ? 5 : 1000);
  const uint64_t length = 1 + random() % times;
  std::vector<Buffer> buffers;
  while (buffers.size() < count) {
    const uint64_t lower = random() % times;
    buffers.push_back({lower, lower + 1 + random() % length, 1 + random() % sizes});
    if (random() % 8 == 0 && buffers.size() < count) buffers.push_back(buffers.back());
  }
  return buffers;
}

/// Nine buffers whose lowest layout, 12, is above their load, 11: the fewest among random ones.
/// Sizes times a number from the seed, time either way, one more buffer beside.
inline std::vector<Buffer> above_load(uint64_t seed) {
  std::vector<Buffer> buffers = {{1, 3, 5}, {4, 7, 5}, {2, 5, 3}, {2, 4, 2}, {7, 9, 1},
                                 {1, 4, 1}, {3, 5, 2}, {0, 2, 5}, {5, 8, 5}};
  std::mt19937_64 random(seed);
  const uint64_t scale = 1 + random() % 1000, turned = random() % 2;
  for (Buffer& buffer : buffers) {
    if (turned) buffer = {9 - buffer.upper, 9 - buffer.lower, buffer.size};
    buffer.size *= scale;
  }
  buffers.push_back({9, 10 + random() % 5, 1 + random() % (11 * scale)});
  std::shuffle(buffers.begin(), buffers.end(), random);
  return buffers;
}

/// A square of `side` cut in two `cuts` times: a layout as high as the load exists.
inline std::vector<Buffer> dissection(uint64_t seed, size_t cuts, uint64_t side) {
  std::mt19937_64 random(seed);
  std::vector<Buffer> pieces = {{0, side, side}};
  for (size_t cut = 0; cut < cuts; ++cut) {
    Buffer& piece = pieces[random() % pieces.size()];
    Buffer other = piece;
    const bool along_time = random() % 2;
    const uint64_t extent = along_time ? piece.upper - piece.lower : piece.size;
    if (extent < 2) continue;
    const uint64_t at = 1 + random() % (extent - 1);
    if (along_time) {
      piece.upper = other.lower = piece.lower + at;
    } else {
      piece.size = at;
      other.size -= at;
    }
    pieces.push_back(other);
  }
  return pieces;
}

/// Every pair, one by one.
inline void expect_valid(std::span<const Buffer> buffers, std::span<const uint64_t> offsets,
                         uint64_t height) {
  ASSERT_EQ(buffers.size(), offsets.size());
  uint64_t highest = 0;
  for (size_t i = 0; i < buffers.size(); ++i) {
    highest = std::max(highest, offsets[i] + buffers[i].size);
    for (size_t j = 0; j < i; ++j) {
      const bool together =
          buffers[i].lower < buffers[j].upper && buffers[j].lower < buffers[i].upper;
      ASSERT_TRUE(!together || offsets[i] >= offsets[j] + buffers[j].size ||
                  offsets[j] >= offsets[i] + buffers[i].size)
          << "buffers " << j << " and " << i << " overlap";
    }
  }
  EXPECT_EQ(highest, height);
}

/// The lowest height there is, by trying all orders of placing each as low as possible above those
/// that lie already: some order gives an optimal layout.
class BruteForce {
 public:
  explicit BruteForce(std::span<const Buffer> buffers)
      : buffers_(buffers), tops_(buffers.size(), 0) {
    for (const Buffer& buffer : buffers) best_ += buffer.size;
    place(0);
  }
  uint64_t height() const { return best_; }

 private:
  void place(uint64_t height) {
    if (height >= best_) return;
    bool all = true;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      if (tops_[i] > 0) continue;
      all = false;
      uint64_t offset = 0;
      for (size_t j = 0; j < buffers_.size(); ++j)
        if (buffers_[i].lower < buffers_[j].upper && buffers_[j].lower < buffers_[i].upper)
          offset = std::max(offset, tops_[j]);
      tops_[i] = offset + buffers_[i].size;
      place(std::max(height, tops_[i]));
      tops_[i] = 0;
    }
    if (all) best_ = height;
  }
  std::span<const Buffer> buffers_;
  std::vector<uint64_t> tops_;  // 0: not placed
  uint64_t best_ = 0;
};

}  // namespace firn::layout
