// The reader against the writer (allocator/record/trace.h), and against files that end anywhere.
#include "allocator/report/trace_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <random>
#include <vector>

#include "allocator/record/trace.h"
#include "tests/allocator/report/trace_text.h"

namespace firn::report {
namespace {

TEST(TraceFile, reads_what_the_writer_wrote) {
  const std::vector<std::string> details = {"", "read", "a,b", "\"quoted\"", "a \"b\", c;d=\"",
                                            "line\nbreak", ",", "\"", "x=1;y=2"};
  TraceText text("");
  {
    Result<std::unique_ptr<TraceWriter>> writer = TraceWriter::create(text.path);
    ASSERT_TRUE(writer);
    for (size_t i = 0; i < details.size(); ++i)
      (*writer)->row(1000 + i, "stall", 3, 7, 1ull << 47, ~0ull, details[i]);
  }
  Result<TraceFile> file = TraceFile::open(text.path);
  ASSERT_TRUE(file) << file.error().text;
  Row row;
  for (size_t i = 0; i < details.size(); ++i) {
    Result<bool> more = file->next(row);
    ASSERT_TRUE(more) << more.error().text;
    ASSERT_TRUE(*more);
    EXPECT_EQ(row.time_ns, 1000 + i);
    EXPECT_EQ(row.event, "stall");
    EXPECT_EQ(row.device, 3u);
    EXPECT_EQ(row.stream, 7u);
    EXPECT_EQ(row.block, 1ull << 47);
    EXPECT_EQ(row.bytes, ~0ull);
    std::string expected = details[i];
    for (char& c : expected) c = c == '\n' ? ' ' : c;
    EXPECT_EQ(row.detail, expected);
  }
  EXPECT_FALSE(*file->next(row));
  EXPECT_FALSE(file->cut());
}

/// A disk that is full for a while cuts the trace off: what comes later would begin within a row.
TEST(TraceFile, a_disk_that_was_full) {
  TraceText text("");
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &usual), 0);
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  testing::internal::CaptureStderr();
  constexpr uint64_t rows = 30'000;
  {
    Result<std::unique_ptr<TraceWriter>> writer = TraceWriter::create(text.path);
    ASSERT_TRUE(writer);
    const rlimit full{100'003, usual.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
    for (uint64_t i = 0; i < rows; ++i) {
      (*writer)->row(1000 + i, "alloc", 0, 0, 4096 * i, 100);
      if (i == rows / 2) {
        (*writer)->flush();  // (A thread of its own writes.)
        ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &usual), 0);
      }
    }
  }
  std::signal(SIGXFSZ, before);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("the trace is cut off"), std::string::npos) << said;
  Result<TraceFile> file = TraceFile::open(text.path);
  ASSERT_TRUE(file) << file.error().text;
  Row row;
  uint64_t count = 0;
  for (;; ++count) {
    Result<bool> more = file->next(row);
    ASSERT_TRUE(more) << more.error().text;
    if (!*more) break;
    ASSERT_EQ(row.time_ns, 1000 + count);
  }
  EXPECT_GT(count, 1000u);
  EXPECT_LT(count, rows);
}

/// Cut off after any byte, it is refused at the head or gives its whole rows, as they were.
TEST(TraceFile, ends_anywhere) {
  const std::string header = "time_ns,event,device,stream,block,bytes,detail\n";
  const std::string rows =
      "1,alloc,0,0,4096,10,\n22,site,0,1,1,5,\"a, \"\"b\"\"\"\n333,end,0,0,0,0,x=1\n";
  const std::string whole = header + rows;
  for (size_t bytes = 1; bytes <= whole.size(); ++bytes) {
    TraceText text(whole.substr(0, bytes), "");
    Result<TraceFile> file = TraceFile::open(text.path);
    ASSERT_EQ(static_cast<bool>(file), bytes >= header.size() - 1) << bytes;
    if (!file) continue;
    size_t complete = 0;
    for (size_t i = header.size(); i < bytes; ++i) complete += whole[i] == '\n';
    Row row;
    size_t found = 0;
    for (;; ++found) {
      Result<bool> more = file->next(row);
      ASSERT_TRUE(more) << bytes << ": " << more.error().text;
      if (!*more) break;
    }
    EXPECT_EQ(found, complete) << bytes;
    EXPECT_EQ(file->cut(), whole[bytes - 1] != '\n') << bytes;
    if (found == 3) {
      EXPECT_EQ(row.detail, "x=1");
    }
  }
}

/// Whatever a file holds, it is read to its end or refused with its name and line.
TEST(TraceFile, nonsense) {
  std::mt19937 random(7);
  const std::string letters = "0123456789,\n\"a;=-";
  for (int i = 0; i < 2000; ++i) {
    std::string rows = "1,alloc,0,0,4096,10,\n";
    for (unsigned length = random() % 60; length > 0; --length)
      rows += letters[random() % letters.size()];
    TraceText text(rows);
    Result<TraceFile> file = TraceFile::open(text.path);
    ASSERT_TRUE(file);
    Row row;
    for (;;) {
      Result<bool> more = file->next(row);
      if (!more) {
        EXPECT_TRUE(more.error().text.starts_with(text.path + ":")) << more.error().text;
        break;
      }
      if (!*more) break;
    }
  }
}

TEST(TraceFile, words_of_a_detail) {
  EXPECT_EQ(value_of("in=5;out=17;inner=3", "in"), 5u);
  EXPECT_EQ(value_of("in=5;out=17;inner=3", "out"), 17u);
  EXPECT_EQ(value_of("in=5;out=17;inner=3", "inner"), 3u);
  EXPECT_EQ(value_of("in=5", "nn", 9), 9u);
  EXPECT_EQ(value_of("in=", "in", 9), 9u);
  EXPECT_EQ(value_of("in=5x", "in", 9), 9u);
  EXPECT_EQ(text_of("pid=1;command=a;b=2 c", "command"), "a;b=2 c");
}

}  // namespace
}  // namespace firn::report
