#include "allocator/host_tier.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include <gtest/gtest.h>

namespace firn {
namespace {

constexpr uint64_t mib = 1u << 20, region = 128 * mib;

uint64_t registered = 0;
CUresult answer = CUDA_SUCCESS;
CUresult register_host(void*, size_t bytes, unsigned) {
  if (answer == CUDA_SUCCESS) registered += bytes;
  return answer;
}
CUresult unregister_host(void*) { return CUDA_SUCCESS; }
CUresult no_words(CUresult, const char** words) {
  *words = "refused";
  return CUDA_SUCCESS;
}

class Host : public ::testing::Test {
 protected:
  Host() {
    driver.mem_host_register = register_host;
    driver.mem_host_unregister = unregister_host;
    driver.get_error_name = driver.get_error_string = no_words;
    registered = 0;
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
