// Which node host memory is taken from, on machines of several shapes.
#include "allocator/memory/host_nodes.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

using namespace firn;

namespace {

class HostNodes : public ::testing::Test {
 protected:
  HostNodes() {
    std::string pattern = std::filesystem::temp_directory_path() / "firn-nodes-XXXXXX";
    root_ = ::mkdtemp(pattern.data());
    files_ = {root_ + "/node", root_ + "/status"};
    std::filesystem::create_directory(files_.nodes);
  }
  ~HostNodes() override { std::filesystem::remove_all(root_); }

  void node(int number, const char* processors, uint64_t kilobytes) {
    const std::string folder = files_.nodes + "/node" + std::to_string(number);
    std::filesystem::create_directory(folder);
    std::ofstream(folder + "/cpulist") << processors << "\n";
    std::ofstream(folder + "/meminfo") << "Node " << number << " MemTotal:       " << kilobytes
                                       << " kB\nNode " << number << " MemFree: 1 kB\n";
  }
  void allowed(const char* list) {
    std::ofstream(files_.status) << "Name:\tx\nMems_allowed:\t3\nMems_allowed_list:\t" << list
                                 << "\nvoluntary_ctxt_switches:\t1\n";
  }

  std::string root_;
  NodeFiles files_;
};

}  // namespace

TEST_F(HostNodes, the_device_s_own_where_it_has_memory_and_processors) {
  node(0, "0-3", 1000), node(1, "4-7", 1000);
  EXPECT_EQ(host_node(1, files_), 1);
  EXPECT_EQ(host_node(0, files_), 0);
}

TEST_F(HostNodes, not_one_without_memory) {
  node(0, "0-3", 1000), node(1, "4-7", 0);
  EXPECT_EQ(host_node(1, files_), 0);
}

TEST_F(HostNodes, not_one_without_processors_where_there_is_another) {
  node(0, "", 1000), node(1, "0-7", 1000);
  EXPECT_EQ(host_node(0, files_), 1);
}

TEST_F(HostNodes, one_without_processors_rather_than_none) {
  node(0, "0-7", 0), node(1, "", 1000);
  EXPECT_EQ(host_node(0, files_), 1);
}

TEST_F(HostNodes, only_what_the_process_may_use) {
  node(0, "0-3", 1000), node(1, "4-7", 1000), node(12, "8-9", 1000);
  allowed("1-3");
  EXPECT_EQ(host_node(0, files_), 1);
  allowed("2,12");
  EXPECT_EQ(host_node(0, files_), 12);
  allowed("7");
  EXPECT_EQ(host_node(0, files_), -1);
}

TEST_F(HostNodes, none_where_the_list_of_those_that_may_be_used_is_empty) {
  node(0, "0-3", 1000);
  std::ofstream(files_.status) << "Mems_allowed_list:";
  EXPECT_EQ(host_node(0, files_), -1);
  std::ofstream(files_.status) << "Mems_allowed_list:\t\nMems:\t0\n";
  EXPECT_EQ(host_node(0, files_), -1);
}

TEST_F(HostNodes, a_machine_that_tells_nothing_has_one) {
  std::filesystem::remove_all(files_.nodes);
  EXPECT_EQ(host_node(-1, files_), 0);
  EXPECT_EQ(host_node(3, files_), 3);
}

TEST_F(HostNodes, no_memory_anywhere) {
  node(0, "0-3", 0);
  EXPECT_EQ(host_node(0, files_), -1);
}
