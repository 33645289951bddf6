#include "backing/store/file_calls.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>

namespace firn {

int FileCalls::fallocate(int fd, uint64_t offset, uint64_t bytes) {
  int result = ::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  return result == 0 ? 0 : -errno;
}

int FileCalls::ftruncate(int fd, uint64_t bytes) {
  return ::ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : -errno;
}

uint64_t FileCalls::file_bytes_max() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
  return limit.rlim_cur;
}

ssize_t FileCalls::transfer(const FileCall& call) {
  ssize_t allowed = begin(call);
  if (allowed < 0) return allowed;
  auto bytes = static_cast<size_t>(allowed);
  auto offset = static_cast<off_t>(call.offset);
  ssize_t result = call.write ? ::pwrite(call.fd, call.data, bytes, offset)
                              : ::pread(call.fd, call.data, bytes, offset);
  return end(call, result < 0 ? -errno : result);
}

FileCalls& FileCalls::real() {
  static FileCalls* calls = new FileCalls;  // never destroyed: I/O threads outlive main
  return *calls;
}

}  // namespace firn
