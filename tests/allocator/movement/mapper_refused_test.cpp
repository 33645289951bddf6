// Mapper where the driver refuses: nothing is left half done.
#include "tests/allocator/movement/mapper_fixture.h"

using namespace firn;
using namespace firn::test;

namespace {

using MapperRefused = MapperTest;

TEST_F(MapperRefused, frames_that_are_refused_leave_no_claim) {
  gpu_.passes["cuMemCreate"] = 1;
  gpu_.refusals["cuMemCreate"] = 1;
  EXPECT_FALSE(mapper_.claim(block_, block_.pages, frames_.reserve(5)));
  all_is_as_before(block_);
}

TEST_F(MapperRefused, a_refused_map_leaves_nothing_mapped_and_gives_all_frames_back) {
  for (const int passing : {0, 1, 2}) {
    Mapping mapping = claim(block_);
    calls();
    gpu_.passes["cuMemMap"] = passing;
    gpu_.refusals["cuMemMap"] = 1;
    const Result<void> refused = mapper_.map_apart(lock_, mapping);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::driver);
    EXPECT_EQ(refused.error().text.find("cuMemMap"), 0u) << refused.error().text;
    EXPECT_TRUE(mapping.parts.empty());
    all_is_as_before(block_);
    EXPECT_EQ(calls(), passing == 0   ? Calls{}
                       : passing == 1 ? (Calls{"map 0+2", "unmap 0+2"})
                                      : (Calls{"map 0+2", "map 2+2", "unmap 0+4"}));
  }
}

TEST_F(MapperRefused, access_that_is_refused_does_likewise_with_all_that_was_mapped_before) {
  block_.spans[1].coming = true;  // (another thread's)
  Mapping mapping = Mapper::claim(block_, *frames_.take(frames_.reserve(3), span_granules),
                                  3 * granule_pages);
  block_.spans[1].coming = false;
  calls();
  gpu_.passes["cuMemSetAccess"] = 1;
  gpu_.refusals["cuMemSetAccess"] = 1;
  const Result<void> refused = mapper_.map_apart(lock_, mapping);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().text.find("cuMemSetAccess"), 0u) << refused.error().text;
  EXPECT_EQ(calls(), (Calls{"map 0+2", "open 0+2 for 0", "map 4+1", "unmap 4+1", "unmap 0+2"}));
  EXPECT_EQ(mapper_.maps(), 1u);
  all_is_as_before(block_);
}

TEST_F(MapperRefused, a_refused_unmap_is_tried_again) {
  map(block_);
  calls();
  gpu_.refusals["cuMemUnmap"] = 2;
  unmap(block_);
  EXPECT_EQ(calls(), Calls{"unmap 0+5"});
  EXPECT_FALSE(health_.dead());
  all_is_as_before(block_);
}

TEST_F(MapperRefused, an_unmap_that_stays_refused_ends_the_device_and_no_mark_is_left) {
  map(block_);
  gpu_.refusals["cuMemUnmap"] = 3;
  unmap(block_);
  EXPECT_TRUE(health_.dead());
  EXPECT_EQ(block_.going, 0u);
  EXPECT_EQ(mapper_.going_granules(), 0u);
  // From here on the driver is not called.
  Mapping mapping = claim(block_);
  calls();
  EXPECT_EQ(mapper_.map_apart(lock_, mapping).error().text, health_.error().text);
  EXPECT_EQ(block_.coming, 0u);
  EXPECT_FALSE(mapper_.map(uint64_t{3} << 40, {Frame{1, 1}}));
  EXPECT_FALSE(mapper_.provide(lock_, {0, 64, 0}, frames_.reserve(1)));
  mapper_.unmap(uint64_t{3} << 40, {Frame{1, 1}});
  EXPECT_EQ(calls(), Calls{});
}

TEST_F(MapperRefused, a_refusal_for_good_is_not_tried_again) {
  map(block_);
  (void)mapper_.give_up(block_);
  calls();
  gpu_.refused_with = CUDA_ERROR_ILLEGAL_ADDRESS;
  gpu_.refusals["cuMemUnmap"] = 1;
  EXPECT_EQ(mapper_.unmap_next(lock_, UINT64_MAX), &block_);
  EXPECT_EQ(calls(), Calls{});
  EXPECT_TRUE(health_.dead());
}

TEST_F(MapperRefused, what_was_given_up_on_a_device_that_dies_is_not_unmapped) {
  map(block_);
  (void)mapper_.give_up(block_);
  calls();
  health_.end("cuStreamQuery", CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(mapper_.unmap_next(lock_, UINT64_MAX), &block_);
  EXPECT_EQ(calls(), Calls{});
  EXPECT_EQ(block_.going, 0u);
}

TEST_F(MapperRefused, a_refusal_to_unmap_at_once_ends_the_device_too) {
  gpu_.refusals["cuMemUnmap"] = 3;
  mapper_.unmap(uint64_t{3} << 40, {Frame{1, 1}});
  EXPECT_TRUE(health_.dead());
}

TEST_F(MapperRefused, memory_in_no_span_is_mapped_at_once_or_not_at_all) {
  const uint64_t at = uint64_t{3} << 40;
  std::vector<Frame> frames = *frames_.take(frames_.reserve(3), span_granules);
  calls();
  ASSERT_TRUE(mapper_.map(at, frames));
  mapper_.unmap(at, frames);
  EXPECT_EQ(calls(), (Calls{"map 0+2", "map 2+1", "open 0+3 for 0", "unmap 0+3"}));
  EXPECT_EQ(mapper_.maps(), 2u);
  EXPECT_EQ(mapper_.unmaps(), 2u);
  gpu_.passes["cuMemMap"] = 1;
  gpu_.refusals["cuMemMap"] = 1;
  EXPECT_FALSE(mapper_.map(at, frames));
  EXPECT_EQ(calls(), (Calls{"map 0+2", "unmap 0+2"}));
  gpu_.refusals["cuMemSetAccess"] = 1;
  EXPECT_FALSE(mapper_.map(at, frames));
  EXPECT_EQ(calls(), (Calls{"map 0+2", "map 2+1", "unmap 0+3"}));
  gpu_.refusals["cuMemMap"] = 1;
  EXPECT_FALSE(mapper_.map(at, frames));
  EXPECT_EQ(calls(), Calls{});
  frames_.give(frames);
}

TEST_F(MapperRefused, a_peer_that_comes_meanwhile_gets_all_that_is_mapped_or_there_is_nothing) {
  const auto both = [this] {
    block_.spans[1].coming = true;  // (another thread's)
    Mapping mapping = Mapper::claim(block_, *frames_.take(frames_.reserve(3), span_granules),
                                    3 * granule_pages);
    block_.spans[1].coming = false;
    calls();
    return mapping;
  };
  Mapping mapping = both();
  come(3);
  ASSERT_TRUE(mapper_.map_apart(lock_, mapping));
  EXPECT_EQ(calls(), (Calls{"map 0+2", "open 0+2 for 0", "map 4+1", "open 4+1 for 0",
                            "open 0+2 for 3", "open 4+1 for 3"}));
  mapper_.undo(mapping);
  mapping = both();
  come(4);
  gpu_.passes["cuMemSetAccess"] = 2;
  gpu_.refusals["cuMemSetAccess"] = 1;
  EXPECT_FALSE(mapper_.map_apart(lock_, mapping));
  EXPECT_EQ(calls(), (Calls{"map 0+2", "open 0+2 for 0 for 3", "map 4+1", "open 4+1 for 0 for 3",
                            "unmap 0+2", "unmap 4+1"}));
  all_is_as_before(block_);
  mapping = both();
  come(5);
  gpu_.passes["cuMemMap"] = 1;
  gpu_.refusals["cuMemMap"] = 1;
  EXPECT_FALSE(mapper_.map_apart(lock_, mapping));
  EXPECT_EQ(calls(), (Calls{"map 0+2", "open 0+2 for 0 for 3 for 4", "unmap 0+2"}));
  all_is_as_before(block_);
}

TEST_F(MapperRefused, after_a_refusal_nothing_is_mapped_ahead_for_a_while) {
  EXPECT_TRUE(mapper_.may_map_ahead());
  mapper_.refused();
  clock_.now += pause_ns;
  EXPECT_FALSE(mapper_.may_map_ahead());
  clock_.now += 1;
  EXPECT_TRUE(mapper_.may_map_ahead());
}

}  // namespace
