// Staging while other threads map and unmap: nobody's memory but their own is touched.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "firn/store.h"
#include "tests/backing/store/huge_pages.h"

namespace firn {
namespace {

constexpr size_t mib = 1u << 20;

/// Maps, fills, looks again, unmaps, until told to stop. False: somebody else was there.
bool own_memory_stays(const std::atomic<bool>& stop, char mark) {
  for (size_t round = 0; !stop; ++round) {
    const size_t bytes = (1 + round % 5) * mib;
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return false;
    auto* bytes_of = static_cast<char*>(data);
    for (size_t at = 0; at < bytes; at += 4096) bytes_of[at] = mark;
    std::this_thread::yield();
    for (size_t at = 0; at < bytes; at += 4096)
      if (bytes_of[at] != mark) return false;
    if (::munmap(data, bytes) != 0) return false;
  }
  return true;
}

TEST(StagingMemory, touches_nobody_elses_memory) {
  std::atomic<bool> stop{false};
  std::atomic<int> disturbed{0};
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i)
    others.emplace_back([&, i] { disturbed += !own_memory_stays(stop, static_cast<char>(i + 1)); });
  for (int i = 0; i < 2000; ++i) {
    Result<StagingMemory> memory = StagingMemory::create((1 + i % 3) * 2 * mib);
    ASSERT_TRUE(memory);
    memory->bytes()[0] = memory->bytes().back() = std::byte{7};
  }
  stop = true;
  for (std::thread& each : others) each.join();
  EXPECT_EQ(disturbed, 0);
}

TEST(StagingMemory, is_there_before_its_first_access_when_asked) {
  Result<StagingMemory> memory = StagingMemory::create(4 * mib);
  ASSERT_TRUE(memory);
  memory->populate();
  std::vector<unsigned char> there(4 * mib / 4096);
  ASSERT_EQ(::mincore(memory->bytes().data(), memory->bytes().size(), there.data()), 0);
  EXPECT_EQ(std::count_if(there.begin(), there.end(), [](unsigned char each) { return each & 1; }),
            static_cast<ptrdiff_t>(there.size()));
}

size_t pages_there(const StagingMemory& memory) {
  std::vector<unsigned char> there(memory.bytes().size() / 4096);
  if (::mincore(memory.bytes().data(), memory.bytes().size(), there.data()) != 0) return 0;
  return static_cast<size_t>(
      std::count_if(there.begin(), there.end(), [](unsigned char each) { return each & 1; }));
}

TEST(StagingMemory, huge_pages_that_cannot_be_had_are_ordinary_ones) {
  testing_store::huge_pages.given = true;
  for (const size_t granted : {size_t{0}, 2 * mib, 6 * mib}) {
    testing_store::huge_pages.granted = granted;
    Result<StagingMemory> memory = StagingMemory::create(8 * mib);
    ASSERT_TRUE(memory);
    EXPECT_STRNE(memory->pages(), "hugetlb");
    for (std::byte& each : memory->bytes()) each = std::byte{1};  // each can be accessed
  }
  testing_store::huge_pages.granted = SIZE_MAX;
  Result<StagingMemory> memory = StagingMemory::create(8 * mib);
  ASSERT_TRUE(memory);
  EXPECT_STREQ(memory->pages(), "hugetlb");
  EXPECT_EQ(pages_there(*memory), 8 * mib / 4096) << "before anybody counts on them";
  Result<StagingMemory> ordinary = StagingMemory::create(8 * mib, false, -1, false);
  ASSERT_TRUE(ordinary);
  EXPECT_STRNE(ordinary->pages(), "hugetlb");
  testing_store::huge_pages.given = false;
}

TEST(StagingMemory, each_gets_huge_pages_where_there_are_some) {
  testing_store::huge_pages = {true, SIZE_MAX, nullptr, 0};
  std::vector<StagingMemory> pieces;
  for (size_t i = 0; i < 8; ++i) {
    Result<StagingMemory> memory = StagingMemory::create((1 + i % 3) * 2 * mib);
    ASSERT_TRUE(memory);
    EXPECT_STREQ(memory->pages(), "hugetlb") << i;
    pieces.push_back(std::move(*memory));
  }
  testing_store::huge_pages.given = false;
  std::sort(pieces.begin(), pieces.end(), [](const StagingMemory& a, const StagingMemory& b) {
    return a.bytes().data() < b.bytes().data();
  });
  for (size_t i = 1; i < pieces.size(); ++i)
    EXPECT_GE(pieces[i].bytes().data() - (&pieces[i - 1].bytes().back() + 1),
              static_cast<ptrdiff_t>(2 * mib))
        << "no memory is another's neighbour";
}

/// VmFlags of the mapping that begins there.
std::string flags_at(const void* data) {
  char begin[32];
  std::snprintf(begin, sizeof begin, "%lx-", reinterpret_cast<unsigned long>(data));
  std::ifstream in("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(in, line);) {
    here = here || line.starts_with(begin);
    if (here && line.starts_with("VmFlags:")) return line + " ";
  }
  return {};
}

TEST(StagingMemory, is_in_no_core_file_and_in_no_child) {
  for (const bool huge : {false, true}) {
    testing_store::huge_pages = {huge, SIZE_MAX, nullptr, 0};
    Result<StagingMemory> memory = StagingMemory::create(4 * mib);
    ASSERT_TRUE(memory);
    EXPECT_EQ(memory->pages() == std::string("hugetlb"), huge);
    const std::string flags = flags_at(memory->bytes().data());
    EXPECT_NE(flags.find(" dd "), std::string::npos) << flags;
    EXPECT_NE(flags.find(" dc "), std::string::npos) << flags;
  }
  testing_store::huge_pages.given = false;
}

}  // namespace
}  // namespace firn
