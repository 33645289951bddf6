// Disks, NUMA nodes and distances, read from a sysfs that the test writes.
#include "firn/topology.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace firn {
namespace {

namespace fs = std::filesystem;

class Topology : public testing::Test {
 protected:
  Topology() {
    std::string name = fs::temp_directory_path().string() + "/firn-XXXXXX";
    if (!::mkdtemp(name.data())) std::abort();
    root = name;
    sys = (root / "sys").string();
  }
  ~Topology() override { fs::remove_all(root); }

  void write(const std::string& file, const std::string& words) {
    fs::create_directories((fs::path(sys) / file).parent_path());
    std::ofstream(fs::path(sys) / file) << words << '\n';
  }
  void link(const std::string& from, const std::string& to) {
    fs::create_directories((fs::path(sys) / from).parent_path());
    fs::create_directory_symlink(fs::path(sys) / to, fs::path(sys) / from);
  }
  /// The directory `root` lies on that device of the written sysfs.
  void lies_on(const std::string& device) {
    struct stat status {};
    ASSERT_EQ(::stat(root.c_str(), &status), 0);
    fs::create_directories(fs::path(sys) / device);
    link("dev/block/" + std::to_string(major(status.st_dev)) + ":" +
             std::to_string(minor(status.st_dev)),
         device);
  }

  fs::path root;
  std::string sys;
  const std::string nvme = "devices/pci0000:3a/0000:3b:00.0/nvme/nvme0/nvme0n1";
};

TEST_F(Topology, APartitionIsItsDisksAndHangsWhereTheControllerDoes) {
  lies_on(nvme + "/nvme0n1p2");
  write(nvme + "/nvme0n1p2/partition", "2");
  write("devices/pci0000:3a/0000:3b:00.0/numa_node", "1");
  const std::string disk = disk_of(root.string(), sys);
  EXPECT_EQ(disk, fs::canonical(fs::path(sys) / nvme).string());
  EXPECT_EQ(disk_node(disk), 1);
}

TEST_F(Topology, AWholeDiskAndUnknownNodes) {
  lies_on(nvme);
  const std::string disk = disk_of(root.string(), sys);
  EXPECT_EQ(disk, fs::canonical(fs::path(sys) / nvme).string());
  EXPECT_EQ(disk_node(disk), -1) << "no ancestor has a node";
  write("devices/pci0000:3a/0000:3b:00.0/numa_node", "-1");
  EXPECT_EQ(disk_node(disk), -1);
}

TEST_F(Topology, ADeviceMadeOfOthersHangsWhereTheyAllDo) {
  const std::string second = "devices/pci0000:80/0000:81:00.0/nvme/nvme1/nvme1n1";
  write("devices/pci0000:3a/0000:3b:00.0/numa_node", "1");
  write("devices/pci0000:80/0000:81:00.0/numa_node", "1");
  fs::create_directories(fs::path(sys) / nvme);
  fs::create_directories(fs::path(sys) / second);
  const std::string raid = "devices/virtual/block/md0";
  link(raid + "/slaves/nvme0n1", nvme);
  link(raid + "/slaves/nvme1n1", second);
  lies_on("devices/virtual/block/dm-3");
  link("devices/virtual/block/dm-3/slaves/md0", raid);
  const std::string disk = disk_of(root.string(), sys);
  EXPECT_EQ(disk_node(disk), 1);
  write("devices/pci0000:80/0000:81:00.0/numa_node", "0");
  EXPECT_EQ(disk_node(disk), -1);
}

TEST_F(Topology, WhatIsOnNoDisk) {
  EXPECT_EQ(disk_of(root.string(), sys), "");
  EXPECT_EQ(disk_of("/does/not/exist", sys), "");
  EXPECT_EQ(disk_node(""), -1);
}

TEST_F(Topology, PciDevicesInEveryWayToWriteThem) {
  write("bus/pci/devices/0000:c1:00.0/numa_node", "3");
  for (const char* id : {"0000:c1:00.0", "0000:C1:00.0", "00000000:C1:00.0"})
    EXPECT_EQ(pci_node(id, sys), 3) << id;
  EXPECT_EQ(pci_node("0000:c2:00.0", sys), -1);
  for (const char* no_node : {"-1", "-7", "9223372036854771712", "many", ""}) {
    write("bus/pci/devices/0000:c2:00.0/numa_node", no_node);
    EXPECT_EQ(pci_node("0000:c2:00.0", sys), -1) << no_node;
  }
  EXPECT_EQ(pci_node("", sys), -1);
}

TEST_F(Topology, Distances) {
  write("devices/system/node/node1/distance", "21 10 31");
  EXPECT_EQ(node_distance(1, 0, sys), 21u);
  EXPECT_EQ(node_distance(1, 1, sys), 10u);
  EXPECT_EQ(node_distance(1, 2, sys), 31u);
  for (auto [from, to] : {std::pair{1, 3}, {2, 0}, {-1, 0}, {1, -1}})
    EXPECT_EQ(node_distance(from, to, sys), 0u) << from << ' ' << to;
}

TEST(TopologyHere, TheRealSysfsIsReadWithoutHarm) {
  const std::string disk = disk_of(fs::current_path().string());
  EXPECT_TRUE(disk.empty() || fs::is_directory(disk)) << disk;
  EXPECT_GE(disk_node(disk), -1);
}

}  // namespace
}  // namespace firn
