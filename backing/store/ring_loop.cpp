#include "backing/store/ring_loop.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "backing/store/check.h"

namespace firn {

namespace {
constexpr uint64_t wake_data = UINT64_MAX;            // user_data of the eventfd's poll
constexpr unsigned registered_most = 1024;            // buffers
constexpr size_t buffer_bytes_max = size_t{1} << 30;  // the kernel's limit for one
constexpr unsigned submitted_together = 4;            // writes, while the next is summed
constexpr unsigned busy_wait_us = 200;                // the kernel has no memory for a request
}  // namespace

int set_up_ring(io_uring& ring, unsigned entries) {
  int result = -EINVAL;
  for (unsigned flags :
       {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN, IORING_SETUP_COOP_TASKRUN, 0u}) {
    result = io_uring_queue_init(entries, &ring, flags);
    if (result != -EINVAL) break;  // an older kernel knows fewer flags
  }
  return result;
}

void RingLoop::run() {
  (void)pthread_setname_np(pthread_self(), fmt::format("firn-io-{}", io_.number_ % 1000).c_str());
  int result = set_up_ring(ring_, io_.limits_.depth + 2);  // + the eventfd's
  if (result < 0) {
    io_.fall_back(fmt::format("{}: threads instead of io_uring: io_uring_setup: {}",
                              io_.file_.dir(), errno_words(-result)));
    return;
  }
  result = io_uring_ring_dontfork(&ring_);
  if (result < 0) {
    std::lock_guard lock(io_.mutex_);
    io_.why_ = fmt::format("{}: a child after fork sees the ring: {}", io_.file_.dir(),
                           errno_words(-result));
  }
  requests_.resize(io_.limits_.depth);
  for (size_t i = 0; i < requests_.size(); ++i) free_.push_back(i);
  loop();
  io_uring_queue_exit(&ring_);
}

void RingLoop::loop() {
  while (true) {
    register_regions();
    arm_wake();
    fill();
    if (free_.size() == requests_.size()) {
      std::lock_guard lock(io_.mutex_);
      if (io_.stopping_) return;
    }
    check(io_uring_submit_and_wait(&ring_, 1));
    reap();
  }
}

void RingLoop::submit() { check(io_uring_submit(&ring_)); }

/// An answer of io_uring_enter. Any but these means that the ring is gone while the kernel may
/// still write to staging memory: no request could be ended safely.
void RingLoop::check(int result) {
  if (result == -EAGAIN || result == -EBUSY || result == -ENOMEM) {
    ::usleep(busy_wait_us);
    return;
  }
  FIRN_STORE_CHECK(result >= 0 || result == -EINTR,
                   "io_uring_enter: %s (did the program close descriptors it did not open?)",
                   errno_words(-result).c_str());
}

void RingLoop::register_regions() {
  while (true) {
    std::span<std::byte> region;
    {
      std::lock_guard lock(io_.mutex_);
      if (io_.regions_seen_ == io_.regions_.size()) return;
      region = io_.regions_[io_.regions_seen_];
    }
    for (size_t at = 0; at < region.size(); at += buffer_bytes_max)
      register_piece(region.data() + at, std::min(buffer_bytes_max, region.size() - at));
    {
      std::lock_guard lock(io_.mutex_);
      ++io_.regions_seen_;
    }
    io_.attached_.notify_all();
  }
}

void RingLoop::register_piece(std::byte* begin, size_t bytes) {
  if (!buffers_asked_) {
    buffers_asked_ = true;
    int result = io_uring_register_buffers_sparse(&ring_, registered_most);
    if (result < 0)
      refuse_buffers("io_uring_register_buffers_sparse: " + errno_words(-result));
    else
      buffers_most_ = registered_most;
  }
  auto index = static_cast<int>(buffers_.size());
  if (buffers_most_ == 0) return;
  if (index >= buffers_most_) {
    refuse_buffers(fmt::format("{} buffers are registered already", index));
    return;
  }
  iovec buffer{begin, bytes};
  __u64 tag = 0;  // none: the kernel then posts no completion when the buffer goes
  int result =
      io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(index), &buffer, &tag, 1);
  if (result != 1) {
    int error = result < 0 ? -result : EIO;
    refuse_buffers(fmt::format("{} MiB of staging: {}{}", bytes >> 20, errno_words(error),
                               error == ENOMEM ? ": raise the limit on locked memory "
                                                 "(RLIMIT_MEMLOCK, ulimit -l)"
                                               : ""));
    return;
  }
  buffers_.push_back({begin, bytes, index});
}

void RingLoop::refuse_buffers(const std::string& words) {
  std::lock_guard lock(io_.mutex_);
  if (io_.why_.empty())
    io_.why_ = fmt::format("{}: staging is not registered with io_uring, I/O costs more CPU: {}",
                           io_.file_.dir(), words);
}

void RingLoop::arm_wake() {
  if (wake_armed_) return;
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  FIRN_STORE_CHECK(sqe, "the ring is full with %zu requests free", free_.size());
  io_uring_prep_poll_add(sqe, io_.wake_fd_.get(), POLLIN);
  io_uring_sqe_set_data64(sqe, wake_data);
  wake_armed_ = true;
}

void RingLoop::fill() {
  while (!free_.empty()) {
    std::optional<Transfer> transfer;
    {
      std::lock_guard lock(io_.mutex_);
      transfer = io_.take();
    }
    if (!transfer) return;
    size_t number = free_.back();
    free_.pop_back();
    // The sum of a part is taken while the parts before it are on their way: those go to the kernel
    // first.
    Job& job = *transfer->job;
    if (job.write()) {
      if (io_uring_sq_ready(&ring_) >= submitted_together) submit();
      job.summer.sum_to(job.data, transfer->end);
    }
    requests_[number].transfer = std::move(*transfer);
    begin(number);
  }
}

void RingLoop::begin(size_t number) {
  Request& request = requests_[number];
  request.call = call_of(request.transfer, io_.file_);
  const FileCall& call = request.call;
  ssize_t allowed = io_.calls_.begin(call);
  if (allowed < 0) {
    completed(number, allowed);
    return;
  }
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  FIRN_STORE_CHECK(sqe, "the ring is full with %zu requests free", free_.size());
  auto bytes = static_cast<unsigned>(allowed);
  int buffer = buffer_of(call);
  if (call.write && buffer >= 0)
    io_uring_prep_write_fixed(sqe, call.fd, call.data, bytes, call.offset, buffer);
  else if (call.write)
    io_uring_prep_write(sqe, call.fd, call.data, bytes, call.offset);
  else if (buffer >= 0)
    io_uring_prep_read_fixed(sqe, call.fd, call.data, bytes, call.offset, buffer);
  else
    io_uring_prep_read(sqe, call.fd, call.data, bytes, call.offset);
  io_uring_sqe_set_data64(sqe, number);
}

void RingLoop::reap() {
  std::array<io_uring_cqe*, 64> ready{};
  while (unsigned count = io_uring_peek_batch_cqe(&ring_, ready.data(), ready.size())) {
    struct Answer {
      uint64_t data;
      int result;
    };
    std::array<Answer, 64> answers;
    for (unsigned i = 0; i < count; ++i) answers[i] = {ready[i]->user_data, ready[i]->res};
    io_uring_cq_advance(&ring_, count);
    for (unsigned i = 0; i < count; ++i) {
      if (answers[i].data == wake_data) {
        uint64_t wakes = 0;
        (void)!::read(io_.wake_fd_.get(), &wakes, sizeof wakes);  // only to make it quiet again
        wake_armed_ = false;
        continue;
      }
      auto number = static_cast<size_t>(answers[i].data);
      FIRN_STORE_CHECK(number < requests_.size(), "completion of request %zu", number);
      completed(number, io_.calls_.end(requests_[number].call, answers[i].result));
    }
  }
}

void RingLoop::completed(size_t number, ssize_t result) {
  Transfer& transfer = requests_[number].transfer;
  if (advance(transfer, result, io_.file_)) {
    begin(number);
    return;
  }
  Job* job = transfer.job;
  Job* over = io_.put_back(transfer);
  free_.push_back(number);
  if (over)
    io_.conclude_job(over);
  else if (!job->write())
    job->summer.sum_to(job->data, job->arrived_prefix);  // while the rest is on its way
}

int RingLoop::buffer_of(const FileCall& call) const {
  for (const Buffer& buffer : buffers_)
    if (call.data >= buffer.begin && call.data + call.bytes <= buffer.begin + buffer.bytes)
      return buffer.index;
  return -1;
}

}  // namespace firn
