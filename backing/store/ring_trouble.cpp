// Whether io_uring works here, found out by using it: versions and settings are not trusted.
#include <fmt/format.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "backing/store/ring_loop.h"
#include "backing/store/spill_file.h"
#include "firn/store.h"

namespace firn {

namespace {

struct OpenRing {
  io_uring ring{};
  int result;
  OpenRing() : result(set_up_ring(ring, 4)) {}
  ~OpenRing() {
    if (result >= 0) io_uring_queue_exit(&ring);
  }
};

std::string refusal(int error) {
  std::string words = "io_uring_setup: " + errno_words(error);
  if (error == EPERM) words += " (kernel.io_uring_disabled, or a container's seccomp filter)";
  if (error == ENOSYS) words += " (not in this kernel, or a container's seccomp filter)";
  if (error == ENOMEM) words += " (limit on locked memory: RLIMIT_MEMLOCK, ulimit -l)";
  return words;
}

constexpr int patience_s = 10;

/// Submits what was prepared and waits for its answer: a result, or -errno; -ETIME: none came, and
/// the kernel may still use the memory.
int answer(io_uring& ring) {
  __kernel_timespec patience{patience_s, 0};
  io_uring_cqe* cqe = nullptr;
  int result = 0;
  do {
    result = io_uring_submit_and_wait_timeout(&ring, &cqe, 1, &patience, nullptr);
  } while (result == -EINTR);
  if (result < 0) return result;
  if (!cqe && (result = io_uring_peek_cqe(&ring, &cqe)) < 0) return -ETIME;
  result = cqe->res;
  io_uring_cqe_seen(&ring, cqe);
  return result;
}

}  // namespace

std::optional<std::string> ring_trial(int fd) {
  auto open = std::make_unique<OpenRing>();
  if (open->result < 0) return refusal(-open->result);
  constexpr auto block = static_cast<unsigned>(store_alignment);
  std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(store_alignment, 2 * block)), &std::free);
  if (!memory) return std::string("no memory for a trial block");
  std::byte* back = memory.get() + block;
  std::memset(memory.get(), 0x5a, block);
  std::memset(back, 0, block);
  for (bool write : {true, false}) {
    io_uring_sqe* sqe = io_uring_get_sqe(&open->ring);
    if (!sqe) return std::string("io_uring: no room for one request");
    if (fd < 0)
      io_uring_prep_nop(sqe);
    else if (write)
      io_uring_prep_write(sqe, fd, memory.get(), block, 0);
    else
      io_uring_prep_read(sqe, fd, back, block, 0);
    int result = answer(open->ring);
    if (result == -ETIME) {  // the kernel's from now on
      (void)open.release();
      (void)memory.release();
      return std::nullopt;
    }
    if (result < 0)
      return fmt::format("io_uring {}: {}",
                         fd < 0  ? "nop"
                         : write ? "write"
                                 : "read",
                         errno_words(-result));
    if (fd >= 0 && result != static_cast<int>(block))
      return fmt::format("io_uring {} moved {} of {} bytes", write ? "write" : "read", result,
                         block);
  }
  if (fd >= 0 && std::memcmp(memory.get(), back, block) != 0)
    return std::string("io_uring returned other bytes than were written");
  return std::string();
}

std::string no_answer() {
  return fmt::format("io_uring did not answer a request within {} s", patience_s);
}

std::string io_uring_trouble() { return ring_trial(-1).value_or(no_answer()); }

}  // namespace firn
