// A trace for a test: a file that is removed with its scope.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace firn::report {

class TraceText {
 public:
  explicit TraceText(
      const std::string& rows,
      const std::string& header = "time_ns,event,device,stream,block,bytes,detail\n") {
    char name[] = "/tmp/firn-trace-test.XXXXXX";
    const int fd = ::mkstemp(name);
    EXPECT_GE(fd, 0);
    ::close(fd);
    path = name;
    std::ofstream(path, std::ios::binary) << header << rows;
  }
  ~TraceText() { ::unlink(path.c_str()); }
  TraceText(const TraceText&) = delete;
  TraceText& operator=(const TraceText&) = delete;
  std::string path;
};

}  // namespace firn::report
