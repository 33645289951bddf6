// Sums of copies in host memory: taken without the lock, and told where the copy is still the same.
#include "allocator/movement/sums.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <functional>
#include <future>
#include <utility>
#include <vector>

#include "tests/allocator/fake_gpu.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr size_t piece_bytes = 2u << 20;

class SumsTest : public ::testing::Test {
 protected:
  /// A block of one piece with a copy in host memory.
  PieceRef block(size_t bytes = piece_bytes) {
    Block& block = blocks_.emplace_back();
    Piece piece;
    piece.bytes = bytes;
    piece.host = host_.acquire(bytes);
    piece.host_valid = true;
    block.pieces.push_back(piece);
    return piece_ref(block, 0);
  }
  static int refs(const PieceRef& ref) { return piece_of(ref).host->refs; }
  /// What Engine does when the device's bytes change.
  void drop_copy(const PieceRef& ref) {
    ++ref.block->version;
    host_.unref(std::exchange(piece_of(ref).host, nullptr));
    piece_of(ref).summing = false;
  }
  static Sum fake_sum(const void* data, size_t bytes) {
    return {reinterpret_cast<uint64_t>(data), bytes};
  }
  struct Told {
    Block* block;
    bool arrived;
    Sum sum;
    bool operator==(const Told&) const = default;
  };
  Told told_of(const PieceRef& ref, bool arrived) const {
    return {ref.block, arrived, fake_sum(piece_of(ref).host->data, piece_of(ref).bytes)};
  }
  bool take() {
    told_.clear();
    const bool any = sums_.take(lock_, note());
    EXPECT_TRUE(lock_.owns_lock());
    return any;
  }
  Sums::Summed note() {
    return [this](const PieceRef& ref, bool arrived, const Sum& sum) {
      EXPECT_FALSE(piece_of(ref).summing);
      told_.push_back({ref.block, arrived, sum});
    };
  }
  /// Can another thread have the lock?
  bool lock_is_free() {
    return std::async(std::launch::async, [this] {
             return Sums::Lock(mutex_, std::defer_lock).try_lock();
           }).get();
  }
  ~SumsTest() override {
    EXPECT_FALSE(sums_.due());
    EXPECT_FALSE(sums_.taking());
    for (Block& block : blocks_)
      for (Piece& piece : block.pieces)
        if (piece.host) {
          EXPECT_EQ(piece.host->refs, 1);
          host_.unref(piece.host);
        }
    EXPECT_EQ(host_.used(), 0u) << "staging was not given back";
  }

  FakeGpu gpu_;
  HostTier host_{gpu_.driver(), nullptr, 4 * piece_bytes, nullptr, 0, true};
  DriverTimes times_;
  DriverTimedMutex mutex_{times_};
  Sums::Lock lock_{mutex_};
  std::function<void()> beside_;  // called while a sum is taken
  unsigned summed_ = 0;           // how often that was
  Sums sums_{host_, [this](const std::byte* data, size_t bytes) {
               ++summed_;
               if (beside_) beside_();
               return fake_sum(data, bytes);
             }};
  std::deque<Block> blocks_;
  std::vector<Told> told_;  // by the last take()
};

TEST_F(SumsTest, those_that_are_due_are_taken_in_their_order_and_told) {
  const PieceRef first = block(), second = block(4096);
  EXPECT_FALSE(take());
  EXPECT_TRUE(sums_.add(first, true));
  EXPECT_TRUE(sums_.add(second, false));
  EXPECT_TRUE(sums_.due());
  EXPECT_TRUE(piece_of(first).summing);
  EXPECT_EQ(refs(first), 2);
  EXPECT_TRUE(take());
  EXPECT_EQ(told_, (std::vector{told_of(first, true), told_of(second, false)}));
  EXPECT_EQ(refs(first), 1);
  EXPECT_EQ(sums_.bytes(), piece_bytes + 4096);
  EXPECT_FALSE(take());
}

TEST_F(SumsTest, a_copy_waits_once_and_may_wait_again_when_it_was_taken) {
  const PieceRef ref = block();
  EXPECT_TRUE(sums_.add(ref, true));
  EXPECT_FALSE(sums_.add(ref, false));
  EXPECT_EQ(refs(ref), 2);
  beside_ = [&] {
    if (summed_ > 1) return;
    lock_.lock();
    EXPECT_FALSE(sums_.add(ref, false));
    lock_.unlock();
  };
  EXPECT_TRUE(take());
  EXPECT_EQ(told_, std::vector{told_of(ref, true)});
  beside_ = {};
  EXPECT_TRUE(sums_.add(ref, false));
  EXPECT_TRUE(take());
  EXPECT_EQ(told_, std::vector{told_of(ref, false)});
}

TEST_F(SumsTest, the_lock_is_free_while_a_sum_is_taken_and_only_then) {
  const PieceRef ref = block();
  bool free = false;
  beside_ = [&] {
    free = lock_is_free();
    EXPECT_TRUE(sums_.taking());
    EXPECT_FALSE(sums_.due());
    EXPECT_EQ(refs(ref), 2);
  };
  EXPECT_TRUE(sums_.add(ref, true));
  EXPECT_FALSE(sums_.taking());
  bool told = false;
  EXPECT_TRUE(sums_.take(lock_, [&](const PieceRef&, bool, const Sum&) {
    told = true;
    EXPECT_FALSE(lock_is_free());
    EXPECT_FALSE(sums_.taking());
    EXPECT_EQ(refs(ref), 2);  // the copy stays until its caller has judged it
  }));
  EXPECT_TRUE(told);
  EXPECT_TRUE(free);
  EXPECT_FALSE(lock_is_free());
}

TEST_F(SumsTest, other_threads_take_the_next_sum_meanwhile) {
  const PieceRef first = block(), second = block();
  EXPECT_TRUE(sums_.add(first, true));
  EXPECT_TRUE(sums_.add(second, true));
  beside_ = [&] {
    if (summed_ > 1) return;
    std::async(std::launch::async, [&] {
      Sums::Lock lock(mutex_, std::defer_lock);
      ASSERT_TRUE(lock.try_lock());
      EXPECT_TRUE(sums_.take(lock, note()));
      EXPECT_TRUE(sums_.taking());  // the first one still
    }).get();
  };
  EXPECT_TRUE(take());
  EXPECT_EQ(told_, (std::vector{told_of(second, true), told_of(first, true)}));
  EXPECT_EQ(summed_, 2u);
}

TEST_F(SumsTest, what_changed_before_its_sum_is_not_summed) {
  const PieceRef freed = block(), changed = block(), left = block();
  for (const PieceRef& ref : {freed, changed, left}) EXPECT_TRUE(sums_.add(ref, true));
  ++freed.block->generation;
  drop_copy(changed);
  drop_copy(left);
  EXPECT_EQ(host_.used(), 3 * piece_bytes);  // the sums' references
  EXPECT_FALSE(take());
  EXPECT_EQ(told_, std::vector<Told>{});
  EXPECT_EQ(summed_, 0u);
  EXPECT_EQ(sums_.bytes(), 0u);
  EXPECT_EQ(host_.used(), piece_bytes);
}

TEST_F(SumsTest, what_changed_while_it_was_summed_is_not_told) {
  const PieceRef freed = block(), changed = block(), dropped = block();
  const auto change = [&] {
    switch (summed_) {
      case 1: ++freed.block->generation; break;
      case 2: drop_copy(changed); break;
      default:  // the same bytes, elsewhere in host memory
        host_.unref(std::exchange(piece_of(dropped).host, host_.acquire(piece_bytes)));
    }
  };
  beside_ = [&] {
    lock_.lock();
    change();
    lock_.unlock();
  };
  for (const PieceRef& ref : {freed, changed, dropped}) EXPECT_TRUE(sums_.add(ref, true));
  EXPECT_TRUE(take());
  EXPECT_EQ(told_, std::vector<Told>{});
  EXPECT_EQ(sums_.bytes(), 3 * piece_bytes);
  EXPECT_EQ(host_.used(), 2 * piece_bytes);
}

TEST_F(SumsTest, what_comes_to_wait_meanwhile_is_taken_in_the_same_go) {
  const PieceRef first = block(), beside = block(), behind = block();
  beside_ = [&] {
    lock_.lock();
    if (summed_ == 1) (void)sums_.add(beside, false);
    lock_.unlock();
  };
  EXPECT_TRUE(sums_.add(first, true));
  EXPECT_TRUE(sums_.take(lock_, [&](const PieceRef& ref, bool, const Sum&) {
    if (ref.block == beside.block) (void)sums_.add(behind, false);
  }));
  EXPECT_EQ(summed_, 3u);
}

TEST_F(SumsTest, what_is_dropped_gives_its_staging_back) {
  const PieceRef ref = block(), gone = block();
  EXPECT_TRUE(sums_.add(ref, true));
  EXPECT_TRUE(sums_.add(gone, true));
  drop_copy(gone);
  sums_.drop();
  EXPECT_FALSE(sums_.due());
  EXPECT_EQ(refs(ref), 1);
  EXPECT_EQ(host_.used(), piece_bytes);
  EXPECT_FALSE(take());
}

TEST_F(SumsTest, a_sum_is_of_the_copy_s_bytes) {
  std::array<std::byte, 8192> bytes{};
  bytes[4095] = std::byte{7};
  Staging staging{bytes.data(), bytes.size(), 1};
  const PieceRef ref = block(4096);
  Staging* own = std::exchange(piece_of(ref).host, &staging);
  Sums sums(host_);
  EXPECT_TRUE(sums.add(ref, true));
  EXPECT_TRUE(sums.take(lock_, note()));
  EXPECT_EQ(told_, (std::vector{Told{ref.block, true, sum_of(bytes.data(), 4096)}}));
  EXPECT_EQ(staging.refs, 1);
  piece_of(ref).host = own;
}

}  // namespace
