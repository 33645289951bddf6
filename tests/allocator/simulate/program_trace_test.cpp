// Reading traces: what is right is read, everything else is refused with file and line.
#include "allocator/simulate/program_trace.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>

namespace firn::simulate {
namespace {

constexpr const char* good_tensors = "tensor,bytes,kind\n0,4096,transient\n7,8192,persistent\n";
constexpr const char* good_kernels =
    "kernel,name,duration_ns,inputs,outputs\n0,first,10,7,0\n1,second,20,0 7,7\n";

class Trace : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/firn-trace-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string prefix() const { return folder_ + "/t"; }
  void write(const std::string& tensors, const std::string& kernels) {
    std::ofstream(prefix() + ".tensors.csv") << tensors;
    std::ofstream(prefix() + ".kernels.csv") << kernels;
  }
  Result<ProgramTrace> read(const std::string& tensors, const std::string& kernels) {
    write(tensors, kernels);
    return read_program_trace(prefix());
  }
  void expect_refused(const std::string& tensors, const std::string& kernels,
                      const std::string& begin, const std::string& says) {
    Result<ProgramTrace> trace = read(tensors, kernels);
    ASSERT_FALSE(trace) << "should say: " << says;
    const std::string& text = trace.error().text;
    EXPECT_TRUE(text.starts_with(folder_ + "/" + begin)) << text << "\nshould begin: " << begin;
    EXPECT_NE(text.find(says), std::string::npos) << text << "\nshould say: " << says;
  }
  std::string folder_;
};

TEST_F(Trace, is_read) {
  Result<ProgramTrace> trace = read(good_tensors, good_kernels);
  ASSERT_TRUE(trace) << trace.error().text;
  ASSERT_EQ(trace->tensors.size(), 2u);
  EXPECT_EQ(trace->tensors[1].id, 7u);
  EXPECT_TRUE(trace->tensors[1].persistent);
  EXPECT_EQ(trace->tensors[0].first, 0u);
  EXPECT_EQ(trace->tensors[0].last, 1u);
  ASSERT_EQ(trace->kernels.size(), 2u);
  EXPECT_EQ(trace->name(trace->kernels[1]), "second");
  EXPECT_EQ(trace->duration_ns, 30u);
  ASSERT_EQ(trace->inputs(trace->kernels[1]).size(), 2u);
  EXPECT_EQ(trace->inputs(trace->kernels[1])[1], 1u);
  ASSERT_EQ(trace->outputs(trace->kernels[0]).size(), 1u);
  EXPECT_EQ(trace->outputs(trace->kernels[0])[0], 0u);
}

TEST_F(Trace, may_have_more_columns_in_another_order_quotes_and_windows_lines) {
  Result<ProgramTrace> trace =
      read("\xef\xbb\xbfkind,note,bytes,tensor\r\ntransient,,4096,0\r\n",
           "outputs,name,inputs,kernel,duration_ns\r\n0,\"a, \"\"b\"\"\",,3,10\r\n0,,0,1,5");
  ASSERT_TRUE(trace) << trace.error().text;
  EXPECT_EQ(trace->name(trace->kernels[0]), "a, \"b\"");
  EXPECT_EQ(trace->name(trace->kernels[1]), "");
  EXPECT_EQ(trace->kernels[1].duration_ns, 5u);
}

TEST_F(Trace, tensors_that_are_none_are_refused) {
  const std::string head = "tensor,bytes,kind\n", one = head + "0,4096,transient\n";
  const std::pair<std::string, std::pair<const char*, const char*>> table[] = {
      {"", {"t.tensors.csv:", "is empty"}},
      {"\n", {"t.tensors.csv:1:", "\"tensor\""}},
      {"tensor,bytes\n", {"t.tensors.csv:1:", "\"kind\""}},
      {"tensor,bytes,kind,bytes\n", {"t.tensors.csv:1:", "twice"}},
      {head, {"t.tensors.csv:1:", "no tensors"}},
      {one + "1,4096\n", {"t.tensors.csv:3:", "2 fields, but the header has 3"}},
      {one + "1,4096,transient,\n", {"t.tensors.csv:3:", "4 fields"}},
      {one + "\n", {"t.tensors.csv:3:", "1 fields"}},
      {one + "0,1,transient\n", {"t.tensors.csv:3:", "on line 2"}},
      {one + "5000000000,1,transient\n5000000000,1,transient\n", {"t.tensors.csv:4:", "line 3"}},
      {one + "x,1,transient\n", {"t.tensors.csv:3:", "\"x\""}},
      {one + "-1,1,transient\n", {"t.tensors.csv:3:", "\"-1\""}},
      {one + ",1,transient\n", {"t.tensors.csv:3:", "tensor \"\""}},
      {one + "1,0,transient\n", {"t.tensors.csv:3:", "zero"}},
      {one + "1,-4096,transient\n", {"t.tensors.csv:3:", "negative"}},
      {one + "1,4096.5,transient\n", {"t.tensors.csv:3:", "whole number"}},
      {one + "1, 4096,transient\n", {"t.tensors.csv:3:", "whole number"}},
      {one + "1,,transient\n", {"t.tensors.csv:3:", "whole number"}},
      {one + "1,99999999999999999999999,transient\n", {"t.tensors.csv:3:", "too large"}},
      {one + "1,9223372036854775807,transient\n", {"t.tensors.csv:3:", "too large"}},
      {one + "1,4096,eternal\n", {"t.tensors.csv:3:", "\"eternal\""}},
      {one + "1,4096,\"transient\n", {"t.tensors.csv:3:", "quote"}},
      {one + "1,4096,\"transient\"x\n", {"t.tensors.csv:3:", "quote"}},
  };
  for (const auto& [tensors, expected] : table)
    expect_refused(tensors, good_kernels, expected.first, expected.second);
}

TEST_F(Trace, kernels_that_are_none_are_refused) {
  const std::string head = "kernel,name,duration_ns,inputs,outputs\n", one = head + "5,k,1,0,7\n";
  const std::pair<std::string, std::pair<const char*, const char*>> table[] = {
      {"", {"t.kernels.csv:", "is empty"}},
      {"kernel,name,inputs,outputs\n", {"t.kernels.csv:1:", "\"duration_ns\""}},
      {head, {"t.kernels.csv:1:", "no kernels"}},
      {one + "6,k,1,0\n", {"t.kernels.csv:3:", "4 fields"}},
      {one + "5,k,1,0,7\n", {"t.kernels.csv:3:", "kernel 5 is listed twice"}},
      {one + "4,k,1,0,7\n5,k,1,0,7\n", {"t.kernels.csv:4:", "kernel 5"}},
      {one + "x,k,1,0,7\n", {"t.kernels.csv:3:", "\"x\""}},
      {one + "6,k,0,0,7\n", {"t.kernels.csv:3:", "zero"}},
      {one + "6,k,-1,0,7\n", {"t.kernels.csv:3:", "negative"}},
      {one + "6,k,1e3,0,7\n", {"t.kernels.csv:3:", "whole number"}},
      {one + "6,k,18446744073709551616,0,7\n", {"t.kernels.csv:3:", "too large"}},
      {one + "6,k,72057594037927936,0,7\n", {"t.kernels.csv:3:", "two years"}},
      {one + "6,k,1,1,7\n", {"t.kernels.csv:3:", "inputs name the unknown tensor \"1\""}},
      {one + "6,k,1,0,x\n", {"t.kernels.csv:3:", "outputs name the unknown tensor \"x\""}},
      {one + "6,k,1,0;7,\n", {"t.kernels.csv:3:", "\"0;7\""}},
      {one + "6,k,1,0 7 0,\n", {"t.kernels.csv:3:", "tensor 0 twice"}},
      {one + "6,k,1,-0,\n", {"t.kernels.csv:3:", "\"-0\""}},
  };
  for (const auto& [kernels, expected] : table)
    expect_refused(good_tensors, kernels, expected.first, expected.second);
}

TEST_F(Trace, says_which_rows_run_at_the_host) {
  Result<ProgramTrace> trace =
      read(good_tensors, "kernel,where,name,duration_ns,inputs,outputs\n0,gpu,first,10,7,0\n"
                         "1,host,second,25,0 7,7\n2,gpu,third,5,7,\n");
  ASSERT_TRUE(trace) << trace.error().text;
  EXPECT_FALSE(trace->kernels[0].host);
  EXPECT_TRUE(trace->kernels[1].host);
  EXPECT_EQ(trace->host_rows, 1u);
  EXPECT_EQ(trace->host_ns, 25u);
  EXPECT_EQ(trace->duration_ns, 15u) << "of the device";
  const std::string head = "kernel,name,duration_ns,inputs,outputs,where\n";
  expect_refused(good_tensors, head + "0,a,1,7,,gpu\n1,b,1,7,,GPU\n", "t.kernels.csv:3:",
                 "where \"GPU\" must be gpu or host");
  expect_refused(good_tensors, head + "0,a,1,7,,\n", "t.kernels.csv:2:", "where");
  expect_refused(good_tensors, head + "0,a,1,7,,host\n", "t.kernels.csv:2:",
                 "no kernel runs on the GPU");
  expect_refused(good_tensors, "kernel,name,duration_ns,inputs,outputs,where,where\n",
                 "t.kernels.csv:1:", "\"where\" appears twice");
}

TEST_F(Trace, what_is_no_file_is_refused) {
  Result<ProgramTrace> none = read_program_trace(prefix());
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().text.find("t.tensors.csv: No such file"), std::string::npos)
      << none.error().text;
  ASSERT_EQ(::mkfifo((prefix() + ".tensors.csv").c_str(), 0600), 0);
  none = read_program_trace(prefix());  // nobody writes to it: refused, not waited for
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().text.find("not a regular file"), std::string::npos);
}

TEST_F(Trace, each_tensor_has_to_fit) {
  Result<ProgramTrace> trace =
      read("tensor,bytes,kind\n0,60000000,transient\n1,50000000,persistent\n"
           "2,900000000,transient\n",
           "kernel,name,duration_ns,inputs,outputs\n0,a,1,0,1\n1,b,1,0 1,0\n");
  ASSERT_TRUE(trace) << trace.error().text;
  EXPECT_TRUE(trace->check_fits(60u << 20)) << "2 is never used; what a kernel uses need not fit";
  Result<void> fits = trace->check_fits(56u << 20);
  ASSERT_FALSE(fits);
  EXPECT_NE(fits.error().text.find("t.tensors.csv:2: tensor 0"), std::string::npos)
      << fits.error().text;
  trace = read("tensor,bytes,kind\n0,60000,transient\n1,50000000,persistent\n",
               "kernel,name,duration_ns,inputs,outputs\n0,a,1,0,\n");
  ASSERT_TRUE(trace) << trace.error().text;
  fits = trace->check_fits(40u << 20);
  ASSERT_FALSE(fits) << "no kernel uses it, but it is there";
  EXPECT_NE(fits.error().text.find("t.tensors.csv:3: tensor 1"), std::string::npos)
      << fits.error().text;
}

TEST_F(Trace, of_millions_of_kernels_is_read_in_seconds) {
  std::string text = "kernel,name,duration_ns,inputs,outputs\n";
  for (int i = 0; i < 1'000'000; ++i) text += std::to_string(i) + ",Conv2d_Forward,1000,0 7,0\n";
  write(good_tensors, text);
  const auto begin = std::chrono::steady_clock::now();
  Result<ProgramTrace> trace = read_program_trace(prefix());
  ASSERT_TRUE(trace) << trace.error().text;
  EXPECT_EQ(trace->kernels.size(), 1'000'000u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(PublicTrace, sums_are_the_artifacts) {
  const char* named = std::getenv("FIRN_SHARED");
  const std::string shared =
      named ? named : std::string(std::getenv("FIRN_TEST_DATA")) + "/../../../shared";
  if (!std::filesystem::exists(shared + "/traces/bert-256.kernels.csv"))
    GTEST_SKIP() << "no public traces in " << shared << " (FIRN_SHARED names their folder)";
  Result<ProgramTrace> trace = read_program_trace(shared + "/traces/bert-256");
  ASSERT_TRUE(trace) << trace.error().text;
  EXPECT_EQ(trace->kernels.size(), 1369u);
  EXPECT_TRUE(trace->check_fits(40ull << 30));
}

}  // namespace
}  // namespace firn::simulate
