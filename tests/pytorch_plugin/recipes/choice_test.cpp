// Choice against searching the iteration for a row, from seeds.
#include "pytorch_plugin/recipes/choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

namespace firn::pytorch {
namespace {

constexpr unsigned seeds = 300;
using Row = std::array<uint64_t, Choice::row>;
using Results = std::vector<std::vector<OperatorLog::Result>>;

Choice of_signatures(const std::vector<uint64_t>& signatures) {
  return {{}, signatures, std::vector<uint64_t>(signatures.size()), Results(signatures.size())};
}

/// The operators before a place, the oldest first; the iteration before it was the same.
Row row_before(const std::vector<uint64_t>& signatures, size_t place) {
  Row row;
  for (size_t i = Choice::row; i > 0; --i) {
    place = place == 0 ? signatures.size() - 1 : place - 1;
    row[i - 1] = signatures[place];
  }
  return row;
}

uint32_t naive_place(const std::vector<uint64_t>& signatures, const Row& row) {
  uint32_t found = Choice::none;
  for (uint32_t place = 0; place < signatures.size(); ++place) {
    if (row_before(signatures, place) != row) continue;
    if (found != Choice::none) return Choice::none;
    found = place;
  }
  return found;
}

uint32_t place_behind(const Choice& choice, const Row& row, size_t oldest) {
  Row ring;
  for (size_t i = 0; i < row.size(); ++i) ring[(oldest + i) % row.size()] = row[i];
  return choice.place_behind(ring, oldest);
}

TEST(Choice, a_place_is_found_by_a_row_that_is_there_once) {
  unsigned found = 0, repeated = 0;
  for (unsigned seed = 1; seed <= seeds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    // Layers that repeat, and some operators that do not.
    std::vector<uint64_t> layer(1 + random() % 40), signatures;
    for (uint64_t& signature : layer) signature = random() % 4;
    for (size_t left = 1 + random() % 3; left > 0; --left)
      signatures.insert(signatures.end(), layer.begin(), layer.end());
    for (size_t left = random() % 20; left > 0; --left) signatures.push_back(random() % 4);
    const Choice choice = of_signatures(signatures);
    ASSERT_EQ(choice.count(), signatures.size());
    for (uint32_t place = 0; place < signatures.size(); ++place) {
      SCOPED_TRACE("place " + std::to_string(place));
      EXPECT_EQ(choice.signature(place), signatures[place]);
      Row row = row_before(signatures, place);
      const uint32_t expected = naive_place(signatures, row);
      EXPECT_TRUE(expected == place || expected == Choice::none);
      (expected == place ? found : repeated)++;
      const size_t oldest = random() % Choice::row;
      EXPECT_EQ(place_behind(choice, row, oldest), expected);
      row[random() % Choice::row] = random() % 5;  // (another place's, the same, or unknown)
      EXPECT_EQ(place_behind(choice, row, oldest), naive_place(signatures, row));
    }
  }
  EXPECT_GT(found, 1000u);
  EXPECT_GT(repeated, 1000u);
}

TEST(Choice, a_row_goes_around_the_end_of_the_iteration) {
  for (const size_t count : {size_t{2}, Choice::row - 1, Choice::row, 3 * Choice::row}) {
    std::vector<uint64_t> signatures;
    for (size_t i = 0; i < count; ++i) signatures.push_back(100 + i);
    const Choice choice = of_signatures(signatures);
    Row row;
    for (size_t i = 0; i < row.size(); ++i)
      row[row.size() - 1 - i] = signatures[count - 1 - i % count];
    EXPECT_EQ(place_behind(choice, row, 0), 0u) << count << " operators";
    std::rotate(row.begin(), row.begin() + 1, row.end());
    row.back() = signatures[0];
    EXPECT_EQ(place_behind(choice, row, 5), 1u) << count << " operators";
    row.back() = 1;
    EXPECT_EQ(place_behind(choice, row, 5), Choice::none) << count << " operators";
  }
}

TEST(Choice, of_operators_that_are_all_alike_no_place_is_found) {
  for (const size_t count : {2u, 3u, 100u}) {
    const Choice choice = of_signatures(std::vector<uint64_t>(count, 7));
    Row row;
    row.fill(7);
    EXPECT_EQ(place_behind(choice, row, 0), Choice::none) << count << " operators";
  }
}

TEST(Choice, every_result_that_is_made_again_has_a_slot_where_it_is_made_and_where_it_leaves) {
  for (unsigned seed = 1; seed <= seeds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const uint32_t count = 1 + random() % 20;
    std::vector<uint64_t> signatures, device_ns;
    Results results(count);
    std::vector<MadeAgain> made;
    uint32_t values = 0;
    for (uint32_t place = 0; place < count; ++place) {
      signatures.push_back(random());
      device_ns.push_back(random() % 1000);
      for (unsigned left = random() % 4; left > 0; --left) {
        results[place].push_back(
            {values, static_cast<uint8_t>(random() % 256), random() % 1000});
        if (random() % 2) made.push_back({place, values, static_cast<uint32_t>(random() % count)});
        ++values;
      }
    }
    std::shuffle(made.begin(), made.end(), random);
    std::vector<Choice::Slot> slots;
    std::vector<std::vector<uint32_t>> gives(count), leaves(count);
    for (const MadeAgain& each : made) {
      const auto slot = static_cast<uint32_t>(slots.size());
      for (const OperatorLog::Result& result : results[each.maker])
        if (result.value == each.value) {
          slots.push_back({result.at, device_ns[each.maker], result.bytes});
        }
      gives[each.maker].push_back(slot);
      leaves[each.leaves_behind].push_back(slot);
    }
    RemakeChoice answer;
    answer.made_again = made;
    // A value that its maker writes but does not return has none.
    answer.made_again.push_back({count - 1, values, 0});
    const Choice choice(answer, signatures, device_ns, results);
    ASSERT_EQ(choice.slots().size(), slots.size());
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      EXPECT_EQ(choice.slots()[slot].result_at, slots[slot].result_at) << slot;
      EXPECT_EQ(choice.slots()[slot].device_ns, slots[slot].device_ns) << slot;
      EXPECT_EQ(choice.slots()[slot].bytes, slots[slot].bytes) << slot;
    }
    for (uint32_t place = 0; place < count; ++place) {
      EXPECT_EQ(choice.gives(place), gives[place]) << place;
      EXPECT_EQ(choice.leaves(place), leaves[place]) << place;
    }
  }
}

}  // namespace
}  // namespace firn::pytorch
