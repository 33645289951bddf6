#include "allocator/memory/host_tier.h"
#include "allocator/runtime/host_memory.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tests/allocator/memory/host_tier_fixture.h"
#include "tests/scarce_memory.h"

namespace firn::test {
namespace {

TEST_F(Host, at_its_end_nothing_stays_pinned) {
  {
    HostTier host = tier(2 * extent, false);
    host.unref(host.acquire(mib));
    EXPECT_EQ(pinned_extents, 1);
  }
  EXPECT_EQ(pinned_extents, 0);
}

TEST_F(Host, the_first_bytes_stay_its_own_whatever_others_need) {
  std::atomic<uint64_t> left{8 * extent};
  HostTier host(driver, nullptr, 8 * extent, &left, extent, true, -1, true);
  (void)host.acquire(mib);
  make_ahead(host);
  EXPECT_FALSE(host.close_one()) << "what is left would move nothing";
  Staging* first = host.acquire(extent);
  (void)host.acquire(mib);
  make_ahead(host);
  EXPECT_TRUE(host.close_one());
  host.unref(first);
}

TEST_F(Host, gives_an_extent_back_once_it_is_empty) {
  std::atomic<uint64_t> left{8 * extent};
  HostTier host(driver, nullptr, 8 * extent, &left, 0, true, -1, true);
  EXPECT_FALSE(host.close_one()) << "there is none";
  (void)host.acquire(mib);
  make_ahead(host);
  Staging* first = host.acquire(extent);
  (void)host.acquire(mib);
  make_ahead(host);
  Staging* second = host.acquire(3 * mib);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(left, 6 * extent);
  ASSERT_TRUE(host.close_one());
  EXPECT_FALSE(host.close_one()) << "one at a time";
  EXPECT_TRUE(host.closes(*second)) << "where least is kept";
  EXPECT_FALSE(host.closes(*first));
  EXPECT_FALSE(host.take_closed()) << "something is kept there";
  EXPECT_FALSE(host.acquire(mib)) << "nothing more gets there";
  const std::byte* there = second->data;
  host.unref(second);
  std::optional<HostTier::Extent> extent_out = host.take_closed();
  ASSERT_TRUE(extent_out);
  const std::span<std::byte> taken = extent_out->memory.bytes();
  EXPECT_TRUE(there >= taken.data() && there < taken.data() + taken.size()) << "that one";
  host.give(std::move(*extent_out));
  EXPECT_EQ(left, 7 * extent);
  EXPECT_EQ(host.used(), extent);
  host.unref(first);
}

TEST_F(Host, of_two_extents_the_one_that_least_is_kept_in_is_closed_and_that_alone) {
  for (const bool lower : {false, true}) {
    HostTier host = tier(8 * extent, true);
    std::vector<Staging*> kept[2];
    for (std::vector<Staging*>& each : kept) {
      (void)host.acquire(80 * mib);
      make_ahead(host);
      for (const uint64_t bytes : {80 * mib, 20 * mib, 28 * mib}) {
        each.push_back(host.acquire(bytes));
        ASSERT_TRUE(each.back());
      }
    }
    if ((kept[0][0]->data < kept[1][0]->data) != lower) std::swap(kept[0], kept[1]);
    for (Staging* each : {kept[0][1], kept[0][2], kept[1][2]}) host.unref(each);
    ASSERT_TRUE(host.close_one());
    EXPECT_TRUE(host.closes(*kept[0][0]));
    EXPECT_FALSE(host.closes(*kept[1][0]));
    Staging* more = host.acquire(28 * mib);
    ASSERT_TRUE(more) << "what is free in the other one";
    EXPECT_FALSE(host.closes(*more));
    EXPECT_FALSE(host.acquire(mib));
    for (Staging* each : {kept[0][0], kept[1][0], kept[1][1], more}) host.unref(each);
  }
}

TEST_F(Host, a_closed_extent_is_used_again_where_memory_is_short_no_more) {
  HostTier host = tier(8 * extent, true);
  (void)host.acquire(mib);
  make_ahead(host);
  Staging* kept = host.acquire(3 * mib);
  ASSERT_TRUE(host.close_one());
  Staging* more = host.acquire(mib);
  EXPECT_FALSE(more);
  host.reopen();
  more = host.acquire(extent - 3 * mib);
  ASSERT_TRUE(more);
  host.unref(kept);
  host.unref(more);
  EXPECT_TRUE(host.acquire(extent)) << "in one piece";
}

TEST_F(Host, what_it_hands_out_is_mapped_wherever_memory_lacked) {
  for (long given = 0;; ++given) {  // with ever more memory
    SCOPED_TRACE(given);
    HostTier host(driver, nullptr, extent, nullptr, 0);
    Staging* staging = nullptr;
    test::memory_left = given;
    try {
      staging = host.acquire(mib);
    } catch (const std::bad_alloc&) {
    }
    test::memory_left = -1;
    const bool enough = staging;
    host.look_again(1);
    host.look_again(1'000'000'001);
    if (!enough) staging = host.acquire(mib);
    ASSERT_TRUE(staging) << "there is memory again";
    *staging->data = std::byte{3};
    EXPECT_EQ(host.used(), mib);
    host.unref(staging);
    EXPECT_EQ(host.used(), 0u);
    host.unregister();
    EXPECT_EQ(pinned_extents, 0) << "what was unmapped is pinned no more";
    if (enough) break;
  }
}

TEST_F(Host, made_ahead_it_is_whole_or_not_at_all_wherever_memory_lacked) {
  for (const CUresult pinning : {CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY})
    for (long given = 0, enough = 0; !enough; ++given) {
      SCOPED_TRACE(given);
      answer = pinning;
      HostTier host(driver, nullptr, extent, nullptr, 0, false, -1, true);
      EXPECT_FALSE(host.acquire(mib));
      HostTier::Ahead ahead = host.begin_ahead();
      test::memory_left = given;
      host.prepare(ahead);
      host.end_ahead(std::move(ahead));
      enough = test::memory_left > 0;
      test::memory_left = -1;
      Staging* staging = host.acquire(mib);
      if (!staging) {
        EXPECT_EQ(pinned_extents, 0) << "what was unmapped is pinned no more";
        host.look_again(1);
        host.look_again(1'000'000'001);
        make_ahead(host);
        staging = host.acquire(mib);
      }
      ASSERT_TRUE(staging) << "there is memory again";
      *staging->data = std::byte{3};
      host.unref(staging);
      host.unregister();
      EXPECT_EQ(pinned_extents, 0);
    }
}

TEST_F(Host, what_a_store_does_not_take_is_pinned_no_more) {
  for (const bool throws : {false, true}) {
    NoStore store(throws);
    HostTier host(driver, &store, extent, nullptr, 0);
    EXPECT_FALSE(host.acquire(mib));
    EXPECT_GT(registered, 0u);
    EXPECT_EQ(pinned_extents, 0);
    EXPECT_EQ(host.trouble().find("no staging here") != std::string::npos, !throws);
  }
}

TEST_F(Host, of_two_troubles_the_first_is_told) {
  answer = CUDA_ERROR_OUT_OF_MEMORY;
  NoStore store(false);
  HostTier host(driver, &store, extent, nullptr, 0);
  EXPECT_FALSE(host.acquire(mib));
  EXPECT_NE(host.trouble().find("not pinned"), std::string::npos) << host.trouble();
}

TEST_F(Host, a_store_has_the_extents_that_there_are) {
  FakeStore store;
  HostTier host(driver, &store, extent, nullptr, 0);
  host.unref(host.acquire(mib));
  EXPECT_EQ(store.attached, extent);
  ASSERT_TRUE(host.close_one());
  std::optional<HostTier::Extent> closed = host.take_closed();
  ASSERT_TRUE(closed);
  EXPECT_EQ(pinned_extents, 1);
  host.give(std::move(*closed));
  EXPECT_EQ(store.attached, 0u);
  EXPECT_EQ(pinned_extents, 0);
  host.reopen();
  EXPECT_FALSE(host.take_closed());
  Staging* staging = host.acquire(mib);
  ASSERT_TRUE(staging) << "nothing is there, and as much may be made again";
  host.unref(staging);
}

TEST_F(Host, huge_pages_that_the_driver_refuses_are_ordinary_ones) {
  testing_store::huge_pages = {true, SIZE_MAX, nullptr, 0};
  for (const bool refused : {false, true}) {
    huge_refused = refused;
    HostTier host(driver, nullptr, extent, nullptr, 0);
    Staging* staging = host.acquire(mib);
    ASSERT_TRUE(staging);
    EXPECT_EQ(testing_store::huge_pages.hold(staging->data), !refused);
    EXPECT_EQ(host.trouble(), "") << "pinned all the same";
    EXPECT_EQ(registered, extent);
    registered = 0;
    host.unref(staging);
  }
  huge_refused = testing_store::huge_pages.given = false;
}

TEST_F(Host, huge_pages_that_the_driver_refuses_serve_where_there_are_no_others) {
  testing_store::huge_pages = {true, SIZE_MAX, nullptr, 0};
  huge_refused = true;
  HostTier host(driver, nullptr, extent, nullptr, 0);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlimit one_more{pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) + 3 * extent / 2,
                        before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &one_more), 0);
  Staging* staging = host.acquire(mib);
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  ASSERT_TRUE(staging);
  EXPECT_TRUE(testing_store::huge_pages.hold(staging->data));
  EXPECT_NE(host.trouble().find("not pinned"), std::string::npos) << host.trouble();
  host.unref(staging);
  huge_refused = testing_store::huge_pages.given = false;
}

TEST_F(Host, a_child_touches_no_extent) {
  auto host = std::make_unique<HostTier>(driver, nullptr, extent, nullptr, 0);
  Staging* staging = host->acquire(mib);
  ASSERT_TRUE(staging);
  std::byte* data = staging->data;
  host->unref(staging);
  host->abandon();
  host.reset();
  EXPECT_EQ(std::exchange(*data, std::byte{3}), std::byte{0}) << "mapped still";
}

TEST_F(Host, without_pinning_it_says_so_and_serves) {
  answer = CUDA_ERROR_OUT_OF_MEMORY;
  HostTier host = tier(8 * extent, true);
  (void)host.acquire(mib);
  make_ahead(host);
  EXPECT_NE(host.trouble().find("not pinned"), std::string::npos);
  EXPECT_EQ(asked_to_pin, 1);
  Staging* staging = host.acquire(mib);
  EXPECT_TRUE(staging);
  host.unref(staging);
}

TEST(HostMemory, none_is_made_while_some_is_to_be_given_back) {
  HostMemory memory;
  (void)memory.begin(uint64_t{1} << 30);
  memory.start(64 * mib);
  const uint64_t kept = memory.room()->kept_bytes, plenty = 100 * kept;
  memory.found(plenty, 0);
  EXPECT_FALSE(memory.pressed());
  EXPECT_EQ(memory.room()->left_bytes, plenty);
  memory.found(plenty, 50);  // as where files take turns in a small container
  EXPECT_TRUE(memory.pressed());
  EXPECT_LE(memory.room()->left_bytes, kept) << "an extent would be made, and given back, for ever";
  memory.found(kept - 1, 0);
  EXPECT_TRUE(memory.pressed()) << "there is not enough to make more";
  memory.found(plenty, 0);
  EXPECT_FALSE(memory.pressed());
  EXPECT_EQ(memory.room()->left_bytes, plenty);
}

TEST(Staging, is_of_the_node_that_was_named) {
  int policy = -1;
  unsigned long nodes[16] = {};
  Result<StagingMemory> memory = StagingMemory::create(4 * mib, false, 0);
  ASSERT_TRUE(memory);
  memory->populate();
  constexpr unsigned long by_address = 2;  // MPOL_F_ADDR
  if (::syscall(SYS_get_mempolicy, &policy, nodes, 8 * sizeof nodes, memory->bytes().data(),
                by_address) != 0)
    GTEST_SKIP() << "the system does not tell of memory nodes: " << errno;
  constexpr int preferred = 1;
  EXPECT_EQ(policy, preferred);
  EXPECT_EQ(nodes[0], 1u);
}

}  // namespace
}  // namespace firn::test
