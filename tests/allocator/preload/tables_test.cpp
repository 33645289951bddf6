// Pointer tables: by example, and against a model that keeps every byte of memory.
#include "allocator/preload/tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

using namespace firn::preload;

namespace {
constexpr uint64_t MiB = 1u << 20;
constexpr Range arena{uint64_t{1} << 40, 512 * MiB}, second{uint64_t{1} << 44, 64 * MiB};

std::vector<uint64_t> held(const Tables& tables, uint64_t at, size_t bytes) {
  std::vector<uint64_t> values;
  tables.collect(at, bytes, values);
  return values;
}
using Words = std::vector<uint64_t>;
}  // namespace

TEST(Tables, addresses_among_what_the_host_writes_are_remembered_where_they_are) {
  Tables tables;
  const uint64_t a = arena.base + 5 * MiB, b = second.base + 100;
  const uint64_t words[] = {1, a, arena.base - 1, b, arena.base + arena.bytes};
  EXPECT_EQ(tables.write(arena.base, words, sizeof words), 0u);  // no arena yet
  tables.add_arena(arena);
  tables.add_arena(second);
  EXPECT_EQ(tables.write(arena.base + 64, words, sizeof words), 2u);
  EXPECT_EQ(held(tables, arena.base, MiB), (Words{a, b}));
  EXPECT_EQ(held(tables, arena.base + 72, 8), Words{a});
  EXPECT_EQ(held(tables, arena.base + 73, 100), Words{b});
  EXPECT_TRUE(tables.holds(arena.base + MiB, 1));  // by granule
  EXPECT_FALSE(tables.holds(arena.base + 2 * MiB, 100 * MiB));
  EXPECT_TRUE(tables.holds(arena.base, arena.bytes));
  EXPECT_FALSE(tables.foreign());
}

TEST(Tables, unaligned_copies_are_read_at_aligned_addresses) {
  Tables tables;
  tables.add_arena(arena);
  unsigned char bytes[40] = {};
  const uint64_t a = arena.base + 9;
  std::memcpy(bytes + 5, &a, 8);  // arrives at +8
  std::memcpy(bytes + 14, &a, 8);  // arrives at +17: nobody can read it as a word
  EXPECT_EQ(tables.write(arena.base + 3, bytes, sizeof bytes), 1u);
  EXPECT_EQ(held(tables, arena.base + 8, 8), Words{a});
}

TEST(Tables, what_is_overwritten_or_freed_is_forgotten_and_a_part_of_a_word_is_not) {
  Tables tables;
  tables.add_arena(arena);
  const uint64_t words[] = {arena.base, arena.base + 1, arena.base + 2, arena.base + 3};
  tables.write(arena.base, words, sizeof words);
  const uint64_t nothing[2] = {};
  tables.write(arena.base + 4, nothing, 12);  // half of the first word, all of the second
  EXPECT_EQ(held(tables, arena.base, 64), (Words{arena.base, arena.base + 2, arena.base + 3}));
  tables.forget(arena.base + 16, 15);
  EXPECT_EQ(held(tables, arena.base, 64), (Words{arena.base, arena.base + 3}));
  tables.forget(arena.base, 32);
  EXPECT_EQ(tables.words(), 0u);
  EXPECT_FALSE(tables.holds(arena.base, arena.bytes));
}

TEST(Tables, copies_within_the_device_carry_them_along) {
  Tables tables;
  tables.add_arena(arena);
  const uint64_t words[] = {arena.base + 7, 0, arena.base + 8, 0};
  tables.write(arena.base, words, sizeof words);
  tables.copy(arena.base + 8, arena.base, 24);  // over themselves
  EXPECT_EQ(held(tables, arena.base, 64), (Words{arena.base + 7, arena.base + 7, arena.base + 8}));
  tables.copy(arena.base, arena.base + 10 * MiB, 4096);  // from where there are none
  EXPECT_EQ(tables.words(), 0u);
  tables.write(arena.base, words, 8);
  tables.copy(arena.base + 64, arena.base + 4, 24);  // not all of a word
  EXPECT_EQ(tables.words(), 1u);
}

TEST(Tables, memory_outside_the_arenas_counts_by_itself) {
  Tables tables;
  tables.add_arena(arena);
  const uint64_t word = arena.base + 3 * MiB;
  EXPECT_EQ(tables.write(4096, &word, 8), 1u);
  EXPECT_TRUE(tables.foreign());
  Words values;
  tables.collect_foreign(values);
  EXPECT_EQ(values, Words{word});
  tables.forget(4096, 8);
  EXPECT_FALSE(tables.foreign());
}

TEST(Tables, a_place_is_known_for_what_it_held) {
  Tables tables;
  tables.add_arena(arena);
  const uint64_t word = arena.base + 1;
  tables.write(arena.base, &word, 8);
  tables.forget(arena.base, 8);
  EXPECT_TRUE(tables.was(arena.base, word));
  EXPECT_FALSE(tables.was(arena.base + 8, word));
  EXPECT_FALSE(tables.was(arena.base, word + 1));
}

TEST(Tables, kept_writes_forget_nothing) {
  Tables tables;
  tables.add_arena(arena);
  const uint64_t a[] = {arena.base, arena.base + 1}, b[] = {0, arena.base + 2};
  tables.write(arena.base, a, sizeof a);
  tables.write(arena.base, b, sizeof b, true);
  EXPECT_EQ(held(tables, arena.base, 64), (Words{arena.base, arena.base + 2}));
}

TEST(Tables, a_scan_finds_every_word_wherever_it_lies) {
  for (size_t bytes : {8u, 500u, 512u, 520u, 5000u})
    for (size_t shift : {0u, 1u, 7u}) {
      std::vector<unsigned char> memory(bytes + 16);
      const uint64_t to = 1000 * 8 - shift;
      for (size_t offset = shift; offset + 8 <= bytes; offset += 8) {
        std::fill(memory.begin(), memory.end(), 0);
        std::memcpy(&memory[offset], &arena.base, 8);
        std::vector<size_t> found;
        scan_words(to, memory.data(), bytes, arena,
                   [&](size_t at, uint64_t value) {
                     EXPECT_EQ(value, arena.base);
                     found.push_back(at);
                   });
        ASSERT_EQ(found, std::vector<size_t>{offset}) << bytes << " " << shift;
      }
    }
}

// Random writes, fills and copies; the model keeps all bytes. What the tables hold must be at least
// every aligned word that is an address; and no more than words that are, or of which a part was
// overwritten.
TEST(Tables, nothing_is_missed) {
  constexpr size_t memory_bytes = 3 * 4096;
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    Tables tables;
    tables.add_arena(arena);
    const uint64_t base = arena.base + 4 * MiB - 4096;  // across two granules
    std::vector<unsigned char> memory(memory_bytes);
    std::vector<bool> partly(memory_bytes / 8);
    const auto address = [&] { return arena.base + random() % arena.bytes; };
    for (int step = 0; step < 200; ++step) {
      const size_t bytes = 1 + random() % (random() % 4 ? 64 : 2048);
      const size_t at = random() % (memory_bytes - bytes + 1);
      const auto touch_ends = [&](size_t to) {
        if (to % 8) partly[to / 8] = true;
        if ((to + bytes) % 8 && to + bytes < memory_bytes) partly[(to + bytes) / 8] = true;
      };
      switch (random() % 4) {
        case 0:
        case 1: {
          std::vector<unsigned char> data(bytes);
          for (size_t k = (8 - at % 8) % 8; k + 8 <= bytes; k += 8) {
            const uint64_t word = random() % 3 ? random() : address();
            std::memcpy(&data[k], &word, 8);
          }
          tables.write(base + at, data.data(), bytes);
          std::memcpy(&memory[at], data.data(), bytes);
          touch_ends(at);
          break;
        }
        case 2:
          tables.forget(base + at, bytes);
          std::memset(&memory[at], 0, bytes);
          touch_ends(at);
          break;
        default: {
          // Only copies that keep words whole move addresses.
          const size_t from = (random() % (memory_bytes - bytes + 1)) / 8 * 8, to = at / 8 * 8;
          const size_t whole = bytes / 8 * 8;
          tables.copy(base + to, base + from, whole);
          const std::vector<unsigned char> moved(memory.begin() + from,
                                                 memory.begin() + from + whole);
          std::copy(moved.begin(), moved.end(), memory.begin() + to);
          // What was in part overwritten there is so here.
          std::vector<bool> parts(partly.begin() + from / 8, partly.begin() + (from + whole) / 8);
          std::copy(parts.begin(), parts.end(), partly.begin() + to / 8);
        }
      }
    }
    for (size_t at = 0; at < memory_bytes; at += 8) {
      uint64_t word;
      std::memcpy(&word, &memory[at], 8);
      const Words values = held(tables, base + at, 8);
      if (partly[at / 8]) continue;
      if (arena.contains(word))
        ASSERT_EQ(values, Words{word}) << "seed " << seed << " at " << at;
      else
        ASSERT_TRUE(values.empty()) << "seed " << seed << " at " << at;
    }
    Words all = held(tables, arena.base, arena.bytes);
    EXPECT_EQ(all.size(), tables.words());
    tables.forget(base, memory_bytes);
    EXPECT_EQ(tables.words(), 0u);
  }
}
