// How much host memory is made, when, and out of whose budget.
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "tests/allocator/memory/host_tier_fixture.h"

namespace firn::test {
namespace {

TEST_F(Host, grows_as_it_is_asked) {
  HostTier host = tier(2 * extent, false);
  Staging* staging = host.acquire(mib);
  ASSERT_TRUE(staging);
  EXPECT_EQ(registered, extent);
  EXPECT_FALSE(host.ahead_due());
  EXPECT_FALSE(host.may_grow());
  host.unref(staging);
}

TEST_F(Host, a_reserve_is_not_for_who_names_it) {
  HostTier host = tier(extent, false);
  EXPECT_FALSE(host.acquire(2 * mib, extent - mib));
  Staging* staging = host.acquire(mib, extent - mib);
  EXPECT_TRUE(staging);
  host.unref(staging);
}

/// Where what is free lies apart, more is made; as much as fits it, and not beyond the budget.
TEST_F(Host, grows_by_nothing_that_is_too_small) {
  HostTier host = tier(extent + 3 * mib, false);
  Staging *first = host.acquire(63 * mib), *second = host.acquire(65 * mib);
  ASSERT_TRUE(first && second);
  host.unref(first);
  EXPECT_FALSE(host.acquire(66 * mib));
  EXPECT_EQ(registered, extent) << "3 MiB more would hold none of it";
  host.unref(second);
}

TEST_F(Host, beyond_its_budget_it_grows_no_more) {
  for (const bool ahead : {false, true}) {
    registered = 0;
    HostTier host = tier(4 * mib, ahead);
    if (ahead) {
      (void)host.acquire(mib);
      make_ahead(host);
    }
    Staging* pieces[4];
    for (Staging*& piece : pieces) ASSERT_TRUE(piece = host.acquire(mib));
    Staging* beyond = host.acquire_beyond(mib);
    ASSERT_TRUE(beyond);
    EXPECT_EQ(registered, 5 * mib);
    for (Staging* each : {pieces[0], pieces[2], beyond}) host.unref(each);
    EXPECT_FALSE(host.acquire(2 * mib)) << "there are gaps alone";
    EXPECT_FALSE(host.ahead_due());
    Staging* within = host.acquire_beyond(mib);
    EXPECT_EQ(registered, 5 * mib) << "a gap is large enough";
    for (Staging* each : {pieces[1], pieces[3], within}) host.unref(each);
  }
}

TEST_F(Host, ahead_pins_nothing_until_something_is_wanted) {
  HostTier host = tier(8 * extent, true);
  EXPECT_FALSE(host.ahead_due());
  EXPECT_FALSE(host.acquire(mib));
  EXPECT_EQ(registered, 0u) << "by the thread that asked";
  EXPECT_TRUE(host.ahead_due());
  EXPECT_TRUE(host.may_grow());
  make_ahead(host);
  EXPECT_EQ(registered, extent);
  Staging* staging = host.acquire(mib);
  EXPECT_TRUE(staging);
  host.unref(staging);
}

TEST_F(Host, ahead_is_half_of_what_is_used) {
  HostTier host = tier(64 * extent, true);
  (void)host.acquire(mib);
  std::vector<Staging*> used;
  for (int i = 0; i < 8 * 128; ++i) {
    if (host.ahead_due()) make_ahead(host);
    used.push_back(host.acquire(mib));
    ASSERT_TRUE(used.back()) << i;
  }
  EXPECT_GE(registered, 12 * extent - 2 * extent);
  EXPECT_LE(registered, 14 * extent);
  for (Staging* each : used) host.unref(each);
}

TEST_F(Host, one_at_a_time) {
  HostTier host = tier(8 * extent, true);
  (void)host.acquire(mib);
  HostTier::Ahead first = host.begin_ahead();
  EXPECT_FALSE(host.ahead_due());
  EXPECT_TRUE(host.may_grow()) << "it is under way";
  EXPECT_EQ(host.begin_ahead().bytes, 0u);
  host.prepare(first);
  host.end_ahead(std::move(first));
}

TEST_F(Host, ends_at_its_budget) {
  HostTier host = tier(extent + 3 * mib, true);
  (void)host.acquire(mib);
  std::vector<Staging*> used;
  while (host.ahead_due() || used.size() < 3) {
    if (host.ahead_due()) make_ahead(host);
    if (Staging* staging = host.acquire(40 * mib)) used.push_back(staging);
  }
  EXPECT_EQ(registered, extent + 3 * mib);
  EXPECT_FALSE(host.may_grow());
  EXPECT_FALSE(host.acquire(40 * mib));
  for (Staging* each : used) host.unref(each);
}

TEST_F(Host, takes_its_part_of_what_is_shared) {
  std::atomic<uint64_t> left{extent};
  HostTier host = tier(8 * extent, true, &left);
  (void)host.acquire(mib);
  make_ahead(host);
  EXPECT_EQ(left, 0u);
  EXPECT_FALSE(host.may_grow());
}

TEST_F(Host, what_is_under_way_is_waited_for_though_it_is_the_last) {
  std::atomic<uint64_t> left{extent};
  HostTier host = tier(8 * extent, true, &left);
  (void)host.acquire(mib);
  HostTier::Ahead ahead = host.begin_ahead();
  EXPECT_EQ(left, 0u);
  EXPECT_TRUE(host.may_grow());
  host.prepare(ahead);
  host.end_ahead(std::move(ahead));
  EXPECT_FALSE(host.may_grow());
}

TEST_F(Host, the_first_bytes_are_its_own_though_others_have_all_that_is_shared) {
  std::atomic<uint64_t> left{0};
  HostTier host(driver, nullptr, 8 * extent, &left, extent, true);
  EXPECT_EQ(host.budget(), extent);
  Staging* own = host.acquire(extent);
  ASSERT_TRUE(own);
  EXPECT_FALSE(host.acquire(mib));
  host.unref(own);
}

TEST_F(Host, makes_as_much_at_a_time_as_it_is_told) {
  std::atomic<uint64_t> left{8 * extent};
  HostRoom room;
  room.extent_bytes = 16 * mib;
  HostTier host(driver, nullptr, 8 * extent, &left, 0, true, -1, true, &room);
  (void)host.acquire(mib);
  make_ahead(host);
  EXPECT_EQ(registered, 16 * mib);
}

TEST_F(Host, more_is_due_where_what_is_free_lies_apart) {
  HostTier host = tier(8 * extent, true);
  std::vector<Staging*> used;
  for (int i = 0; i < 2; ++i)
    for (const uint64_t bytes : {39 * mib, 50 * mib, 39 * mib}) {
      Staging* staging = host.acquire(bytes);
      if (!staging) {
        make_ahead(host);
        staging = host.acquire(bytes);
      }
      ASSERT_TRUE(staging);
      used.push_back(staging);
    }
  EXPECT_EQ(registered, 2 * extent);
  for (const size_t each : {0, 2, 3, 5}) host.unref(used[each]);
  EXPECT_FALSE(host.acquire(100 * mib));
  EXPECT_TRUE(host.ahead_due()) << "though more than that is free";
  for (const size_t each : {1, 4}) host.unref(used[each]);
}

TEST_F(Host, takes_no_more_than_the_machine_has) {
  std::atomic<uint64_t> left{64 * extent};
  HostRoom room;
  room.kept_bytes = 64 * mib;
  room.left_bytes = 64 * mib + 40 * mib;
  HostTier host(driver, nullptr, 8 * extent, &left, 16 * mib, true, -1, true, &room);
  (void)host.acquire(mib);
  make_ahead(host);
  EXPECT_EQ(registered, 40 * mib);
  EXPECT_EQ(room.left_bytes, 64 * mib) << "until somebody looks again";
  EXPECT_FALSE(host.may_grow());
  EXPECT_FALSE(host.acquire(41 * mib));
  EXPECT_FALSE(host.ahead_due());
  room.left_bytes = 4 * extent;
  EXPECT_TRUE(host.ahead_due());
}

/// Whoever waits for a piece waits for ever where what is made would not hold it.
TEST_F(Host, a_piece_larger_than_an_extent_has_one_that_holds_it) {
  std::atomic<uint64_t> left{64 * extent};
  HostRoom room;
  room.extent_bytes = 4 * mib;
  HostTier host(driver, nullptr, 8 * extent, &left, 0, true, -1, true, &room);
  EXPECT_FALSE(host.acquire(8 * mib));
  EXPECT_TRUE(host.may_grow());
  ASSERT_TRUE(host.ahead_due());
  make_ahead(host);
  EXPECT_EQ(registered, 8 * mib);
  Staging* piece = host.acquire(8 * mib);
  ASSERT_TRUE(piece);
  host.unref(piece);
}

TEST_F(Host, makes_no_extent_that_is_too_small_for_what_is_wanted) {
  std::atomic<uint64_t> left{64 * extent};
  HostRoom room;
  room.kept_bytes = 64 * mib;
  room.left_bytes = 12 * mib;
  HostTier host(driver, nullptr, 8 * extent, &left, 64 * mib, true, -1, true, &room);
  EXPECT_FALSE(host.acquire(8 * mib));
  EXPECT_FALSE(host.ahead_due()) << "6 MiB would hold no piece of 8";
  EXPECT_FALSE(host.may_grow()) << "nobody waits for it";
  EXPECT_FALSE(host.acquire(4 * mib));
  EXPECT_TRUE(host.ahead_due());
  make_ahead(host);
  EXPECT_EQ(registered, 6 * mib);
}

TEST_F(Host, has_its_first_bytes_though_little_is_left) {
  std::atomic<uint64_t> left{64 * extent};
  HostRoom room;
  room.kept_bytes = 64 * mib;
  room.left_bytes = 20 * mib;
  HostTier host(driver, nullptr, 8 * extent, &left, 16 * mib, true, -1, true, &room);
  (void)host.acquire(mib);
  make_ahead(host);
  EXPECT_EQ(registered, 10 * mib) << "half of it";
}

TEST_F(Host, gives_back_what_it_claimed_where_memory_is_refused) {
  constexpr uint64_t beyond = uint64_t{1} << 48;  // no process has so many addresses
  std::atomic<uint64_t> left{4 * beyond};
  HostTier host = tier(4 * beyond, false, &left);
  EXPECT_FALSE(host.acquire(beyond));
  EXPECT_NE(host.trouble().find("refused"), std::string::npos);
  EXPECT_EQ(left, 4 * beyond) << "the other devices' engines may still have it";
}

TEST_F(Host, the_system_is_asked_again_after_a_second) {
  constexpr uint64_t beyond = uint64_t{1} << 48;
  HostTier host = tier(4 * beyond, false);
  EXPECT_FALSE(host.acquire(beyond));
  host.look_again(7);
  EXPECT_FALSE(host.acquire(mib)) << "it was refused just now";
  host.look_again(1'000'000'006);
  EXPECT_FALSE(host.acquire(mib));
  host.look_again(1'000'000'007);
  EXPECT_TRUE(host.acquire(mib));
  EXPECT_NE(host.trouble().find("refused"), std::string::npos) << "it is told what was wrong";
}

/// Nor where a piece finds no place in what is free.
TEST_F(Host, what_was_refused_is_not_asked_for_in_passing) {
  constexpr uint64_t beyond = uint64_t{1} << 48;
  HostTier host = tier(4 * beyond, false);
  Staging *low = host.acquire(40 * mib), *middle = host.acquire(48 * mib),
          *high = host.acquire(40 * mib);
  ASSERT_TRUE(low && middle && high);
  EXPECT_FALSE(host.acquire(beyond));
  for (Staging* each : {low, high}) host.unref(each);
  EXPECT_FALSE(host.acquire(60 * mib));
  EXPECT_EQ(registered, extent);
  host.look_again(1);
  host.look_again(1'000'000'001);
  Staging* later = host.acquire(60 * mib);
  ASSERT_TRUE(later);
  EXPECT_EQ(registered, 2 * extent);
  for (Staging* each : {middle, later}) host.unref(each);
}

TEST_F(Host, what_was_begun_before_a_refusal_is_waited_for) {
  HostTier host = tier(8 * extent, true);
  EXPECT_FALSE(host.acquire(mib));
  HostTier::Ahead ahead = host.begin_ahead();
  EXPECT_FALSE(host.acquire_beyond(uint64_t{1} << 48));
  EXPECT_TRUE(host.may_grow());
  host.prepare(ahead);
  host.end_ahead(std::move(ahead));
  Staging* staging = host.acquire(mib);
  EXPECT_TRUE(staging);
  host.unref(staging);
}

/// Whoever waits for memory that could not be had would wait for ever.
TEST_F(Host, nobody_waits_for_what_is_asked_for_again) {
  HostTier host(driver, nullptr, extent, nullptr, 0, false, -1, true);
  EXPECT_FALSE(host.acquire(mib));
  HostTier::Ahead none;
  none.bytes = mib;
  host.end_ahead(std::move(none));
  EXPECT_FALSE(host.may_grow());
  EXPECT_FALSE(host.ahead_due());
  host.look_again(1);
  EXPECT_FALSE(host.ahead_due());
  host.look_again(1'000'000'001);
  EXPECT_TRUE(host.ahead_due());
  EXPECT_FALSE(host.may_grow());
  EXPECT_EQ(host.budget(), 0u);
  HostTier::Ahead ahead = host.begin_ahead();
  EXPECT_FALSE(host.may_grow());
  host.prepare(ahead);
  host.end_ahead(std::move(ahead));
  EXPECT_EQ(host.budget(), extent);
  EXPECT_TRUE(host.acquire(mib));
}

}  // namespace
}  // namespace firn::test
