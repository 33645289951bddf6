// SharedFrames against a naive model: a byte map of each frame, and blocks that leave and come
// back.
#include "allocator/memory/shared_frames.h"

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <random>
#include <vector>

using namespace firn;

namespace {

struct Held {
  Shape shape;
  bool here = false;
  uint32_t head = SharedFrames::none, tail = SharedFrames::none;  // frames
};

class Model {
 public:
  /// As Frames does it; counts the frames that are made.
  uint32_t come(Held& block) {
    const uint32_t made_before = made_;
    block.head = part(block.shape.head);
    block.tail = part(block.shape.tail);
    block.here = true;
    return made_ - made_before + block.shape.body;
  }
  void leave(Held& block) {
    give(block.head, block.shape.head);
    give(block.tail, block.shape.tail);
    block.here = false;
  }
  void check() const {
    uint64_t taken = 0;
    for (const auto& [index, pages] : taken_) taken += std::popcount(pages);
    ASSERT_EQ(frames.count(), taken_.size());
    ASSERT_EQ(frames.free_pages(), taken_.size() * granule_pages - taken);
  }
  SharedFrames frames;

 private:
  uint32_t part(uint32_t pages) {
    if (pages == 0) return SharedFrames::none;
    uint32_t index = frames.take(pages);
    if (index == SharedFrames::none) {
      index = frames.add(++made_, pages);
      EXPECT_EQ(taken_.count(index), 0u);
    } else {
      EXPECT_EQ(taken_.count(index), 1u);
    }
    EXPECT_EQ(taken_[index] & pages, 0u) << "pages are two blocks'";
    taken_[index] |= pages;
    return index;
  }
  void give(uint32_t index, uint32_t pages) {
    if (pages == 0) return;
    taken_[index] &= ~pages;
    const bool empty = taken_[index] == 0;
    EXPECT_EQ(frames.give(index, pages), empty);
    if (empty) taken_.erase(index);
  }
  std::map<uint32_t, uint32_t> taken_;
  uint32_t made_ = 0;
};

uint32_t some_size(std::mt19937_64& random) {
  for (;;) {
    const auto pages = static_cast<uint32_t>(16 + random() % (random() % 2 ? 48 : 400));
    if (pages % granule_pages != 0) return pages;
  }
}

}  // namespace

TEST(SharedFrames, a_shape_holds_its_pages_side_by_side) {
  std::mt19937_64 random(1);
  Model model;
  for (int i = 0; i < 2000; ++i) {
    const uint32_t pages = some_size(random);
    Held block{model.frames.shape(pages)};
    const Shape& shape = block.shape;
    ASSERT_EQ(shape.pages(), pages);
    // The head reaches its frame's end and the tail begins at its frame's start, or nothing
    // follows.
    const auto at_end = static_cast<uint32_t>(std::countl_one(shape.head));
    const auto at_start = static_cast<uint32_t>(std::countr_one(shape.tail));
    const uint32_t before = shape.head == 0 ? 0 : std::countr_zero(shape.head);
    const auto side_by_side = static_cast<uint32_t>(std::countr_one(shape.head >> before));
    ASSERT_EQ(side_by_side, static_cast<uint32_t>(std::popcount(shape.head)));
    ASSERT_TRUE(shape.granules() == 1 || at_end == side_by_side);
    ASSERT_EQ(at_start, static_cast<uint32_t>(std::popcount(shape.tail)));
    model.come(block);
    model.check();
  }
}

TEST(SharedFrames, blocks_leave_and_come_back_and_none_meets_another) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Model model;
    std::vector<Held> blocks;
    for (int i = 0; i < 300; ++i) {
      if (blocks.empty() || random() % 3 == 0)
        blocks.push_back({model.frames.shape(some_size(random))});
      Held& block = blocks[random() % blocks.size()];
      if (block.here) {
        model.leave(block);
      } else {
        const uint32_t foreseen = model.frames.new_frames(block.shape);
        // At most what it would take alone.
        ASSERT_LE(foreseen, (block.shape.pages() + granule_pages - 1) / granule_pages);
        ASSERT_EQ(model.come(block), foreseen);
      }
      model.check();
      if (HasFatalFailure()) return;
    }
    for (Held& block : blocks)
      if (block.here) model.leave(block);
    ASSERT_EQ(model.frames.count(), 0u);
    ASSERT_EQ(model.frames.free_pages(), 0u);
  }
}

TEST(SharedFrames, a_frame_is_going_while_all_that_is_taken_of_it_goes) {
  SharedFrames frames;
  const uint32_t index = frames.add(1, 0b0011);
  EXPECT_EQ(frames.going(), 0u);
  frames.let_go(index, 0b0001);
  EXPECT_EQ(frames.going(), 0u);
  frames.let_go(index, 0b0010);
  EXPECT_EQ(frames.going(), 1u);
  EXPECT_EQ(frames.take(0b0100), index);  // it stays, for another
  EXPECT_EQ(frames.going(), 0u);
  EXPECT_FALSE(frames.give(index, 0b0011));
  EXPECT_EQ(frames.going(), 0u);
  frames.let_go(index, 0b0100);
  EXPECT_EQ(frames.going(), 1u);
  EXPECT_TRUE(frames.give(index, 0b0100));
  EXPECT_EQ(frames.going(), 0u);
}

TEST(SharedFrames, a_job_holds_what_its_blocks_have) {
  std::mt19937_64 random(7);
  for (uint32_t pages : {16u, 20u, 36u, 40u, 56u, 80u, 100u, 144u, 240u}) {
    Model model;  // of one size: no more than one frame has a gap
    for (int i = 0; i < 100; ++i) {
      Held block{model.frames.shape(pages)};
      model.come(block);
      ASSERT_LT(model.frames.free_pages(), granule_pages) << pages << ", block " << i;
    }
  }
  Model model;  // of many sizes: few
  uint64_t all = 0;
  for (int i = 0; i < 1000; ++i) {
    Held block{model.frames.shape(some_size(random))};
    model.come(block);
    all += block.shape.pages();
  }
  EXPECT_LT(model.frames.free_pages() * 50, all);
}
