// The handle of 64 bytes: as it was written, and changed. (The exporter is this process: the
// descriptors go the same way.)
#include "allocator/preload/shared_handle.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

using namespace firn;
using namespace firn::preload;

namespace {

TEST(SharedHandle, is_read_as_it_was_written) {
  const SharedHandle told{4711, 12, 8192, {99, 3}};
  const auto read = read_handle(handle_of(told));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->process, told.process);
  EXPECT_EQ(read->file, told.file);
  EXPECT_EQ(read->offset, told.offset);
  EXPECT_EQ(read->identity, told.identity);
  CUipcMemHandle other = handle_of(told);
  other.reserved[0] ^= 1;
  EXPECT_FALSE(read_handle(other));
}

// The number of its file may be any file's: one without end is not read to its end.
TEST(SharedHandle, that_names_a_file_without_end_is_refused) {
  const int endless = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(endless, 0);
  const Driver driver;
  auto opened = open_shared(driver, 0, {::getpid(), endless, 0, {1, 1}});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::invalid_argument);
  ::close(endless);
}

}  // namespace
