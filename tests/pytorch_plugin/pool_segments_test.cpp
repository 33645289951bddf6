// PoolSegments against a naive model, from seeds.
#include "pytorch_plugin/pool_segments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace firn::pytorch {
namespace {

using Address = PoolSegments::Address;

void* at(Address address) { return reinterpret_cast<void*>(address); }
Address of(const void* pointer) { return reinterpret_cast<Address>(pointer); }

/// A segment as the blocks that live in it; what is free lies between them.
struct NaiveSegment {
  Address base;
  PoolSegments::Stream stream;
  bool large;
  size_t bytes;
  std::map<size_t, size_t> live = {};  // bytes by offset

  struct Run {
    size_t begin, bytes;
  };
  std::vector<Run> free_runs() const {
    std::vector<Run> runs;
    size_t end = 0;
    for (const auto& [offset, size] : live) {
      if (offset > end) runs.push_back({end, offset - end});
      end = offset + size;
    }
    if (end < bytes) runs.push_back({end, bytes - end});
    return runs;
  }
};

struct Naive {
  std::vector<NaiveSegment> segments;

  /// The smallest run that fits, at the lowest address, and what is taken of it.
  std::optional<std::pair<Address, size_t>> best(size_t bytes, PoolSegments::Stream stream,
                                                 bool whole) const {
    const size_t size = (bytes + 511) / 512 * 512;
    const bool large = size > (1u << 20);
    std::optional<std::pair<size_t, Address>> found;
    for (const NaiveSegment& segment : segments)
      for (const auto& run : segment.free_runs()) {
        if (segment.stream != stream || segment.large != large || run.bytes < size) continue;
        std::pair<size_t, Address> candidate{run.bytes, segment.base + run.begin};
        if (!found || candidate < *found) found = candidate;
      }
    if (!found) return std::nullopt;
    const size_t left = found->first - size;
    const bool cut = !whole && (large ? left > (1u << 20) : left > 0);
    return std::pair{found->second, cut ? size : found->first};
  }

  NaiveSegment& around(Address address) {
    for (NaiveSegment& segment : segments)
      if (address >= segment.base && address < segment.base + segment.bytes) return segment;
    std::abort();
  }
  void use(Address address, size_t bytes) {
    NaiveSegment& segment = around(address);
    segment.live[address - segment.base] = bytes;
  }
  void give(Address address) {
    NaiveSegment& segment = around(address);
    segment.live.erase(address - segment.base);
  }
};

void expect_alike(const PoolSegments& pool, const Naive& naive) {
  ASSERT_EQ(pool.all().size(), naive.segments.size());
  PoolSegments::Inactive inactive[2];
  for (const NaiveSegment& expected : naive.segments) {
    auto found = pool.all().find(expected.base);
    ASSERT_NE(found, pool.all().end());
    size_t end = 0, pieces_free = 0, bytes_free = 0;
    for (const auto& [offset, piece] : found->second.pieces) {
      ASSERT_EQ(offset, end);
      end = offset + piece.bytes;
      if (piece.used) continue;
      ++pieces_free;
      bytes_free += piece.bytes;
    }
    ASSERT_EQ(end, expected.bytes);
    const auto runs = expected.free_runs();
    ASSERT_EQ(pieces_free, runs.size());
    size_t bytes = 0;
    for (const auto& run : runs) bytes += run.bytes;
    ASSERT_EQ(bytes_free, bytes);
    if (found->second.pieces.size() > 1) {
      inactive[expected.large].pieces += static_cast<int64_t>(pieces_free);
      inactive[expected.large].bytes += static_cast<int64_t>(bytes_free);
    }
  }
  for (bool large : {false, true}) {
    ASSERT_EQ(pool.inactive(large).pieces, inactive[large].pieces);
    ASSERT_EQ(pool.inactive(large).bytes, inactive[large].bytes);
  }
}

class Program {
 public:
  explicit Program(unsigned seed) : random_(seed) {}

  void step() {
    const unsigned what = random_() % 100;
    if (what < 50 || live_.empty())
      allocate();
    else if (what < 95)
      free_one();
    else if (what < 97)
      go_back();
    else
      drop_unused();
    expect_alike(pool_, naive_);
  }

 private:
  size_t some_size() {
    constexpr size_t most[] = {2000, 300'000, 1u << 20, 9u << 20, 40u << 20};
    return 1 + random_() % most[random_() % 5];
  }

  void allocate() {
    const size_t bytes = some_size();
    auto* stream = at(random_() % 2);
    const bool whole = random_() % 8 == 0;
    if (!naive_.best(bytes, stream, whole)) {
      ASSERT_EQ(pool_.take(bytes, stream, whole), nullptr);
      const size_t size = PoolSegments::segment_bytes(bytes);
      ASSERT_GE(size, bytes);
      const bool large = PoolSegments::is_large(bytes);
      pool_.add(at(next_), size, stream, large);
      naive_.segments.push_back({next_, stream, large, size});
      next_ += size + random_() % 2 * size;
    }
    const auto expected = naive_.best(bytes, stream, whole);
    ASSERT_TRUE(expected);
    void* address = pool_.take(bytes, stream, whole);
    ASSERT_EQ(of(address), expected->first) << bytes;
    const PoolSegments::Piece* piece = pool_.used(address);
    ASSERT_TRUE(piece);
    ASSERT_EQ(piece->bytes, expected->second);
    ASSERT_EQ(piece->requested, bytes);
    naive_.use(expected->first, expected->second);
    live_.push_back({of(address), expected->second});
  }

  void free_one() {
    const size_t which = random_() % live_.size();
    pool_.give(at(live_[which].address));
    ASSERT_EQ(pool_.used(at(live_[which].address)), nullptr);
    naive_.give(live_[which].address);
    live_[which] = live_.back();
    live_.pop_back();
  }

  /// To how it was when this was called last.
  void go_back() {
    if (!kept_.empty()) {
      for (const Block& block : live_) {
        pool_.give(at(block.address));
        naive_.give(block.address);
      }
      for (const auto& [base, segment] : kept_) pool_.cut_like(base, segment);
      live_ = kept_live_;
      for (const Block& block : live_) naive_.use(block.address, block.bytes);
    }
    kept_ = pool_.all();
    kept_live_ = live_;
  }

  void drop_unused() {
    for (const auto& [base, segment] : pool_.take_unused()) {
      ASSERT_EQ(pool_.around(at(base)), pool_.all().end());
      std::erase_if(naive_.segments,
                    [base = base](const NaiveSegment& each) { return each.base == base; });
      for (const auto& [offset, piece] : segment.pieces) ASSERT_FALSE(piece.used);
    }
    kept_.clear();  // a checkpoint of segments that are gone cannot be gone back to
  }

  struct Block {
    Address address;
    size_t bytes;
  };
  std::mt19937 random_;
  PoolSegments pool_;
  Naive naive_;
  std::vector<Block> live_, kept_live_;
  PoolSegments::Segments kept_;
  Address next_ = 1u << 30;
};

TEST(PoolSegments, random_programs_match_the_naive_model) {
  const char* words = std::getenv("FIRN_SEEDS");
  const unsigned seeds = std::min(words ? std::atoi(words) : 50, 200);
  for (unsigned seed = 1; seed <= seeds && !::testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Program program(seed);
    for (int step = 0; step < 200 && !::testing::Test::HasFatalFailure(); ++step) program.step();
  }
}

TEST(PoolSegments, segments_are_as_large_as_natively) {
  EXPECT_EQ(PoolSegments::segment_bytes(1), 2u << 20);
  EXPECT_EQ(PoolSegments::segment_bytes(1u << 20), 2u << 20);
  EXPECT_EQ(PoolSegments::segment_bytes((1u << 20) + 1), 20u << 20);
  EXPECT_EQ(PoolSegments::segment_bytes((10u << 20) - 512), 20u << 20);
  EXPECT_EQ(PoolSegments::segment_bytes((10u << 20) - 511), 10u << 20);
  EXPECT_EQ(PoolSegments::segment_bytes((10u << 20) + 1), 12u << 20);
}

TEST(PoolSegments, addresses_outside_are_nobody_s) {
  PoolSegments pool;
  EXPECT_EQ(pool.around(at(4096)), pool.all().end());
  pool.add(at(1u << 21), 2u << 20, nullptr, false);
  void* address = pool.take(1000, nullptr);
  EXPECT_EQ(pool.around(at((1u << 21) - 1)), pool.all().end());
  EXPECT_EQ(pool.around(at(2u << 21)), pool.all().end());
  EXPECT_NE(pool.around(at((2u << 21) - 1)), pool.all().end());
  EXPECT_EQ(pool.used(at(of(address) + 512)), nullptr);
  EXPECT_DEATH(pool.give(at(of(address) + 512)), "not in use");
}

}  // namespace
}  // namespace firn::pytorch
