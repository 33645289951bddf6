// What is written is what the reader of traces reads.
#include "allocator/record/program_files.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "allocator/simulate/program_trace.h"
#include "tests/allocator/record/recorded_program.h"

namespace firn::record {
namespace {

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/firn-record-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }
  std::string folder_;
};

TEST_F(Files, are_read_back) {
  Recording recording;
  Trainer trainer(recording);
  trainer.make_model();
  for (int i = 0; i < 5; ++i) trainer.iteration(ZeroGrad::at_the_start);
  const Iteration iteration = cut_iteration(recording);
  const Result<void> written = write_program(recording, iteration, folder_ + "/job");
  ASSERT_TRUE(written) << written.error().text;
  EXPECT_EQ(files(), 2u);
  Result<simulate::ProgramTrace> read = simulate::read_program_trace(folder_ + "/job");
  ASSERT_TRUE(read) << read.error().text;
  ASSERT_EQ(read->kernels.size(), iteration.kernels.size());
  ASSERT_EQ(read->tensors.size(), iteration.tensors.size());
  for (size_t k = 0; k < read->kernels.size(); ++k) {
    const Iteration::Kernel& kernel = iteration.kernels[k];
    EXPECT_EQ(read->name(read->kernels[k]), recording.name(recording.kernels()[kernel.name]));
    EXPECT_EQ(read->kernels[k].duration_ns, kernel.duration_ns);
    const auto uses = std::span(iteration.uses).subspan(kernel.uses_at);
    EXPECT_TRUE(std::ranges::equal(read->inputs(read->kernels[k]), uses.first(kernel.inputs)));
    EXPECT_TRUE(std::ranges::equal(read->outputs(read->kernels[k]),
                                   uses.subspan(kernel.inputs, kernel.outputs)));
  }
}

TEST_F(Files, hold_odd_kernels) {
  Recording recording;
  const uint32_t block = recording.allocate(1);
  recording.kernel("my::op<float, \"x\">\n", 0, std::vector{block}, std::vector{block});
  recording.kernel("reads", 0, std::vector{block}, {});
  recording.kernel("writes", 0, {}, std::vector{block});
  recording.kernel("", 0, {}, {});
  const Result<void> written =
      write_program(recording, cut_iteration(recording), folder_ + "/job");
  ASSERT_TRUE(written) << written.error().text;
  Result<simulate::ProgramTrace> read = simulate::read_program_trace(folder_ + "/job");
  ASSERT_TRUE(read) << read.error().text;
  ASSERT_EQ(read->kernels.size(), 4u);
  EXPECT_EQ(read->name(read->kernels[0]), "my::op<float_ _x_>_");
  EXPECT_EQ(read->inputs(read->kernels[0]).size(), 1u);
  EXPECT_EQ(read->outputs(read->kernels[0]).size(), 1u);
  EXPECT_EQ(read->outputs(read->kernels[1]).size(), 0u);
  EXPECT_EQ(read->inputs(read->kernels[2]).size(), 0u);
  EXPECT_EQ(read->outputs(read->kernels[2]).size(), 1u);
  EXPECT_EQ(read->kernels[3].duration_ns, 1u);
}

TEST_F(Files, that_cannot_be_written_are_named_and_leave_nothing) {
  Recording recording;
  recording.kernel("k", 1, std::vector{recording.allocate(1)}, {});
  const Iteration iteration = cut_iteration(recording);
  const Result<void> written = write_program(recording, iteration, folder_ + "/no/job");
  ASSERT_FALSE(written);
  EXPECT_NE(written.error().text.find("/no/job.tensors.csv"), std::string::npos);
  // The second file's name is taken by a folder that holds something.
  std::filesystem::create_directories(folder_ + "/job.kernels.csv/x");
  EXPECT_FALSE(write_program(recording, iteration, folder_ + "/job"));
  EXPECT_EQ(files(), 1u);
}

TEST_F(Files, of_an_earlier_run_are_removed) {
  for (const char* name : {"/job.tensors.csv", "/job.kernels.csv", "/job.csv"})
    std::ofstream(folder_ + name) << "x";
  remove_program(folder_ + "/job");
  EXPECT_EQ(files(), 1u);
}

TEST(Prefix, is_the_name_without_csv) {
  EXPECT_EQ(program_prefix("/a/job.csv"), "/a/job");
  EXPECT_EQ(program_prefix("/a/job"), "/a/job");
  EXPECT_EQ(program_prefix("job.csv.old"), "job.csv.old");
}

}  // namespace
}  // namespace firn::record
