// Mapper by itself: spans are claimed, mapped and unmapped, and opened to peers.
#include "tests/allocator/movement/mapper_fixture.h"

#include <map>

using namespace firn;
using namespace firn::test;

namespace {

TEST_F(MapperTest, spans_side_by_side_are_opened_and_unmapped_in_one_call) {
  block_.generation = 7;
  Mapping mapping = claim(block_);
  EXPECT_EQ(mapping.block, &block_);
  EXPECT_EQ(mapping.generation, 7u);
  EXPECT_EQ(block_.coming, block_.pages);
  EXPECT_EQ(mapping.parts.size(), 3u);
  ASSERT_TRUE(mapper_.map_apart(lock_, mapping));
  EXPECT_EQ(block_.coming, 0u);
  EXPECT_EQ(block_.mapped, 0u);
  Mapper::install(mapping);
  EXPECT_EQ(block_.mapped, block_.pages);
  EXPECT_EQ(block_.device, block_.pages);
  EXPECT_EQ(calls(), (Calls{"create", "create", "create", "map 0+2", "map 2+2", "map 4+1",
                            "open 0+5 for 0"}));
  EXPECT_EQ(mapper_.maps(), 3u);

  EXPECT_TRUE(mapper_.give_up(block_));
  EXPECT_EQ(block_.mapped, 0u);
  EXPECT_EQ(block_.device, 0u);
  EXPECT_EQ(block_.going, block_.pages);
  EXPECT_TRUE(mapper_.unmapping());
  EXPECT_EQ(mapper_.unmappings_due(), 1u);
  EXPECT_EQ(mapper_.going_granules(), 5u);
  EXPECT_EQ(mapper_.in_hand().granules, 5u);
  EXPECT_EQ(frames_.free_granules(), 0u);
  EXPECT_FALSE(mapper_.give_up(block_));
  EXPECT_EQ(mapper_.unmap_next(lock_, UINT64_MAX), &block_);
  EXPECT_EQ(calls(), Calls{"unmap 0+5"});
  EXPECT_EQ(mapper_.unmaps(), 3u);
  EXPECT_EQ(mapper_.spans_given_up(), 3u);
  EXPECT_EQ(mapper_.going_granules(), 0u);
  EXPECT_EQ(mapper_.unmap_next(lock_, UINT64_MAX), nullptr);
  all_is_as_before(block_);
}

TEST_F(MapperTest, what_is_not_side_by_side_is_mapped_and_unmapped_apart) {
  map(block_);
  block_.pieces.resize(3);
  for (size_t i = 0; i < 3; ++i) block_.pieces[i].offset = i * span_granules * granule_bytes;
  mapper_.give_up(block_, 1, 2);
  EXPECT_TRUE(block_.pieces[0].on_device && block_.pieces[2].on_device);
  EXPECT_FALSE(block_.pieces[1].on_device);
  EXPECT_EQ(mapper_.unmap_next(lock_, block_), &block_);
  calls();
  EXPECT_TRUE(mapper_.give_up(block_));
  EXPECT_EQ(mapper_.unmappings_due(), 2u);
  while (mapper_.unmap_next(lock_, UINT64_MAX)) continue;
  EXPECT_EQ(calls(), (Calls{"unmap 0+2", "unmap 4+1"}));

  map(block_);
  mapper_.give_up(block_, 0, 1);
  mapper_.give_up(block_, 2, 3);
  while (mapper_.unmap_next(lock_, UINT64_MAX)) continue;
  calls();
  map(block_);
  EXPECT_EQ(calls(), (Calls{"map 0+2", "open 0+2 for 0", "map 4+1", "open 4+1 for 0"}));
  unmap(block_);
}

TEST_F(MapperTest, a_claim_is_of_the_first_spans_that_nobody_has_marked) {
  Result<Mapping> first = mapper_.claim(block_, 2 * granule_pages, frames_.reserve(2));
  ASSERT_TRUE(first);
  EXPECT_TRUE(block_.spans[0].coming);
  EXPECT_FALSE(block_.spans[1].coming);
  Result<Mapping> second = mapper_.claim(block_, 3 * granule_pages, frames_.reserve(3));
  ASSERT_TRUE(second);
  ASSERT_EQ(second->parts.size(), 2u);
  EXPECT_EQ(second->parts[0].span, 1u);
  EXPECT_EQ(block_.coming, block_.pages);
  mapper_.drop(*first);
  EXPECT_EQ(block_.coming, 3 * granule_pages);
  mapper_.drop(*second);
  all_is_as_before(block_);
}

TEST_F(MapperTest, a_claim_passes_over_what_is_being_unmapped) {
  map(block_);
  mapper_.give_up(block_, 2, 3);
  (void)mapper_.unmap_next(lock_, UINT64_MAX);
  mapper_.give_up(block_, 0, 1);
  Result<Mapping> mapping = mapper_.claim(block_, granule_pages, frames_.reserve(1));
  ASSERT_TRUE(mapping);
  ASSERT_EQ(mapping->parts.size(), 1u);
  EXPECT_EQ(mapping->parts[0].span, 2u);
  mapper_.drop(*mapping);
  unmap(block_);
}

TEST_F(MapperTest, a_claim_of_more_or_less_than_its_frames_aborts) {
  EXPECT_DEATH((void)Mapper::claim(other_, {Frame{1, 2}, Frame{2, 1}}, 4 * granule_pages),
               "32 pages too many");
  EXPECT_DEATH((void)Mapper::claim(other_, {Frame{1, 2}, Frame{2, 1}, Frame{3, 1}}, other_.pages),
               "pages too many");
  EXPECT_DEATH((void)Mapper::claim(other_, {Frame{1, 2}}, other_.pages), "frames end in a span");
  EXPECT_DEATH((void)Mapper::claim(other_, {Frame{1, 3}}, other_.pages), "a frame across spans");
  EXPECT_DEATH((void)Mapper::claim(other_, {Frame{1, 1}}, granule_pages), "32 pages wanted|left");
}

/// Another thread finds this while the driver is called.
struct Found {
  bool free, mapping, unmapping;
  uint64_t in_hand;
};

TEST_F(MapperTest, the_lock_is_free_while_the_driver_makes_maps_opens_and_unmaps) {
  std::map<std::string, Found> found;
  gpu_.beside = [&](const std::string& call) {
    found[call] = std::async(std::launch::async, [this] {
                    Mapper::Lock lock(mutex_, std::defer_lock);
                    if (!lock.try_lock()) return Found{};
                    return Found{true, mapper_.mapping(), mapper_.unmapping(),
                                 mapper_.in_hand().granules};
                  }).get();
  };
  Reservation room = frames_.reserve(5);
  ASSERT_TRUE(mapper_.provide(lock_, {0, 5, 0}, room));
  EXPECT_TRUE(found["create"].free && found["create"].mapping);
  EXPECT_EQ(frames_.free_granules(), 5u);
  found.clear();
  Result<Mapping> mapping = mapper_.claim(block_, block_.pages, std::move(room));
  ASSERT_TRUE(mapping);
  EXPECT_TRUE(found.empty()) << "the frames were there";
  ASSERT_TRUE(mapper_.map_apart(lock_, *mapping));
  EXPECT_TRUE(lock_.owns_lock());
  for (const char* call : {"map", "open"}) {
    EXPECT_TRUE(found[call].free && found[call].mapping) << call;
    EXPECT_EQ(found[call].in_hand, 5u) << call;
  }
  EXPECT_FALSE(mapper_.mapping());
  Mapper::install(*mapping);
  unmap(block_);
  EXPECT_TRUE(lock_.owns_lock());
  EXPECT_TRUE(found["unmap"].free && found["unmap"].unmapping);
  EXPECT_EQ(found["unmap"].in_hand, 5u);
  all_is_as_before(block_);

  // Memory in no span is mapped under the lock.
  found.clear();
  std::vector<Frame> frames = *frames_.take(frames_.reserve(1));
  ASSERT_TRUE(mapper_.map(uint64_t{3} << 40, frames));
  mapper_.unmap(uint64_t{3} << 40, frames);
  for (const char* call : {"map", "open", "unmap"}) {
    ASSERT_TRUE(found.contains(call));
    EXPECT_FALSE(found[call].free) << call;
  }
  frames_.give(frames);
}

TEST_F(MapperTest, frames_are_made_only_where_the_room_is_enough) {
  EXPECT_TRUE(mapper_.provide(lock_, {0, 5, 0}, frames_.reserve(4)));
  EXPECT_EQ(calls(), Calls{});
  Reservation room = frames_.reserve(5);
  gpu_.refusals["cuMemCreate"] = 1;
  EXPECT_FALSE(mapper_.provide(lock_, {0, 5, 0}, room));
  ASSERT_TRUE(mapper_.provide(lock_, {0, 5, 0}, room));
  EXPECT_EQ(calls(), (Calls{"create", "create", "create"}));
  EXPECT_TRUE(mapper_.provide(lock_, {0, 5, 0}, room));
  EXPECT_EQ(calls(), Calls{});
}

TEST_F(MapperTest, a_block_that_was_freed_meanwhile_leaves_nothing_mapped) {
  Mapping mapping = claim(block_);
  calls();
  ASSERT_TRUE(mapper_.map_apart(lock_, mapping));
  mapper_.undo(mapping);
  EXPECT_EQ(calls(), (Calls{"map 0+2", "map 2+2", "map 4+1", "open 0+5 for 0", "unmap 0+2",
                            "unmap 2+2", "unmap 4+1"}));
  all_is_as_before(block_);
}

TEST_F(MapperTest, claims_that_are_due_come_in_order_or_are_dropped) {
  Block born[2];
  make(born[0], 4, 2);
  make(born[1], 5, 2);
  const auto add = [&](Block& block, bool birth) {
    Mapping mapping = claim(block);
    mapping.birth = birth;
    mapper_.add(std::move(mapping));
  };
  add(born[0], true);
  add(block_, false);
  add(born[1], true);
  add(other_, false);
  EXPECT_EQ(mapper_.mappings_due(), 4u);
  EXPECT_EQ(mapper_.claimed_bytes(), 8 * granule_bytes);
  EXPECT_EQ(mapper_.in_hand().granules, 12u);
  mapper_.drop_claims(block_);
  EXPECT_EQ(block_.coming, 0u);
  EXPECT_EQ(other_.coming, other_.pages);
  EXPECT_EQ(mapper_.claimed_bytes(), 3 * granule_bytes);
  EXPECT_EQ(mapper_.drop_birth(), &born[0]);
  EXPECT_EQ(mapper_.drop_birth(), &born[1]);
  EXPECT_EQ(mapper_.drop_birth(), nullptr);
  EXPECT_EQ(born[1].coming, 0u);
  add(block_, false);
  std::optional<Mapping> next = mapper_.next();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->block, &other_);
  EXPECT_EQ(mapper_.mappings_due(), 1u);
  mapper_.drop(*next);
  add(other_, false);
  mapper_.drop_claims();
  EXPECT_EQ(mapper_.mappings_due(), 0u);
  EXPECT_FALSE(mapper_.next());
  all_is_as_before(block_);
  all_is_as_before(other_);
}

TEST_F(MapperTest, the_oldest_spans_go_first_until_enough_is_available) {
  map(block_);
  map(other_);
  frames_.set_budget(8 * granule_bytes);
  (void)mapper_.give_up(other_);
  (void)mapper_.give_up(block_);
  EXPECT_EQ(mapper_.unmap_next(lock_, 0), nullptr);
  EXPECT_EQ(mapper_.unmap_next(lock_, 1), &other_);
  EXPECT_EQ(mapper_.unmap_next(lock_, 3), nullptr);
  EXPECT_EQ(mapper_.going_granules(), 5u);
  EXPECT_EQ(mapper_.unmap_next(lock_, other_), nullptr);
  EXPECT_EQ(mapper_.unmap_next(lock_, 4), &block_);
  map(block_);
  map(other_);
  (void)mapper_.give_up(other_);
  (void)mapper_.give_up(block_);
  EXPECT_EQ(mapper_.unmap_next(lock_, block_), &block_);
  EXPECT_EQ(block_.going, 0u);
  EXPECT_EQ(other_.going, other_.pages);
  EXPECT_EQ(mapper_.unmap_next(lock_, UINT64_MAX), &other_);
}

TEST_F(MapperTest, parts_of_shared_frames_are_counted_by_their_pages) {
  Block one, two;
  for (auto [block, number] : {std::pair(&one, 6), std::pair(&two, 7)}) {
    block->shape = frames_.shared().shape(granule_pages / 2);
    block->pages = granule_pages / 2;
    block->address = (static_cast<uint64_t>(number) << 40) + block->shape.offset();
    make_spans(*block, span_granules);
    Result<Mapping> claimed = mapper_.claim(*block, block->pages,
                                            frames_.reserve(frames_.granules_for(block->shape)));
    ASSERT_TRUE(claimed);
    EXPECT_EQ(claimed->parts.size(), 1u);
    ASSERT_TRUE(mapper_.map_apart(lock_, *claimed));
    Mapper::install(*claimed);
  }
  EXPECT_EQ(calls(), (Calls{"create", "map 0+1", "open 0+1 for 0", "map 0+1", "open 0+1 for 0"}));
  (void)mapper_.give_up(one);
  EXPECT_EQ(mapper_.in_hand().shared_pages, granule_pages / 2);
  EXPECT_EQ(mapper_.going_granules(), 0u) << "the other block is in it";
  (void)mapper_.give_up(two);
  EXPECT_EQ(mapper_.going_granules(), 1u);
  EXPECT_EQ(mapper_.unmap_next(lock_, UINT64_MAX), &one);
  EXPECT_EQ(mapper_.unmap_next(lock_, UINT64_MAX), &two);
  EXPECT_EQ(mapper_.going_granules(), 0u);
  EXPECT_EQ(frames_.free_granules(), 1u);
}

TEST_F(MapperTest, host_memory_in_a_span_is_not_on_the_device) {
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(gpu_.driver().mem_create(&handle, 3 * granule_bytes, nullptr, 0), CUDA_SUCCESS);
  Mapping mapping = Mapper::claim(other_, {Frame{handle, 2, true}, Frame{handle, 1, true}},
                                  other_.pages);
  ASSERT_TRUE(mapper_.map_apart(lock_, mapping));
  Mapper::install(mapping);
  EXPECT_EQ(other_.mapped, other_.pages);
  EXPECT_EQ(other_.device, 0u);
  EXPECT_TRUE(other_.word.load() & word::zero_copy);
  mapper_.give_up(other_, 0, 1);
  EXPECT_TRUE(other_.word.load() & word::zero_copy) << "the second span is in host memory still";
  mapper_.give_up(other_, 1, 2);
  EXPECT_FALSE(other_.word.load() & word::zero_copy);
  EXPECT_EQ(mapper_.going_granules(), 0u);
  EXPECT_EQ(mapper_.in_hand().granules, 0u);
  unmap(other_);
  EXPECT_EQ(mapper_.going_granules(), 0u);
  ++gpu_.frames_live;  // (One handle served for both.)
  // A block that shares frames has one of its own in host memory, longer than it is.
  Block small;
  small.shape = {0xFFFF, 0, 0};
  small.pages = small.shape.pages();
  make_spans(small, span_granules);
  mapping = Mapper::claim(small, {Frame{handle, 1, true}}, small.pages);
  EXPECT_EQ(small.coming, small.pages);
}

TEST_F(MapperTest, memory_is_open_to_peers_before_and_after_they_are_known) {
  map(block_);
  calls();
  int walks = 0;
  const auto walk = [&](const Mapper::Open& open) -> Result<void> {
    ++walks;
    for (const Span& span : block_.spans)
      if (Result<void> opened = open(address_of(block_, span), bytes_at(block_, span)); !opened)
        return opened;
    return {};
  };
  gpu_.passes["cuMemSetAccess"] = 1;
  gpu_.refusals["cuMemSetAccess"] = 1;
  const Result<void> refused = mapper_.add_peer(3, walk);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().text.find("cuMemSetAccess for a peer"), 0u) << refused.error().text;
  EXPECT_EQ(calls(), Calls{"open 0+2 for 3"});
  ASSERT_TRUE(mapper_.add_peer(3, walk)) << "it was not added";
  EXPECT_EQ(calls(), (Calls{"open 0+2 for 3", "open 2+2 for 3", "open 4+1 for 3"}));
  ASSERT_TRUE(mapper_.add_peer(3, walk));
  ASSERT_TRUE(mapper_.add_peer(0, walk));
  EXPECT_EQ(walks, 2);
  unmap(block_);
  calls();
  map(other_);
  EXPECT_EQ(calls(), (Calls{"map 0+2", "map 2+1", "open 0+3 for 0 for 3"}));
  unmap(other_);
}

TEST_F(MapperTest, what_is_mapped_while_a_peer_comes_is_open_to_it_too) {
  Mapping mapping = claim(block_);
  calls();
  come(3);
  ASSERT_TRUE(mapper_.map_apart(lock_, mapping));
  EXPECT_EQ(calls(), (Calls{"map 0+2", "map 2+2", "map 4+1", "open 0+5 for 0", "open 0+5 for 3"}));
  Mapper::install(mapping);
  unmap(block_);
  // Where that is refused, nothing of it is mapped.
  mapping = claim(block_);
  calls();
  come(4);
  gpu_.passes["cuMemSetAccess"] = 1;
  gpu_.refusals["cuMemSetAccess"] = 1;
  const Result<void> refused = mapper_.map_apart(lock_, mapping);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().text.find("cuMemSetAccess for a peer"), 0u) << refused.error().text;
  EXPECT_EQ(calls(), (Calls{"map 0+2", "map 2+2", "map 4+1", "open 0+5 for 0 for 3",
                            "unmap 0+5"}));
  all_is_as_before(block_);
}

TEST_F(MapperTest, a_span_is_closed_and_opened_for_every_device) {
  map(block_);
  ASSERT_TRUE(mapper_.add_peer(3, [](const Mapper::Open&) { return Result<void>(); }));
  calls();
  ASSERT_TRUE(mapper_.set_access(block_, block_.spans[1], CU_MEM_ACCESS_FLAGS_PROT_READ));
  EXPECT_EQ(calls(), Calls{"open 2+2 for 0 for 3 to read"});
  gpu_.refusals["cuMemSetAccess"] = 2;
  ASSERT_TRUE(mapper_.set_access(block_, block_.spans[1], CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  EXPECT_EQ(calls(), Calls{"open 2+2 for 0 for 3"});
  gpu_.refusals["cuMemSetAccess"] = 3;
  EXPECT_FALSE(mapper_.set_access(block_, block_.spans[1], CU_MEM_ACCESS_FLAGS_PROT_READ));
  unmap(block_);
}

}  // namespace
