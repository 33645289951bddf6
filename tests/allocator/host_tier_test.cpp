#include "allocator/host_memory.h"
#include "allocator/host_tier.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <span>
#include <utility>

#include <gtest/gtest.h>

#include "tests/backing/store/huge_pages.h"
#include "tests/scarce_memory.h"

namespace firn {
namespace {

constexpr uint64_t mib = 1u << 20, region = 128 * mib;

uint64_t registered = 0;
int pinned_regions = 0;
CUresult answer = CUDA_SUCCESS;
bool huge_refused = false;
CUresult register_host(void* data, size_t bytes, unsigned) {
  if (huge_refused && testing_store::huge_pages.hold(data)) return CUDA_ERROR_INVALID_VALUE;
  if (answer == CUDA_SUCCESS) registered += bytes, ++pinned_regions;
  return answer;
}
CUresult unregister_host(void*) {
  --pinned_regions;
  return CUDA_SUCCESS;
}
CUresult no_words(CUresult, const char** words) {
  *words = "refused";
  return CUDA_SUCCESS;
}

/// Takes no staging: it says so, or lacks memory for its note.
class NoStore : public Store {
 public:
  explicit NoStore(bool throws) : throws_(throws) {}
  Result<void> attach_staging(std::span<std::byte>) override {
    if (throws_) throw std::bad_alloc();
    return make_error(Code::io, 0, "no staging here");
  }
  Result<Slot> reserve(size_t, bool) override { return nothing(); }
  Result<void> write(unsigned, Slot, std::span<const std::byte>, uint64_t) override {
    return nothing();
  }
  Result<void> read(unsigned, Slot, std::span<std::byte>, uint64_t) override { return nothing(); }
  bool cancel(unsigned, uint64_t) override { return false; }
  void discard(Slot) override {}
  size_t poll(unsigned, std::span<StoreCompletion>) override { return 0; }
  StoreStats stats() const override { return {}; }
  void abandon() override {}

 private:
  static Error nothing() { return make_error(Code::io, 0, "nothing here"); }
  const bool throws_;
};

class Host : public ::testing::Test {
 protected:
  Host() {
    driver.mem_host_register = register_host;
    driver.mem_host_unregister = unregister_host;
    driver.get_error_name = driver.get_error_string = no_words;
    registered = 0;
    pinned_regions = 0;
    answer = CUDA_SUCCESS;
  }
  /// `ahead`, of addresses without memory.
  HostTier tier(uint64_t budget, bool ahead, std::atomic<uint64_t>* left = nullptr) {
    return HostTier(driver, nullptr, budget, left, 0, true, -1, ahead);
  }
  static void make_ahead(HostTier& tier) {
    HostTier::Ahead ahead = tier.begin_ahead();
    EXPECT_GT(ahead.bytes, 0u);
    tier.prepare(ahead);
    tier.end_ahead(std::move(ahead));
  }
  Driver driver;
};

TEST_F(Host, grows_as_it_is_asked) {
  HostTier host = tier(2 * region, false);
  Staging* staging = host.acquire(mib);
  ASSERT_TRUE(staging);
  EXPECT_EQ(registered, region);
  EXPECT_FALSE(host.ahead_due());
  EXPECT_FALSE(host.may_grow());
  host.unref(staging);
}

TEST_F(Host, ahead_pins_nothing_until_something_is_wanted) {
  HostTier host = tier(8 * region, true);
  EXPECT_FALSE(host.ahead_due());
  EXPECT_FALSE(host.acquire(mib));
  EXPECT_EQ(registered, 0u) << "by the thread that asked";
  EXPECT_TRUE(host.ahead_due());
  EXPECT_TRUE(host.may_grow());
  make_ahead(host);
  EXPECT_EQ(registered, region);
  Staging* staging = host.acquire(mib);
  EXPECT_TRUE(staging);
  host.unref(staging);
}

TEST_F(Host, ahead_is_half_of_what_is_used) {
  HostTier host = tier(64 * region, true);
  (void)host.acquire(mib);
  std::vector<Staging*> used;
  for (int i = 0; i < 8 * 128; ++i) {
    if (host.ahead_due()) make_ahead(host);
    used.push_back(host.acquire(mib));
    ASSERT_TRUE(used.back()) << i;
  }
  EXPECT_GE(registered, 12 * region - 2 * region);
  EXPECT_LE(registered, 14 * region);
  for (Staging* each : used) host.unref(each);
}

TEST_F(Host, one_at_a_time) {
  HostTier host = tier(8 * region, true);
  (void)host.acquire(mib);
  HostTier::Ahead first = host.begin_ahead();
  EXPECT_FALSE(host.ahead_due());
  EXPECT_TRUE(host.may_grow()) << "it is under way";
  EXPECT_EQ(host.begin_ahead().bytes, 0u);
  host.prepare(first);
  host.end_ahead(std::move(first));
}

TEST_F(Host, ends_at_its_budget) {
  HostTier host = tier(region + 3 * mib, true);
  (void)host.acquire(mib);
  std::vector<Staging*> used;
  while (host.ahead_due() || used.size() < 3) {
    if (host.ahead_due()) make_ahead(host);
    if (Staging* staging = host.acquire(40 * mib)) used.push_back(staging);
  }
  EXPECT_EQ(registered, region + 3 * mib);
  EXPECT_FALSE(host.may_grow());
  EXPECT_FALSE(host.acquire(40 * mib));
  for (Staging* each : used) host.unref(each);
}

TEST_F(Host, takes_its_part_of_what_is_shared) {
  std::atomic<uint64_t> left{region};
  HostTier host = tier(8 * region, true, &left);
  (void)host.acquire(mib);
  make_ahead(host);
  EXPECT_EQ(left, 0u);
  EXPECT_FALSE(host.may_grow());
}

TEST_F(Host, takes_no_more_than_the_machine_has) {
  std::atomic<uint64_t> left{64 * region};
  HostRoom room;
  room.kept_bytes = 64 * mib;
  room.left_bytes = 64 * mib + 40 * mib;
  HostTier host(driver, nullptr, 8 * region, &left, 16 * mib, true, -1, true, &room);
  (void)host.acquire(mib);
  make_ahead(host);
  EXPECT_EQ(registered, 40 * mib);
  EXPECT_EQ(room.left_bytes, 64 * mib) << "until somebody looks again";
  EXPECT_FALSE(host.may_grow());
  EXPECT_FALSE(host.acquire(41 * mib));
  EXPECT_FALSE(host.ahead_due());
  room.left_bytes = 4 * region;
  EXPECT_TRUE(host.ahead_due());
}

TEST_F(Host, makes_no_region_that_is_too_small_for_what_is_wanted) {
  std::atomic<uint64_t> left{64 * region};
  HostRoom room;
  room.kept_bytes = 64 * mib;
  room.left_bytes = 12 * mib;
  HostTier host(driver, nullptr, 8 * region, &left, 64 * mib, true, -1, true, &room);
  EXPECT_FALSE(host.acquire(8 * mib));
  EXPECT_FALSE(host.ahead_due()) << "6 MiB would hold no piece of 8";
  EXPECT_FALSE(host.may_grow()) << "nobody waits for it";
  EXPECT_FALSE(host.acquire(4 * mib));
  EXPECT_TRUE(host.ahead_due());
  make_ahead(host);
  EXPECT_EQ(registered, 6 * mib);
}

TEST_F(Host, has_its_first_bytes_though_little_is_left) {
  std::atomic<uint64_t> left{64 * region};
  HostRoom room;
  room.kept_bytes = 64 * mib;
  room.left_bytes = 20 * mib;
  HostTier host(driver, nullptr, 8 * region, &left, 16 * mib, true, -1, true, &room);
  (void)host.acquire(mib);
  make_ahead(host);
  EXPECT_EQ(registered, 10 * mib) << "half of it";
}

TEST_F(Host, gives_a_region_back_once_it_is_empty) {
  std::atomic<uint64_t> left{8 * region};
  HostTier host(driver, nullptr, 8 * region, &left, 0, true, -1, true);
  EXPECT_FALSE(host.close_one()) << "there is none";
  (void)host.acquire(mib);
  make_ahead(host);
  Staging* first = host.acquire(region);
  (void)host.acquire(mib);
  make_ahead(host);
  Staging* second = host.acquire(3 * mib);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(left, 6 * region);
  ASSERT_TRUE(host.close_one());
  EXPECT_FALSE(host.close_one()) << "one at a time";
  EXPECT_TRUE(host.closes(*second)) << "where least is kept";
  EXPECT_FALSE(host.closes(*first));
  EXPECT_FALSE(host.take_closed()) << "something is kept there";
  EXPECT_FALSE(host.acquire(mib)) << "nothing more gets there";
  const std::byte* there = second->data;
  host.unref(second);
  std::optional<HostTier::Region> region_out = host.take_closed();
  ASSERT_TRUE(region_out);
  const std::span<std::byte> taken = region_out->memory.bytes();
  EXPECT_TRUE(there >= taken.data() && there < taken.data() + taken.size()) << "that one";
  host.give(std::move(*region_out));
  EXPECT_EQ(left, 7 * region);
  EXPECT_EQ(host.used(), region);
  host.unref(first);
}

TEST_F(Host, a_closed_region_is_used_again_where_memory_is_short_no_more) {
  HostTier host = tier(8 * region, true);
  (void)host.acquire(mib);
  make_ahead(host);
  Staging* kept = host.acquire(3 * mib);
  ASSERT_TRUE(host.close_one());
  Staging* more = host.acquire(mib);
  EXPECT_FALSE(more);
  host.reopen();
  more = host.acquire(region - 3 * mib);
  ASSERT_TRUE(more);
  host.unref(kept);
  host.unref(more);
  EXPECT_TRUE(host.acquire(region)) << "in one piece";
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
}

TEST_F(Host, what_it_hands_out_is_mapped_wherever_memory_lacked) {
  for (long given = 0;; ++given) {  // with ever more memory
    SCOPED_TRACE(given);
    HostTier host(driver, nullptr, region, nullptr, 0);
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
    EXPECT_EQ(pinned_regions, 0) << "what was unmapped is pinned no more";
    if (enough) break;
  }
}

TEST_F(Host, made_ahead_it_is_whole_or_not_at_all_wherever_memory_lacked) {
  for (const CUresult pinning : {CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY})
    for (long given = 0, enough = 0; !enough; ++given) {
      SCOPED_TRACE(given);
      answer = pinning;
      HostTier host(driver, nullptr, region, nullptr, 0, false, -1, true);
      EXPECT_FALSE(host.acquire(mib));
      HostTier::Ahead ahead = host.begin_ahead();
      test::memory_left = given;
      host.prepare(ahead);
      host.end_ahead(std::move(ahead));
      enough = test::memory_left > 0;
      test::memory_left = -1;
      Staging* staging = host.acquire(mib);
      if (!staging) {
        EXPECT_EQ(pinned_regions, 0) << "what was unmapped is pinned no more";
        host.look_again(1);
        host.look_again(1'000'000'001);
        make_ahead(host);
        staging = host.acquire(mib);
      }
      ASSERT_TRUE(staging) << "there is memory again";
      *staging->data = std::byte{3};
      host.unref(staging);
      host.unregister();
      EXPECT_EQ(pinned_regions, 0);
    }
}

TEST_F(Host, what_a_store_does_not_take_is_pinned_no_more) {
  for (const bool throws : {false, true}) {
    NoStore store(throws);
    HostTier host(driver, &store, region, nullptr, 0);
    EXPECT_FALSE(host.acquire(mib));
    EXPECT_GT(registered, 0u);
    EXPECT_EQ(pinned_regions, 0);
  }
}

/// Whoever waits for memory that could not be had would wait for ever.
TEST_F(Host, nobody_waits_for_what_is_asked_for_again) {
  HostTier host(driver, nullptr, region, nullptr, 0, false, -1, true);
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
  EXPECT_EQ(host.budget(), region);
  EXPECT_TRUE(host.acquire(mib));
}

TEST_F(Host, huge_pages_that_the_driver_refuses_are_ordinary_ones) {
  testing_store::huge_pages = {true, SIZE_MAX, nullptr, 0};
  for (const bool refused : {false, true}) {
    huge_refused = refused;
    HostTier host(driver, nullptr, region, nullptr, 0);
    Staging* staging = host.acquire(mib);
    ASSERT_TRUE(staging);
    EXPECT_EQ(testing_store::huge_pages.hold(staging->data), !refused);
    EXPECT_EQ(host.trouble(), "") << "pinned all the same";
    EXPECT_EQ(registered, region);
    registered = 0;
    host.unref(staging);
  }
  huge_refused = testing_store::huge_pages.given = false;
}

TEST_F(Host, a_child_touches_no_region) {
  auto host = std::make_unique<HostTier>(driver, nullptr, region, nullptr, 0);
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
  HostTier host = tier(8 * region, true);
  (void)host.acquire(mib);
  make_ahead(host);
  EXPECT_NE(host.trouble().find("not pinned"), std::string::npos);
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
  EXPECT_LE(memory.room()->left_bytes, kept) << "a region would be made, and given back, for ever";
  memory.found(kept - 1, 0);
  EXPECT_TRUE(memory.pressed()) << "there is not enough to make more";
  memory.found(plenty, 0);
  EXPECT_FALSE(memory.pressed());
  EXPECT_EQ(memory.room()->left_bytes, plenty);
}

TEST(Staging, is_of_the_node_that_was_named) {
  int policy = -1;
  unsigned long nodes[16] = {};
  Result<StagingRegion> memory = StagingRegion::create(4 * mib, false, 0);
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
}  // namespace firn
