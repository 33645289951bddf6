// Reading ld.so.cache, whatever its bytes are.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" {
#include "allocator/preload/real_driver.h"
void* firn_targets[1];  // the stand-in's, which is not linked here
}

namespace {

#if defined(__aarch64__)
constexpr int32_t native = 0xa03;
#else
constexpr int32_t native = 0x303;
#endif

struct Line {
  int32_t flags;
  std::string key, value;
};

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// As ldconfig writes it: head, entries, strings; offsets count from the head.
std::string cache_of(const std::vector<Line>& lines) {
  std::string head = "glibc-ld.so.cache1.1", entries, strings;
  const uint32_t begin = 48 + 24 * static_cast<uint32_t>(lines.size());
  for (const Line& line : lines) {
    put(entries, line.flags);
    put(entries, begin + static_cast<uint32_t>(strings.size()));
    strings += line.key + '\0';
    put(entries, begin + static_cast<uint32_t>(strings.size()));
    strings += line.value + '\0';
    put(entries, uint32_t{0});
    put(entries, uint64_t{0});
  }
  put(head, static_cast<uint32_t>(lines.size()));
  put(head, static_cast<uint32_t>(strings.size()));
  head.resize(48);
  return head + entries + strings;
}

int any(const char*) { return 1; }
int real_one(const char* path) { return std::strstr(path, "stand-in") == nullptr; }

std::string find(const std::string& cache, int (*takes)(const char*) = any) {
  // Exactly as long as the bytes: what is read beyond would be seen by a sanitizer.
  std::vector<char> bytes(cache.begin(), cache.end());
  const char* found = firn_find_in_cache(bytes.data(), bytes.size(), "libcuda.so.1", takes);
  return found ? found : "";
}

const std::vector<Line> lines = {
    {native, "libcudart.so.13", "/opt/libcudart.so.13"},
    {native ^ 0x300, "libcuda.so.1", "/lib32/libcuda.so.1"},
    {native, "libcuda.so.1", "/stand-in/libcuda.so.1"},
    {native, "libcuda.so.1", "/real/libcuda.so.1"},
    {native, "libcuda.so", "/real/libcuda.so"},
};

TEST(RealDriver, TheCachesFirstUsableEntryOfThisMachineIsTaken) {
  EXPECT_EQ(find(cache_of(lines)), "/stand-in/libcuda.so.1");
  EXPECT_EQ(find(cache_of(lines), real_one), "/real/libcuda.so.1");
}

TEST(RealDriver, AnOlderTableMayStandBeforeTheNewOne) {
  EXPECT_EQ(find("ld.so-1.7.0 glibc-ld" + cache_of(lines), real_one), "/real/libcuda.so.1");
}

TEST(RealDriver, NoSuchEntryIsNone) {
  EXPECT_EQ(find(cache_of({})), "");
  EXPECT_EQ(find(cache_of({lines[0], lines[1], lines[4]})), "");
  EXPECT_EQ(find(""), "");
  EXPECT_EQ(find("glibc-ld.so.cache1.1"), "");
}

TEST(RealDriver, CutAndBrokenCachesAreReadWithinTheirBytes) {
  const std::string whole = cache_of(lines);
  for (size_t size = 0; size < whole.size(); ++size) (void)find(whole.substr(0, size));
  std::mt19937 random(6);
  for (int round = 0; round < 20000; ++round) {
    std::string broken = whole;
    for (int i = 0; i < 1 + round % 8; ++i)
      broken[random() % broken.size()] = static_cast<char>(random());
    const std::string found = find(broken);
    EXPECT_LE(found.size(), broken.size());
  }
}

TEST(RealDriver, ThisMachinesOwnCacheIsUnderstood) {
  std::ifstream file("/etc/ld.so.cache", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  if (bytes.empty()) GTEST_SKIP() << "no /etc/ld.so.cache";
  const char* found = firn_find_in_cache(bytes.data(), bytes.size(), "libc.so.6", firn_is_driver);
  ASSERT_NE(found, nullptr);
  EXPECT_NE(std::string(found).find("libc.so.6"), std::string::npos);
}

TEST(RealDriver, NamesOfTheDriver) {
  for (const char* name : {"libcuda.so", "libcuda.so.1", "libcuda.so.580.65.06"})
    EXPECT_TRUE(firn_is_driver_name(name)) << name;
  for (const char* name : {"libcudart.so", "libcuda.so.", "libcuda.so.1.bak", "libcuda.sox",
                           "libcuda", "xlibcuda.so", ""})
    EXPECT_FALSE(firn_is_driver_name(name)) << name;
}

}  // namespace
