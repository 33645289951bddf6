// Size classes and the descriptor table.
#include "allocator/blocks/block.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "tests/allocator/blocks/block_word_inspector.h"

using namespace firn;

TEST(SizeClass, holds_what_was_asked_for_with_at_most_an_eighth_of_waste) {
  for (size_t bytes = 1; bytes <= size_class::small_most; bytes += bytes < 9000 ? 1 : 37) {
    unsigned c = size_class::of_small(bytes);
    ASSERT_LT(c, size_class::small_count) << bytes;
    size_t size = size_class::small_bytes(c);
    ASSERT_GE(size, bytes);
    ASSERT_LT(size - bytes, std::max<size_t>(512, bytes / 8 + 1)) << bytes;
    ASSERT_EQ(size % 512, 0u);
    ASSERT_EQ(size_class::of_small(size), c) << bytes;
  }
  EXPECT_EQ(size_class::of_small(0), 0u);
}

TEST(Spans, are_alike_but_for_the_last_and_have_the_pieces_that_lie_in_them) {
  Block block;
  block.address = uint64_t{1} << 40;
  block.pages = 5 * granule_pages;
  block.mapped = block.device = 7;
  make_spans(block, 2);
  ASSERT_EQ(block.spans.size(), 3u);
  EXPECT_EQ(block.mapped, 0u);
  EXPECT_EQ(block.device, 0u);
  for (const uint32_t i : {0u, 1u, 2u}) {
    EXPECT_EQ(block.spans[i].begin, i * 2 * granule_pages);
    EXPECT_EQ(block.spans[i].pages, (i < 2 ? 2 : 1) * granule_pages);
    EXPECT_EQ(address_of(block, block.spans[i]), block.address + i * 2 * granule_bytes);
    EXPECT_EQ(bytes_at(block, block.spans[i]), (i < 2 ? 2 : 1) * granule_bytes);
    EXPECT_TRUE(pieces_of(block, block.spans[i]).empty());
  }
  for (const uint64_t each : {granule_bytes, 2 * granule_bytes}) {
    block.pieces.clear();
    for (uint64_t offset = 0; offset < 7 * granule_bytes / 2; offset += each) {
      block.pieces.emplace_back();
      block.pieces.back().offset = offset;
    }
    for (const uint32_t i : {0u, 1u, 2u}) {
      const std::span<Piece> pieces = pieces_of(block, block.spans[i]);
      ASSERT_EQ(pieces.size(), i < 2 ? 2 * granule_bytes / each : 0);
      for (size_t at = 0; at < pieces.size(); ++at)
        EXPECT_EQ(pieces[at].offset, i * 2 * granule_bytes + at * each);
    }
  }
  block.pieces.resize(1);  // a block of which little was asked for
  EXPECT_EQ(pieces_of(block, block.spans[0]).size(), 1u);
  EXPECT_TRUE(pieces_of(block, block.spans[1]).empty());
}

TEST(Spans, a_block_that_shares_frames_has_one_in_whole_granules_of_addresses) {
  Block block;
  block.shape = {0, 1, 0xFFFF};
  block.pages = block.shape.pages();
  block.address = (uint64_t{1} << 40) + block.shape.offset();
  make_spans(block, 1);
  ASSERT_EQ(block.spans.size(), 1u);
  EXPECT_EQ(block.spans[0].pages, block.pages);
  EXPECT_EQ(address_of(block, block.spans[0]), uint64_t{1} << 40);
  EXPECT_EQ(bytes_at(block, block.spans[0]), 2 * granule_bytes);
}

TEST(SizeClass, large_ones_waste_at_most_a_sixteenth_below_32_MiB_and_are_each_its_own) {
  constexpr uint32_t most = 16 * granule_pages;
  std::map<unsigned, uint32_t> pages_of;
  uint32_t before = 0;
  for (size_t bytes = size_class::small_most + 1; bytes < 40u << 20; bytes += 12289) {
    const uint32_t pages = size_class::pages(bytes, most);
    const uint64_t exact = (bytes + page_bytes - 1) / page_bytes;
    ASSERT_GE(pages * page_bytes, bytes);
    ASSERT_GE(pages, before) << bytes;
    before = pages;
    ASSERT_TRUE((pages - exact) * 16 <= exact + 15 || bytes >= 32u << 20) << bytes;
    ASSERT_LE(pages, (exact + granule_pages - 1) / granule_pages * granule_pages) << bytes;
    ASSERT_EQ(size_class::pages(pages * page_bytes, most), pages) << bytes;
    const unsigned c = size_class::of_pages(pages);
    ASSERT_GE(c, size_class::small_count);
    ASSERT_LT(c, size_class::count);
    ASSERT_EQ(pages_of.emplace(c, pages).first->second, pages) << bytes;
  }
  EXPECT_GT(pages_of.size(), 60u);
}

TEST(SizeClass, large_ones_are_whole_granules_where_nothing_may_be_shared) {
  for (size_t bytes : {size_t{1} << 20, size_t{5} << 20, size_t{33} << 20})
    EXPECT_EQ(size_class::pages(bytes, 0) % granule_pages, 0u) << bytes;
  EXPECT_EQ(size_class::pages(5u << 20, 79), 96u);
  EXPECT_EQ(size_class::pages(5u << 20, 80), 80u);
  constexpr uint32_t most = size_class::whole_count * granule_pages;
  EXPECT_EQ(size_class::of_pages(most), size_class::small_count + size_class::whole_count - 1);
  EXPECT_EQ(size_class::of_pages(most + granule_pages), size_class::count);
}

TEST(BlockTable, gives_each_descriptor_once_and_again_after_recycling) {
  BlockTable table;
  std::set<Block*> seen;
  for (uint32_t i = 0; i < 3 * BlockTable::chunk; ++i) {
    Block* block = table.make();
    ASSERT_TRUE(seen.insert(block).second);
    ASSERT_EQ(&table[block->index], block);
  }
  Block* one = *seen.begin();
  table.recycle(one);
  EXPECT_EQ(table.make(), one);
}

namespace {
uint64_t mapped_bytes() {  // of the process
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}
}  // namespace

#ifndef __SANITIZE_ADDRESS__  // (which keeps what was freed for a while, and finds what was left)
TEST(BlockTable, gives_back_its_memory_and_its_descriptors) {
  constexpr uint64_t use_bytes = uint64_t{64} << 20;  // large enough to be a mapping of its own
  ::malloc_trim(0);  // or memory of the tests before is given back in the middle
  const uint64_t before = mapped_bytes();
  {
    BlockTable table;
    table.make()->more_uses.reserve(use_bytes / sizeof(Use));
    EXPECT_GE(mapped_bytes(), before + BlockTable::chunk * sizeof(Block) + use_bytes);
  }
  EXPECT_LT(mapped_bytes(), before + BlockTable::chunk * sizeof(Block));
}
#endif

TEST(BlockTable, has_no_more_where_the_system_has_no_memory) {
  BlockTable table;
  rlimit most{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &most), 0);
  const rlimit none{mapped_bytes(), most.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &none), 0);
  Block* block = table.make();
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &most), 0);
  EXPECT_EQ(block, nullptr);
  EXPECT_EQ(table.size(), 0u);
  EXPECT_TRUE(table.make());
}

TEST(Block, a_freed_block_takes_no_hold) {
  BlockTable table;
  Block& block = *table.make();
  BlockWordInspector::put(block.word, word::with_state(0, State::resident));
  EXPECT_TRUE(hold_live(block));
  EXPECT_EQ(word::holds(block.word.load()), 1u);
  // Freed while held: its end comes with the last hold that was there, and waits for no other.
  block.word.set(word::freed);
  EXPECT_FALSE(hold_live(block));
  EXPECT_EQ(word::holds(block.word.load()), 1u);
  BlockWordInspector::put(block.word, word::with_state(word::small, State::resident));
  EXPECT_FALSE(hold_live(block));
  for (State state : {State::free, State::ready, State::spilling, State::hosted, State::spilled,
                      State::faulting, State::draining, State::lost}) {
    BlockWordInspector::put(block.word, word::with_state(0, state));
    EXPECT_FALSE(hold_live(block)) << state_names[static_cast<int>(state)];
  }
}

/// Another thread changes the word all the time: exchanges are lost.
class ContendedWord : public ::testing::Test {
 protected:
  ContendedWord() : block_(*table_.make()), other_([this] { change(); }) {
    transit_own(block_, Event::allocate, 0);
    while (changes_ == 0) std::this_thread::yield();
  }
  ~ContendedWord() override {
    ended_ = true;
    other_.join();
  }
  void change() {
    while (block_.state() != State::resident) std::this_thread::yield();
    while (!ended_) {
      for (int i = 0; i < 32; ++i) {
        block_.word.set(word::zero_copy);
        block_.word.clear(word::zero_copy);
      }
      changes_ += 64;
    }
  }
  /// So many rounds, and more where the other thread had no processor for a while.
  bool more(int round) const { return round < 4'000'000 || changes_ < 16'000'000; }
  BlockTable table_;
  Block& block_;
  std::atomic<bool> ended_{false};
  std::atomic<uint64_t> changes_{0};
  std::thread other_;
};

TEST_F(ContendedWord, a_transition_is_made_at_last) {
  for (int i = 0; more(i); ++i) {
    transit(block_, Event::spill);
    ASSERT_EQ(block_.state(), State::spilling) << i;
    transit(block_, Event::keep);
    ASSERT_EQ(block_.state(), State::resident) << i;
  }
}

TEST_F(ContendedWord, a_hold_is_counted_at_last) {
  for (int i = 0; more(i); ++i) {
    ASSERT_TRUE(hold_live(block_));
    ASSERT_EQ(word::holds(block_.word.load()), 1u) << i;
    block_.word.drop_hold();
  }
}

TEST(BlockWord, what_begins_with_try_fails_where_the_word_is_another_and_says_what_it_is) {
  using Try = bool (*)(BlockWord&, uint64_t&);
  const Try tries[] = {
      [](BlockWord& word, uint64_t& seen) { return word.try_hold(seen); },
      [](BlockWord& word, uint64_t& seen) { return word.try_free(seen); },
      [](BlockWord& word, uint64_t& seen) { return word.try_spill(seen, 0); },
      [](BlockWord& word, uint64_t& seen) { return word.try_prove(seen); },
      [](BlockWord& word, uint64_t& seen) { return word.try_mark_freed(seen); },
      [](BlockWord& word, uint64_t& seen) { return word.try_set_aside(seen); }};
  for (const Try attempt : tries) {
    BlockWord word;
    const uint64_t is = word::with_state(word::proven | word::told, State::resident);
    BlockWordInspector::put(word, is);
    uint64_t seen = is + word::hold_one;
    EXPECT_FALSE(attempt(word, seen));
    EXPECT_EQ(seen, is);
    EXPECT_EQ(word.load(), is);
  }
}

TEST(BlockWord, each_operation_writes_what_it_is_named_for_and_nothing_else) {
  const uint64_t kept = word::placed | word::many_uses;
  const auto after = [&](uint64_t begin, auto&& operation) {
    BlockWord word;
    BlockWordInspector::put(word, begin | kept);
    uint64_t seen = word.load();
    while (!operation(word, seen)) {  // (an exchange may fail for nothing)
    }
    EXPECT_EQ(word.load() & kept, kept);
    return word.load() & ~kept;
  };
  const uint64_t resident = word::with_state(0, State::resident);
  const uint64_t ready = word::with_state(0, State::ready);
  EXPECT_EQ(after(resident, [](auto& word, auto& seen) { return word.try_hold(seen); }),
            resident + word::hold_one);
  EXPECT_EQ(after(resident,
                  [](auto& word, auto& seen) { return word.try_hold(seen, word::proven); }),
            (resident | word::proven) + word::hold_one);
  EXPECT_EQ(after(resident | word::proven | word::outside | word::told | word::given,
                  [](auto& word, auto& seen) { return word.try_free(seen); }),
            ready | word::given);
  EXPECT_EQ(after(resident | word::proven,
                  [](auto& word, auto& seen) { return word.try_spill(seen, 0); }),
            word::with_state(word::proven | word::copies, State::spilling));
  EXPECT_EQ(after(resident, [](auto& word, auto& seen) { return word.try_prove(seen); }),
            resident | word::proven);
  EXPECT_EQ(after(resident + word::hold_one,
                  [](auto& word, auto& seen) { return word.try_mark_freed(seen); }),
            (resident | word::freed) + word::hold_one);
  EXPECT_EQ(after(ready, [](auto& word, auto& seen) { return word.try_set_aside(seen); }),
            ready | word::aside);
  EXPECT_EQ(after(resident, [](auto& word, auto&) { return word.set(word::pinned), true; }),
            resident | word::pinned);
  EXPECT_EQ(after(resident | word::pinned,
                  [](auto& word, auto&) { return word.clear(word::pinned), true; }),
            resident);
}

TEST(BlockWordDeathTest, a_block_that_cannot_spill_is_not_made_to) {
  BlockWord word;
  uint64_t seen = word::with_state(0, State::ready);
  EXPECT_DEATH((void)word.try_spill(seen, 0xabc000), "block abc000: spill in state ready");
}
