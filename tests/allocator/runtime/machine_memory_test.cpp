#include "allocator/runtime/machine_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

using namespace firn;
namespace fs = std::filesystem;

namespace {

constexpr uint64_t mib = 1u << 20;

constexpr const char* second_version =
    "21 1 0:19 / / rw - ext4 /dev/root rw\n"
    "30 21 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr const char* both_versions =
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "36 31 0:33 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

TEST(MemoryGroups, are_those_from_the_process_s_own_to_the_root) {
  const auto groups = memory_groups("0::/user.slice/job.scope\n", second_version);
  const std::vector<MemoryGroup> expected = {{"/sys/fs/cgroup/user.slice/job.scope", 2},
                                             {"/sys/fs/cgroup/user.slice", 2},
                                             {"/sys/fs/cgroup", 2}};
  EXPECT_EQ(groups, expected);
}

TEST(MemoryGroups, of_both_versions_are_looked_at) {
  const auto groups = memory_groups("4:memory:/api/job\n3:cpu,cpuacct:/x\n0::/\n", both_versions);
  const std::vector<MemoryGroup> expected = {{"/sys/fs/cgroup/unified", 2},
                                             {"/sys/fs/cgroup/memory/api/job", 1},
                                             {"/sys/fs/cgroup/memory/api", 1},
                                             {"/sys/fs/cgroup/memory", 1}};
  EXPECT_EQ(groups, expected);
}

TEST(MemoryGroups, in_a_container_are_where_its_own_is_mounted) {
  const std::string mounted =
      "35 31 0:32 /docker/4711 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
  const std::vector<MemoryGroup> own = {{"/sys/fs/cgroup/memory", 1}};
  EXPECT_EQ(memory_groups("4:memory:/docker/4711\n", mounted), own);
  const std::vector<MemoryGroup> inner = {{"/sys/fs/cgroup/memory/inner", 1},
                                          {"/sys/fs/cgroup/memory", 1}};
  EXPECT_EQ(memory_groups("4:memory:/docker/4711/inner\n", mounted), inner);
  // Out of the namespace's own: nothing below the mount point is known.
  const std::vector<MemoryGroup> root = {{"/sys/fs/cgroup", 2}};
  EXPECT_EQ(memory_groups("0::/../elsewhere\n", second_version), root);
}

TEST(MemoryGroups, of_mount_points_with_blanks) {
  const std::vector<MemoryGroup> expected = {{"/a b\\c", 2}};
  EXPECT_EQ(memory_groups("0::/\n", "1 1 0:1 / /a\\040b\\134c rw - cgroup2 none rw\n"), expected);
  const std::vector<MemoryGroup> blank_last = {{"/a ", 2}};
  EXPECT_EQ(memory_groups("0::/\n", "1 1 0:1 / /a\\040 rw - cgroup2 none rw\n"), blank_last);
}

TEST(MemoryGroups, of_nonsense_are_none) {
  for (const char* cgroup : {"", "\n", "::", "0::", "memory", "9", "0:x:/y"})
    for (const char* mounts : {"", "\n", "a b c", " - ", "1 2 3 4 5 - cgroup2", "- - - - - - -"})
      EXPECT_LE(memory_groups(cgroup, mounts).size(), 1u) << cgroup << "|" << mounts;
  std::mt19937_64 random(1);
  const std::string letters = "0::/memory - cgroup2,\\040\n4:. ";
  for (int round = 0; round < 20'000; ++round) {
    std::string one, other;
    for (size_t i = random() % 60; i-- > 0;) one += letters[random() % letters.size()];
    for (size_t i = random() % 120; i-- > 0;) other += letters[random() % letters.size()];
    (void)memory_groups(one, other);
  }
}

class Group : public testing::Test {
 protected:
  Group() {
    std::string name = fs::temp_directory_path() / "group-XXXXXX";
    EXPECT_TRUE(::mkdtemp(name.data()));
    folder = name;
  }
  ~Group() override { fs::remove_all(folder); }
  void put(const char* name, const std::string& text) { std::ofstream(folder / name) << text; }
  static std::string bytes(uint64_t mibs) { return std::to_string(mibs * mib) + "\n"; }
  fs::path folder;
};

TEST_F(Group, leaves_its_limit_less_what_is_in_use) {
  put("memory.max", bytes(520));
  put("memory.high", "max\n");
  put("memory.current", bytes(400));
  put("memory.stat", "anon 1\nfile 2\ninactive_file " + std::to_string(30 * mib) + "\nx 3\n");
  const GroupMemory memory = read_group({folder, 2});
  EXPECT_EQ(memory.limit, 520 * mib);
  EXPECT_EQ(memory.left, 150 * mib);  // files that nobody reads are the kernel's to take
}

TEST_F(Group, is_throttled_from_memory_high_on) {
  put("memory.max", bytes(520));
  put("memory.high", bytes(450));
  put("memory.current", bytes(460));
  EXPECT_EQ(read_group({folder, 2}).limit, 450 * mib);
  EXPECT_EQ(read_group({folder, 2}).left, 0u);
}

TEST_F(Group, of_version_1_has_other_names) {
  put("memory.limit_in_bytes", bytes(520));
  put("memory.usage_in_bytes", bytes(400));
  put("memory.stat", "inactive_file 1\ntotal_inactive_file " + std::to_string(20 * mib) + "\n");
  EXPECT_EQ(read_group({folder, 1}).left, 140 * mib);
}

TEST_F(Group, without_a_limit_limits_nothing) {
  EXPECT_EQ(read_group({folder, 2}).left, UINT64_MAX);
  EXPECT_EQ(read_group({folder / "none", 1}).limit, UINT64_MAX);
  put("memory.limit_in_bytes", "9223372036854771712\n");
  put("memory.usage_in_bytes", bytes(400));
  EXPECT_EQ(read_group({folder, 1}).left, UINT64_MAX);
  put("memory.max", "max\n");
  put("memory.current", bytes(1));
  EXPECT_EQ(read_group({folder, 2}).left, UINT64_MAX);
}

TEST(MachineMemory, is_read_here) {
  EXPECT_GT(machine_memory_bytes(), available_memory_bytes());
  EXPECT_GT(available_memory_bytes(), 0u);
  EXPECT_LE(available_memory_bytes(), cgroup_memory().left);
  EXPECT_GE(memory_pressure(), 0);
  EXPECT_LE(memory_pressure(), 100);
}

TEST(MachineMemory, a_pressure_is_a_percentage) {
  EXPECT_EQ(full_pressure("some avg10=1.00 total=5\nfull avg10=12.50 avg60=0.00 total=3\n"), 12.5);
  for (const char* text : {"", "full avg10=", "full avg10=nan", "full avg10=inf total=1",
                           "full avg10=-3", "full avg10=1e99"})
    EXPECT_EQ(full_pressure(text), 0) << text;
}

TEST(MachineMemory, a_line_of_meminfo) {
  const char* text = "MemTotal:       24684084 kB\nMemAvailable:   20000000 kB\n";
  EXPECT_EQ(meminfo_bytes(text, "MemAvailable:"), uint64_t{20000000} << 10);
  EXPECT_EQ(meminfo_bytes(text, "MemFree:"), 0u);
  EXPECT_EQ(meminfo_bytes("", "MemTotal:"), 0u);
  EXPECT_EQ(meminfo_bytes("HugePages_Total: 3\nMemTotal:5 kB\n", "MemTotal:"), 5u << 10);
  EXPECT_EQ(meminfo_bytes("MemTotal: 18446744073709551615 kB\n", "MemTotal:"), UINT64_MAX);
  EXPECT_EQ(meminfo_bytes("MemTotal: none\nMemTotal: 4 kB\n", "MemTotal:"), 0u);
}

TEST(MachineMemory, a_part_is_never_pinned) {
  EXPECT_EQ(host_kept_bytes(520 * mib), 65 * mib);
  EXPECT_EQ(host_kept_bytes(uint64_t{1} << 40), uint64_t{4} << 30);
  EXPECT_EQ(host_kept_bytes(0), 64 * mib);
}

}  // namespace
