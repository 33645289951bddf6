// The verdict about GPUDirect Storage, over trees of /sys as machines have them.
#include "allocator/command/direct_storage.h"

#include <gtest/gtest.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

using namespace firn::command;
namespace fs = std::filesystem;

namespace {

/// A machine's /sys, in a folder of its own.
class Machine : public ::testing::Test {
 protected:
  Machine() {
    std::string name = testing::TempDir() + "pci-XXXXXX";
    root_ = ::mkdtemp(name.data());
    fs::create_directories(root_ / "sys/bus/pci/devices");
    fs::create_directories(root_ / "sys/dev/block");
  }
  ~Machine() override { fs::remove_all(root_); }

  /// A PCI device at the end of `path`, below /sys/devices.
  void add(const std::string& path, const std::string& speed, const std::string& width) {
    const fs::path at = root_ / "sys/devices" / path;
    fs::create_directories(at);
    std::ofstream(at / "max_link_speed") << speed << "\n";
    std::ofstream(at / "max_link_width") << width << "\n";
    fs::create_symlink(at, root_ / "sys/bus/pci/devices" / at.filename());
  }

  /// A block device `path` below /sys/devices.
  void add_block(const std::string& path, unsigned minor) {
    fs::create_directories(root_ / "sys/devices" / path / "slaves");
    fs::create_symlink(root_ / "sys/devices" / path,
                       root_ / "sys/dev/block" / ("259:" + std::to_string(minor)));
  }

  void put_below(const std::string& upper, const std::string& lower) {
    fs::create_symlink(root_ / "sys/devices" / lower,
                       root_ / "sys/devices" / upper / "slaves" / fs::path(lower).filename());
  }

  /// The device and two disks behind one switch with `uplink` lanes, a third disk elsewhere, and a
  /// volume of the first two.
  void build(const std::string& uplink) {
    const std::string port = "pci0000:37/0000:37:01.0", top = port + "/0000:38:00.0";
    add(port, "32.0 GT/s PCIe", uplink);
    add(top, "32.0 GT/s PCIe", uplink);
    unsigned minor = 0;
    for (const char* each : {"0000:39:00.0", "0000:39:01.0", "0000:39:02.0"})
      add(top + "/" + each, "32.0 GT/s PCIe", "16");
    add(top + "/0000:39:00.0/0000:3a:00.0", "32.0 GT/s PCIe", "16");  // the GPU
    add(top + "/0000:39:01.0/0000:3b:00.0", "16.0 GT/s PCIe", "4");
    add(top + "/0000:39:02.0/0000:3c:00.0", "16.0 GT/s PCIe", "4");
    add("pci0000:80/0000:80:01.0", "16.0 GT/s PCIe", "4");
    add("pci0000:80/0000:80:01.0/0000:81:00.0", "16.0 GT/s PCIe", "4");
    for (const std::string& disk :
         {top + "/0000:39:01.0/0000:3b:00.0/nvme/nvme0/nvme0n1/nvme0n1p1",
          top + "/0000:39:02.0/0000:3c:00.0/nvme/nvme1/nvme1n1",
          std::string("pci0000:80/0000:80:01.0/0000:81:00.0/nvme/nvme2/nvme2n1"),
          std::string("virtual/block/dm-0")})
      add_block(disk, minor++);
    put_below("virtual/block/dm-0",
              top + "/0000:39:01.0/0000:3b:00.0/nvme/nvme0/nvme0n1/nvme0n1p1");
    put_below("virtual/block/dm-0", top + "/0000:39:02.0/0000:3c:00.0/nvme/nvme1/nvme1n1");
  }

  std::vector<PciPath> disks(unsigned minor) {
    return disk_paths_of(::makedev(259, minor), root_);
  }
  DirectStorage judge(const std::vector<DiskSpeed>& dirs) {
    return judge_direct_storage(pci_path_of("00000000:3A:00.0", root_), dirs, root_);
  }

  fs::path root_;
};

constexpr double GB = 1e9;

}  // namespace

TEST(PciLink, carries_as_much_as_measured_ones) {
  // Of 63.0 and 31.5 GB/s: an H200 is seen at 55 to 57, an A100 at 26 to 28.
  EXPECT_NEAR((PciLink{"", 32, 16}.bytes_s()), 57.6 * GB, .1 * GB);
  EXPECT_NEAR((PciLink{"", 16, 16}.bytes_s()), 28.8 * GB, .1 * GB);
  EXPECT_NEAR((PciLink{"", 5, 16}.bytes_s()), 7.3 * GB, .1 * GB);
  EXPECT_EQ((PciLink{"", 0, 16}.bytes_s()), 0);
}

TEST_F(Machine, a_device_s_path_has_each_bridge_above_it) {
  build("16");
  const PciPath path = pci_path_of("0000:3a:00.0", root_);
  ASSERT_EQ(path.size(), 4u);
  EXPECT_EQ(path.front().address, "0000:37:01.0");
  EXPECT_EQ(path.back().address, "0000:3a:00.0");
  EXPECT_EQ(path.back().gt_s, 32);
  EXPECT_EQ(path.back().lanes, 16);
}

TEST_F(Machine, a_volume_is_the_disks_that_it_is_made_of) {
  build("16");
  const std::vector<PciPath> found = disks(3);
  ASSERT_EQ(found.size(), 2u);
  std::vector<std::string> names{found[0].back().address, found[1].back().address};
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"0000:3b:00.0", "0000:3c:00.0"}));
}

TEST_F(Machine, without_a_switch_the_link_bounds_both_ways) {
  build("16");
  const DirectStorage found = judge({{disks(2), 7 * GB, 5 * GB}});
  EXPECT_FALSE(found.shared_switch);
  EXPECT_EQ(found.would_help, false);
  EXPECT_NEAR(found.link_bytes_s, 57.6 * GB, .1 * GB);
  EXPECT_EQ(found.disks_bytes_s, 12 * GB);
  EXPECT_EQ(found.host_memory_bytes_s, 24 * GB);
  EXPECT_NE(found.why.find("24.0 GB/s of its bandwidth"), std::string::npos) << found.why;
}

TEST_F(Machine, a_switch_counts_where_its_uplink_is_narrower_than_its_disks) {
  build("4");  // 14.4 GB/s
  const DirectStorage narrow = judge({{disks(0), 7 * GB, 5 * GB}, {disks(1), 7 * GB, 5 * GB}});
  EXPECT_TRUE(narrow.shared_switch);
  EXPECT_EQ(narrow.would_help, true);
  EXPECT_NEAR(narrow.uplink_bytes_s, 14.4 * GB, .1 * GB);
  EXPECT_NE(narrow.why.find("less than the 24.0 GB/s"), std::string::npos) << narrow.why;
  const DirectStorage one = judge({{disks(0), 7 * GB, 5 * GB}, {disks(2), 7 * GB, 5 * GB}});
  EXPECT_TRUE(one.shared_switch);
  EXPECT_NE(one.why.find("no less than the 12.0 GB/s"), std::string::npos) << one.why;
  EXPECT_EQ(one.would_help, false);  // twelve of the 24 cross it
}

TEST_F(Machine, a_link_is_as_fast_as_the_slower_end) {
  add("pci0000:00/0000:00:01.0", "16.0 GT/s PCIe", "8");
  add("pci0000:00/0000:00:01.0/0000:01:00.0", "32.0 GT/s PCIe", "16");
  const DirectStorage found =
      judge_direct_storage(pci_path_of("0000:01:00.0", root_), {{{}, GB, GB}}, root_);
  EXPECT_NEAR(found.link_bytes_s, 14.4 * GB, .1 * GB);
}

TEST_F(Machine, a_disk_whose_place_is_unknown_decides_nothing) {
  build("4");
  for (unsigned other : {0u, 2u}) {  // behind the switch, and elsewhere
    const DirectStorage found = judge({{disks(other), 1 * GB, 1 * GB}, {{}, 7 * GB, 5 * GB}});
    EXPECT_FALSE(found.would_help.has_value());
    EXPECT_NE(found.why.find("is not known"), std::string::npos) << found.why;
  }
}

TEST_F(Machine, two_directories_on_a_disk_count_once) {
  build("4");
  const DirectStorage found = judge({{disks(0), 7 * GB, 5 * GB}, {disks(0), 7 * GB, 5 * GB}});
  EXPECT_EQ(found.disks_bytes_s, 12 * GB);
  EXPECT_EQ(found.would_help, false);
}

TEST_F(Machine, files_that_say_nothing_are_no_speed) {
  add("pci0000:00/0000:00:05.0", "Unknown", "255");
  const PciPath path = pci_path_of("0000:00:05.0", root_);
  ASSERT_EQ(path.size(), 1u);
  EXPECT_EQ(path[0].gt_s, 0);
  EXPECT_EQ(path[0].lanes, 0);
  const DirectStorage found = judge_direct_storage(path, {{{}, GB, GB}}, root_);
  EXPECT_EQ(found.why, "the device's link is not known here");
  EXPECT_FALSE(found.would_help.has_value());
}

TEST_F(Machine, names_that_are_no_address_are_no_path) {
  build("16");
  for (const char* name : {"", "0000:3a:00", "../../etc", "0000:3a:00.0/..", "zzzz:3a:00.0"})
    EXPECT_TRUE(pci_path_of(name, root_).empty()) << name;
}
