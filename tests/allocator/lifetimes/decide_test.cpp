// decide() against the naive reading of what it promises, on random situations from a seed:
// FIRN_SEED=N replays one.
#include "allocator/lifetimes/decide.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>

using namespace firn::lifetimes;

namespace {

struct Case {
  std::vector<Item> items;
  std::vector<Step> steps;
  uint64_t capacity = 0, spare = 0, period = 0;
  Situation situation() const {
    return {capacity, spare, period, items, steps};
  }
};

/// Blocks that are there, in part away or clean, and a period in which blocks are born, used,
/// written and die.
Case draw(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return random() % n; };
  Case c;
  uint64_t on_device = 0;
  for (uint64_t i = 0, n = 1 + below(12); i < n; ++i) {
    Item item;
    item.size = 1 + below(20);
    item.on_device = below(3) ? item.size - below(item.size) * below(2) : 0;
    item.clean = below(2) ? below(item.on_device + 1) : 0;
    item.again = static_cast<uint32_t>(i);
    on_device += item.on_device;
    c.items.push_back(item);
  }
  c.capacity = on_device + below(30);
  c.spare = below(3);
  std::vector<uint32_t> alive(c.items.size());
  for (uint32_t i = 0; i < alive.size(); ++i) alive[i] = i;
  for (uint64_t ahead = 1, n = below(60); ahead <= n; ++ahead) {
    const uint64_t what = below(8);
    if (what == 0 || alive.empty()) {
      Item item;
      item.size = 1 + below(20);
      item.born = true;
      c.items.push_back(item);
      alive.push_back(static_cast<uint32_t>(c.items.size() - 1));
      c.steps.push_back({ahead, Step::Kind::birth, alive.back()});
      continue;
    }
    const size_t at = below(alive.size());
    const Step::Kind kind = what == 1   ? Step::Kind::death
                            : what == 2 ? Step::Kind::write
                                        : Step::Kind::read;
    c.steps.push_back({ahead, kind, alive[at]});
    if (kind == Step::Kind::death) alive.erase(alive.begin() + static_cast<ptrdiff_t>(at));
    c.period = ahead;
  }
  c.period = c.steps.empty() ? 1 : c.steps.back().ahead;
  return c;
}

/// "item: pages" of all that is made clean ahead, in this order.
std::string made_clean(const Decision& d) {
  std::string text;
  for (const Decision::Leaving& each : d.leaving)
    text +=
        (text.empty() ? "" : ", ") + std::to_string(each.item) + ": " + std::to_string(each.pages);
  return text;
}

uint64_t first(const Case& c, uint32_t item, bool changes) {
  for (const Step& step : c.steps)
    if (step.item == item && step.kind != Step::Kind::birth &&
        (!changes || step.kind != Step::Kind::read))
      return step.ahead;
  return UINT64_MAX;
}

bool lives_at(const Case& c, uint32_t item, uint64_t ahead) {
  bool lives = !c.items[item].born;
  for (const Step& step : c.steps) {
    if (step.item != item) continue;
    if (step.kind == Step::Kind::birth && step.ahead <= ahead) lives = true;
    if (step.kind == Step::Kind::death && step.ahead < ahead) lives = false;
  }
  return lives;
}

/// Everything fetched now has room until it is used: beside what cannot leave without a write, what
/// is used before it, and what is born meanwhile.
void expect_room(const Case& c, const Decision& d) {
  for (size_t f = 0; f < d.fetch.size(); ++f) {
    const uint64_t use = first(c, d.fetch[f], false);
    const bool last = f + 1 == d.fetch.size();
    ASSERT_LE(use, last ? std::max(d.window, d.lacking) : d.window);
    ASSERT_TRUE(!last || d.last_pages > c.items[d.fetch[f]].on_device);
    for (uint64_t at = 0; at <= use; ++at) {
      uint64_t there = 0;
      for (uint32_t i = 0; i < c.items.size(); ++i) {
        const Item& item = c.items[i];
        if (!lives_at(c, i, at)) continue;
        const bool fetched =
            std::find(d.fetch.begin(), d.fetch.begin() + static_cast<ptrdiff_t>(f) + 1, i) !=
            d.fetch.begin() + static_cast<ptrdiff_t>(f) + 1;
        if (fetched && last && i == d.fetch[f])
          there += d.last_pages;
        else if (item.born || fetched)
          there += item.size;
        else if (first(c, i, false) <= use)
          there += item.on_device;
        else
          there += item.on_device - item.clean;
      }
      ASSERT_LE(there, c.capacity) << "at " << at << ", fetching item " << d.fetch[f];
    }
  }
}

/// At every instant what lacks is covered, and a spare part of no more than lacks at the peak, or
/// nothing is left that could cover it; and nothing is written where nothing lacks.
void expect_cover(const Case& c, const Decision& d) {
  uint64_t most = 0;
  const uint64_t spare = std::min(c.spare, d.peak - std::min(d.peak, c.capacity));
  for (uint64_t at = 0; at <= c.period; ++at) {
    uint64_t alive = 0, covered = 0;
    bool more = false;
    for (uint32_t i = 0; i < c.items.size(); ++i) {
      const Item& item = c.items[i];
      if (!lives_at(c, i, at)) continue;
      alive += item.size;
      if (item.born || first(c, i, true) <= at) continue;
      uint64_t covers = item.size - (item.on_device - item.clean);
      for (const Decision::Leaving& leaving : d.leaving)
        if (leaving.item == i) covers = leaving.pages;
      covered += covers;
      more |= covers < item.size;
    }
    most = std::max(most, alive);
    ASSERT_TRUE(alive + spare <= c.capacity + covered || !more)
        << "at " << at << ": " << alive << " alive, " << covered << " covered";
  }
  EXPECT_EQ(d.peak, most);
  if (most <= c.capacity) {
    EXPECT_TRUE(d.leaving.empty());
  }
  for (const Decision::Leaving& leaving : d.leaving) {
    const Item& item = c.items[leaving.item];
    EXPECT_LE(leaving.pages, item.size);
    EXPECT_GT(leaving.pages, item.size - (item.on_device - item.clean));
  }
}

}  // namespace

TEST(Decide, pages_to_clean_are_those_that_are_neither_away_nor_clean) {
  Decision decision;
  decision.leaving = {{0, 12, false}, {1, 4, true}};
  const std::vector<Item> items{{.size = 20, .on_device = 15, .clean = 3}, {.size = 9, .clean = 0}};
  EXPECT_EQ(pages_to_clean(decision, items), 4u) << "8 are covered; the other is away";
  EXPECT_EQ(pages_to_clean({}, items), 0u);
}

TEST(Decide, what_has_no_room_is_fetched_in_part) {
  Case c;
  c.items = {{.size = 4, .on_device = 4, .again = 0}, {.size = 4, .on_device = 1, .clean = 1}};
  c.steps = {{1, Step::Kind::read, 1}, {2, Step::Kind::write, 0}};
  c.capacity = 7;
  c.period = 2;
  const Decision d = decide(c.situation());
  EXPECT_EQ(d.fetch, (std::vector<uint32_t>{1}));
  EXPECT_EQ(d.last_pages, 3u);
  EXPECT_EQ(d.lacking, 1u);
  EXPECT_EQ(d.window, 0u);
}

TEST(Decide, nothing_moves_where_everything_fits) {
  Case c;
  c.items = {{.size = 4, .on_device = 4, .again = 0}, {.size = 4, .on_device = 4, .again = 1}};
  c.steps = {{1, Step::Kind::read, 0}, {2, Step::Kind::write, 1}};
  c.capacity = 8;
  c.period = 2;
  const Decision d = decide(c.situation());
  EXPECT_TRUE(d.fetch.empty());
  EXPECT_TRUE(d.leaving.empty());
  EXPECT_EQ(d.window, 2u);
  EXPECT_EQ(d.peak, 8u);
}

TEST(Decide, nothing_is_written_ahead_where_everything_just_fits) {
  Case c;
  c.items = {{.size = 4, .on_device = 4, .again = 0}, {.size = 4, .on_device = 4, .again = 1}};
  c.steps = {{1, Step::Kind::read, 0}, {2, Step::Kind::write, 1}};
  c.capacity = 8;
  c.spare = 3;
  c.period = 2;
  EXPECT_TRUE(decide(c.situation()).leaving.empty());
  c.capacity = 7;  // a page lacks: that one, and one to spare
  const Decision d = decide(c.situation());
  uint64_t pages = 0;
  for (const Decision::Leaving& leaving : d.leaving) pages += leaving.pages;
  EXPECT_EQ(pages, 3u);  // so much of the block is to be clean: 1, and then 2
}

TEST(Decide, what_is_written_last_is_made_clean_and_what_is_used_last_leaves_first) {
  Case c;
  c.items = {{.size = 4, .on_device = 4, .again = 0},
             {.size = 4, .on_device = 4, .again = 1},
             {.size = 4, .born = true}};
  // 0 is used last, but written soon; 1 is read soon and written last.
  c.steps = {{1, Step::Kind::read, 1},  {2, Step::Kind::write, 0}, {3, Step::Kind::birth, 2},
             {4, Step::Kind::write, 2}, {5, Step::Kind::death, 2}, {6, Step::Kind::write, 1},
             {7, Step::Kind::read, 0}};
  c.capacity = 8;
  c.period = 7;
  const Decision d = decide(c.situation());
  EXPECT_EQ(made_clean(d), "1: 4");
  EXPECT_EQ(d.farthest, (std::vector<uint32_t>{0, 1}));
}

TEST(Decide, of_what_is_written_late_enough_what_is_used_last_is_made_clean) {
  Case c;
  c.items = {{.size = 4, .on_device = 4, .again = 0},
             {.size = 4, .on_device = 4, .again = 1},
             {.size = 4, .on_device = 4, .again = 2},
             {.size = 6, .born = true}};
  // 2 changes before room lacks; 0 is written last, and used before 1.
  c.steps = {{1, Step::Kind::write, 2}, {2, Step::Kind::birth, 3}, {3, Step::Kind::write, 3},
             {4, Step::Kind::death, 3}, {5, Step::Kind::read, 0},  {6, Step::Kind::write, 1},
             {7, Step::Kind::write, 0}, {8, Step::Kind::write, 2}};
  c.capacity = 14;
  c.period = 8;
  const Decision d = decide(c.situation());
  EXPECT_EQ(made_clean(d), "1: 4");
  Situation other = c.situation();
  other.prefer = Prefer::written_last;
  const Decision by_writes = decide(other);
  EXPECT_EQ(made_clean(by_writes), "0: 4");
}

/// A, on the device, is written in host memory at step 2, for which it leaves, and read at step 4:
/// B, which is away, has its room from then on, and A comes back only behind that use.
TEST(Decide, a_use_in_host_memory_takes_the_item_from_the_device) {
  Case c;
  c.items = {{.size = 4, .on_device = 4}, {.size = 4}};
  c.capacity = 6;
  c.period = 5;
  c.steps = {{1, Step::Kind::read, 0},
             {2, Step::Kind::host_write, 0},
             {3, Step::Kind::read, 1},
             {4, Step::Kind::read, 0},
             {5, Step::Kind::write, 1}};
  Decision d = decide(c.situation());
  EXPECT_EQ(d.fetch, (std::vector<uint32_t>{1}));
  EXPECT_EQ(d.last_pages, 2u) << "the rest when A has left";
  EXPECT_EQ(d.next_use, (std::vector<uint64_t>{1, 3}));
  EXPECT_EQ(d.next_change[0], no_use) << "of the device";
  EXPECT_EQ(made_clean(d), "") << "behind its use in host memory it is valid there";
  c.items[0].on_device = 0;  // away, and used there first: it is not fetched before
  c.steps.erase(c.steps.begin());
  d = decide(c.situation());
  EXPECT_EQ(d.fetch, (std::vector<uint32_t>{1}));
  EXPECT_EQ(d.last_pages, 4u);
  EXPECT_EQ(d.next_use, (std::vector<uint64_t>{4, 3}));
}

TEST(Decide, holds_what_it_promises) {
  uint64_t begin = 1, end = 3000;
  if (const char* seed = std::getenv("FIRN_SEED")) {
    begin = std::strtoull(seed, nullptr, 0);
    end = begin + 1;
  }
  size_t fetched = 0, leaving = 0;
  for (uint64_t seed = begin; seed < end; ++seed) {
    SCOPED_TRACE("replay: FIRN_SEED=" + std::to_string(seed));
    const Case c = draw(seed);
    const Decision d = decide(c.situation());
    fetched += d.fetch.size();
    leaving += d.leaving.size();
    expect_room(c, d);
    expect_cover(c, d);
    Situation other = c.situation();
    other.prefer = Prefer::written_last;
    expect_cover(c, decide(other));
    EXPECT_TRUE(std::is_sorted(d.farthest.begin(), d.farthest.end(), [&](uint32_t a, uint32_t b) {
      return d.next_use[a] > d.next_use[b];
    }));
    if (HasFailure()) return;
  }
  if (end - begin > 1) {  // the cases are of interest
    EXPECT_GT(fetched, 500u);
    EXPECT_GT(leaving, 500u);
  }
}

/// decide.h's own.
TEST(Decide, the_example_of_three_blocks) {
  Case c;
  c.capacity = 8;
  c.period = 5;
  constexpr uint32_t a = 0, b = 1, born = 2;
  c.items = {{.size = 4, .on_device = 4, .again = a},
             {.size = 4, .again = b},
             {.size = 4, .born = true}};
  c.steps = {{1, Step::Kind::write, b},
             {2, Step::Kind::birth, born},
             {3, Step::Kind::write, born},
             {4, Step::Kind::death, born},
             {5, Step::Kind::write, a}};
  const Decision d = decide(c.situation());
  EXPECT_EQ(d.peak, 12u);
  ASSERT_EQ(d.leaving.size(), 1u);
  EXPECT_EQ(d.leaving[0].item, a);
  EXPECT_EQ(d.leaving[0].pages, 4u);
  EXPECT_EQ(d.fetch, std::vector<uint32_t>{b});
  EXPECT_EQ(d.last_pages, 4u);
  EXPECT_EQ(d.window, 1u);
  EXPECT_EQ(d.lacking, 2u);
  EXPECT_EQ(d.farthest, std::vector<uint32_t>{a});
  EXPECT_EQ(d.next_use[a], 5u);
}
