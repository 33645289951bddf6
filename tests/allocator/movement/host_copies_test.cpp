// Which copies in host memory give way, and in which order they are written.
#include "allocator/movement/host_copies.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "allocator/movement/host_use.h"
#include "tests/allocator/blocks/block_word_inspector.h"
#include "tests/allocator/fake_gpu.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr size_t piece_bytes = 2u << 20;
constexpr uint64_t never = UINT64_MAX;

class HostCopiesTest : public ::testing::Test {
 protected:
  /// A block of one piece with a copy in host memory, away or on the device.
  struct Where {
    uint64_t next_use = never, next_change = never;
    bool on_device = false, in_store = false;
  };
  PieceRef block(const Where& where) {
    Block& block = blocks_.emplace_back();
    block.pages = granule_pages;
    block.next_use = where.next_use;
    block.next_change = where.next_change;
    Piece piece;
    piece.bytes = piece_bytes;
    piece.on_device = where.on_device;
    piece.host = host_.acquire(piece_bytes);
    piece.host_valid = true;
    if (where.in_store) piece.slot = Slot{1};
    piece.slot_valid = where.in_store;
    block.pieces.push_back(piece);
    set_state(block, where.on_device ? State::resident : State::hosted);
    const PieceRef ref = piece_ref(block, 0);
    where.in_store ? copies_.stored(ref) : copies_.arrived(ref);
    return ref;
  }
  static void set_state(Block& block, State state) {
    BlockWordInspector::put(block.word, static_cast<uint64_t>(state));
  }
  static bool has_copy(const PieceRef& ref) {
    EXPECT_EQ(piece_of(ref).host != nullptr, piece_of(ref).host_valid);
    return piece_of(ref).host != nullptr;
  }
  ~HostCopiesTest() override {
    for (Block& block : blocks_)
      for (Piece& piece : block.pieces)
        if (piece.host) copies_.drop(piece);
    EXPECT_EQ(host_.used(), 0u);
  }

  FakeGpu gpu_;
  HostTier host_{gpu_.driver(), nullptr, 4 * piece_bytes, nullptr, 0, true};
  HostCopies copies_{host_};
  std::deque<Block> blocks_;
};

/// The processor may change it at any moment.
TEST_F(HostCopiesTest, what_is_being_written_in_host_memory_is_not_written_to_the_store) {
  const PieceRef ref = block({});
  HostUse reads{*ref.block, false, {}}, writes{*ref.block, true, {}};
  ref.block->at_host = &reads;
  EXPECT_TRUE(HostCopies::is_unwritten(ref));
  ref.block->at_host = &writes;
  EXPECT_FALSE(HostCopies::is_unwritten(ref));
  ref.block->at_host = nullptr;
  EXPECT_TRUE(HostCopies::is_unwritten(ref));
}

TEST_F(HostCopiesTest, writes_come_in_the_order_of_arrival_and_a_failed_one_is_the_next_again) {
  const PieceRef first = block({}), second = block({});
  auto next = copies_.next_by_arrival();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->block, first.block);
  copies_.put_back(first);
  EXPECT_EQ(copies_.next_by_arrival()->block, first.block);
  EXPECT_EQ(copies_.next_by_arrival()->block, second.block);
  EXPECT_FALSE(copies_.next_by_arrival());
}

TEST_F(HostCopiesTest, nothing_is_written_for_a_block_that_was_freed_or_written_or_is_on_its_way) {
  const PieceRef freed = block({}), changed = block({}), writing = block({}), left = block({});
  ++freed.block->generation;
  ++changed.block->version;
  piece_of(writing).slot = Slot{7};
  EXPECT_EQ(copies_.next_by_arrival()->block, left.block);
  EXPECT_FALSE(copies_.next_by_arrival());
}

TEST_F(HostCopiesTest, by_use_what_is_used_last_is_written_first) {
  const PieceRef soon = block({.next_use = 5}), late = block({.next_use = 50}),
                 between = block({.next_use = 20});
  EXPECT_EQ(copies_.next_by_use()->block, late.block);
  EXPECT_EQ(copies_.next_by_use()->block, between.block);
  EXPECT_EQ(copies_.next_by_use()->block, soon.block);
  EXPECT_FALSE(copies_.next_by_use());
}

TEST_F(HostCopiesTest, a_copy_whose_bytes_are_nowhere_else_never_gives_way) {
  const PieceRef away = block({.next_use = never});
  copies_.stored(away);  // it was, once: its slot has gone since
  copies_.returned(away);
  EXPECT_FALSE(copies_.drop_stored());
  EXPECT_FALSE(copies_.drop_used_after(0, never));
  EXPECT_FALSE(copies_.drop_resident());
  EXPECT_FALSE(copies_.drop_returned(0));
  copies_.stored(away);
  copies_.returned(away);
  for (int i = 0; i < 3; ++i) (void)block({});
  EXPECT_EQ(copies_.staging(piece_bytes, 0, {uint64_t{0}, true}), nullptr);
  EXPECT_TRUE(has_copy(away));
}

TEST_F(HostCopiesTest, of_those_in_the_store_the_one_used_last_gives_way_and_none_used_sooner) {
  const PieceRef soon = block({.next_use = 5, .in_store = true}),
                 late = block({.next_use = 50, .in_store = true});
  EXPECT_FALSE(copies_.drop_used_after(50, 0));
  EXPECT_TRUE(copies_.drop_used_after(40, 0));
  EXPECT_FALSE(has_copy(late));
  EXPECT_FALSE(copies_.drop_used_after(40, 0));
  EXPECT_TRUE(has_copy(soon));
}

TEST_F(HostCopiesTest, what_is_on_the_device_until_its_use_gives_way_before_what_is_used_later) {
  const PieceRef there = block({.next_use = 5, .on_device = true, .in_store = true}),
                 late = block({.next_use = 50, .in_store = true});
  EXPECT_TRUE(copies_.drop_used_after(0, 10));
  EXPECT_FALSE(has_copy(there));
  EXPECT_TRUE(has_copy(late));
}

TEST_F(HostCopiesTest, names_that_are_out_of_date_free_nothing) {
  const PieceRef freed = block({.in_store = true}), changed = block({.in_store = true}),
                 unwritten = block({.on_device = true});
  ++freed.block->generation;
  ++changed.block->version;
  copies_.returned(freed);
  copies_.returned(changed);
  ++unwritten.block->version;
  EXPECT_FALSE(copies_.drop_used_after(0, never));
  EXPECT_FALSE(copies_.drop_returned(never));
  EXPECT_FALSE(copies_.drop_resident());
  copies_.stored(freed);
  copies_.stored(changed);
  EXPECT_FALSE(copies_.drop_stored());
  for (const PieceRef& ref : {freed, changed, unwritten}) EXPECT_NE(piece_of(ref).host, nullptr);
}

TEST_F(HostCopiesTest, a_copy_that_something_else_holds_is_dropped_in_no_way) {
  const PieceRef there = block({.next_change = 5, .on_device = true}),
                 closing = block({.on_device = true, .in_store = true});
  for (const PieceRef& ref : {there, closing}) host_.ref(piece_of(ref).host);
  copies_.returned(there);
  EXPECT_FALSE(copies_.drop_returned(10));
  EXPECT_FALSE(copies_.drop_resident());
  ASSERT_TRUE(host_.close_one());
  std::vector<Block*> live{there.block, closing.block};
  copies_.drop_closed(live);
  for (const PieceRef& ref : {there, closing}) {
    EXPECT_TRUE(has_copy(ref));
    host_.unref(piece_of(ref).host);
  }
}

TEST_F(HostCopiesTest, a_copy_in_a_region_that_stays_is_not_dropped_with_another) {
  const PieceRef stored = block({.in_store = true});
  std::vector<Block*> live{stored.block};
  copies_.drop_closed(live);  // none is closed
  EXPECT_TRUE(has_copy(stored));
}

TEST_F(HostCopiesTest, a_copy_that_is_on_its_way_somewhere_stays_and_is_asked_again) {
  const PieceRef busy = block({.in_store = true});
  host_.ref(piece_of(busy).host);
  EXPECT_FALSE(copies_.drop_stored());
  EXPECT_FALSE(copies_.drop_used_after(0, 0));
  host_.unref(piece_of(busy).host);
  set_state(*busy.block, State::faulting);  // and not there yet
  EXPECT_FALSE(copies_.drop_stored());
  set_state(*busy.block, State::hosted);
  EXPECT_TRUE(copies_.drop_stored());
  EXPECT_FALSE(has_copy(busy));
}

TEST_F(HostCopiesTest, what_returned_gives_way_if_it_stays_until_it_changes) {
  const PieceRef read = block({.next_change = 5, .on_device = true}),
                 late = block({.next_change = 50, .on_device = true}),
                 arriving = block({.next_change = 5, .on_device = true});
  for (const PieceRef& ref : {late, arriving, read}) copies_.returned(ref);
  set_state(*arriving.block, State::faulting);  // the device's copy may go once more
  EXPECT_TRUE(copies_.drop_returned(10));
  EXPECT_FALSE(has_copy(read));
  EXPECT_TRUE(has_copy(late));
  EXPECT_TRUE(has_copy(arriving));
  EXPECT_FALSE(copies_.drop_returned(10));
}

TEST_F(HostCopiesTest, staging_takes_what_is_used_last_and_the_device_s_only_where_it_may) {
  const PieceRef soon = block({.next_use = 5, .in_store = true}),
                 late = block({.next_use = 50, .in_store = true}),
                 there = block({.on_device = true}), away = block({});
  Staging* staging = copies_.staging(piece_bytes, 0, {uint64_t{0}, false});
  ASSERT_NE(staging, nullptr);
  EXPECT_FALSE(has_copy(late));
  host_.unref(staging);
  std::vector<Staging*> taken;
  for (int i = 0; i < 2; ++i)  // late's, and soon's
    taken.push_back(copies_.staging(piece_bytes, 0, {std::nullopt, false}));
  EXPECT_EQ(copies_.staging(piece_bytes, 0, {std::nullopt, false}), nullptr);
  EXPECT_TRUE(has_copy(there));
  taken.push_back(copies_.staging(piece_bytes, 0, {std::nullopt, true}));
  EXPECT_FALSE(has_copy(soon));
  EXPECT_FALSE(has_copy(there));
  EXPECT_TRUE(has_copy(away));
  for (Staging* one : taken) {
    ASSERT_NE(one, nullptr);
    host_.unref(one);
  }
}

/// They would be made anew, and dropped anew, for ever.
TEST_F(HostCopiesTest, the_device_s_copies_stay_where_all_of_them_are_too_little) {
  const PieceRef away = block({}), here = block({.on_device = true});
  EXPECT_FALSE(copies_.staging(4 * piece_bytes, 0, {std::nullopt, true}));
  EXPECT_TRUE(has_copy(away) && has_copy(here));
  EXPECT_FALSE(copies_.staging(3 * piece_bytes, piece_bytes, {std::nullopt, true}));
  EXPECT_TRUE(has_copy(here));
  Staging* staging = copies_.staging(3 * piece_bytes, 0, {std::nullopt, true});
  EXPECT_TRUE(staging && !has_copy(here));
  if (staging) host_.unref(staging);
}

TEST_F(HostCopiesTest, many_names_that_are_out_of_date_do_not_pile_up) {
  const PieceRef ref = block({});
  for (int i = 0; i < 100'000; ++i) {
    ++ref.block->version;  // written and copied out again
    copies_.arrived(piece_ref(*ref.block, 0));
    copies_.returned(piece_ref(*ref.block, 0));
  }
  EXPECT_LT(copies_.unwritten(), 3000u);
  EXPECT_LT(copies_.returned(), 3000u);
  EXPECT_EQ(copies_.next_by_arrival()->version, ref.block->version);
  EXPECT_FALSE(copies_.next_by_arrival());
}

TEST_F(HostCopiesTest, a_region_that_is_given_back_loses_what_is_valid_elsewhere) {
  const PieceRef stored = block({.in_store = true}), there = block({.on_device = true}),
                 only = block({}), arriving = block({.in_store = true});
  set_state(*arriving.block, State::faulting);
  ASSERT_TRUE(host_.close_one());
  std::vector<Block*> live;
  for (Block& each : blocks_) live.push_back(&each);
  copies_.drop_closed(live);
  EXPECT_FALSE(has_copy(stored));
  EXPECT_FALSE(has_copy(there));
  EXPECT_TRUE(has_copy(only));
  EXPECT_TRUE(has_copy(arriving));
}

}  // namespace
