#include "backing/store/ring_loop.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>

#include "firn/canary.h"
#include "firn/check.h"

namespace firn {

namespace {
constexpr uint64_t wake_data = UINT64_MAX;            // user_data of the wake-up
constexpr int futex_wait = 51;                        // IORING_OP_FUTEX_WAIT
constexpr int futex_word = 0x02 | FUTEX_PRIVATE_FLAG;  // FUTEX2_SIZE_U32
constexpr long look_ns = 1'000'000;                   // between looks, where nothing wakes us
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
  io_.settle(at_);
  try {
    (void)pthread_setname_np(pthread_self(), fmt::format("firn-io-{}", io_.number_ % 1000).c_str());
    requests_.resize(io_.limits_.depth);
    for (size_t i = 0; i < requests_.size(); ++i) free_.push_back(i);
  } catch (const std::bad_alloc&) {  // (in words that take none)
    return io_.fall_back("out of memory", at_);
  }
  int result = set_up_ring(ring_, io_.limits_.depth + 2);  // + the wake-up's
  if (result < 0) {
    io_.fall_back(fmt::format("{}: threads instead of io_uring: io_uring_setup: {}",
                              io_.file_.dir(), errno_words(-result)), at_);
    return;
  }
  result = io_uring_ring_dontfork(&ring_);
  if (result < 0) {
    std::lock_guard lock(io_.mutex_);
    io_.add_why(fmt::format("{}: a child after fork sees the ring: {}", io_.file_.dir(),
                            errno_words(-result)));
  }
  register_files();
  give_up_number();
  futex_ = io_.calls_.helps(FileCalls::RingHelp::futex);
  loop();
  if (indexed_) {  // (liburing would do so by number)
    io_uring_rsrc_update index{};
    index.offset = static_cast<unsigned>(ring_.enter_ring_fd);
    (void)enroll(IORING_UNREGISTER_RING_FDS, &index, 1);  // else it goes with this thread
  }
  if (!at_.own()) ring_.ring_fd = -1;  // number_ is closed if it is ours still
  io_uring_queue_exit(&ring_);
  number_ = Descriptor();
  if (!refused_.empty()) io_.fall_back(refused_, at_);
}

void RingLoop::loop() {
  while (refused_.empty()) {
    apply_staging_changes();
    if (!fill()) return;
    if (refused_.empty() && io_.ring_asleep_) wait();
    reap();
  }
  leave();
}

/// Registers the files themselves, whatever becomes of their numbers: I/O takes less of the
/// processor. (If that is refused, numbers that others may close are checked before each request.)
void RingLoop::register_files() {
  if (at_.reach_errno(false) != 0 || !io_.calls_.helps(FileCalls::RingHelp::fixed_files)) return;
  const int files[2] = {at_.fd(false), at_.fd(at_.reach_errno(true) == 0)};
  files_ = io_uring_register_files(&ring_, files, 2) == 0;
  io_.has_file_ = files_ || at_.own();
}

/// If others may close the ring's number: uses an index of this thread's and closes the number, or
/// at least moves it far from the program's.
void RingLoop::give_up_number() {
  if (at_.own()) return;
  indexed_ = io_.calls_.helps(FileCalls::RingHelp::own_index) &&
             io_uring_register_ring_fd(&ring_) == 1;
  if (indexed_ && io_.calls_.helps(FileCalls::RingHelp::no_number)) {
    numbered_ = false;
    io_uring_probe probe{};
    if (enroll(IORING_REGISTER_PROBE, &probe, 0) == 0) {
      (void)::close(ring_.ring_fd);  // the index and the memory shared with it keep the ring
      ring_.ring_fd = -1;
      return;
    }
    numbered_ = true;
  }
  number_ = Descriptor(ring_.ring_fd);
  ring_.ring_fd = number_.get();
  if (!indexed_) ring_.enter_ring_fd = ring_.ring_fd;
}

/// io_uring_register(2): its result, or -errno. (liburing's own needs the number.)
int RingLoop::enroll(unsigned opcode, void* words, unsigned count) {
  constexpr unsigned by_index = 1u << 31;  // IORING_REGISTER_USE_REGISTERED_RING
  if (numbered_ && !at_.own() && !number_.ours()) return -EBADF;
  const int ring = numbered_ ? ring_.ring_fd : ring_.enter_ring_fd;
  const long result = ::syscall(__NR_io_uring_register, ring,
                                numbered_ ? opcode : opcode | by_index, words, count);
  return result < 0 ? -errno : static_cast<int>(result);
}

void RingLoop::wait() {
  int result;
  if (futex_) {
    result = io_uring_submit_and_wait(&ring_, 1);
  } else {
    __kernel_timespec patience{0, look_ns};
    io_uring_cqe* first = nullptr;
    result = io_uring_submit_and_wait_timeout(&ring_, &first, 1, &patience, nullptr);
  }
  io_.ring_asleep_ = false;
  told(result);
}

/// Takes an answer of io_uring_enter.
void RingLoop::told(int result) {
  if (result >= 0 || result == -EINTR || result == -ETIME) return;
  if (result == -EAGAIN || result == -EBUSY || result == -ENOMEM) {
    ::usleep(busy_wait_us);
    return;
  }
  refused_ = fmt::format("{}: threads instead of io_uring: io_uring_enter is refused since the "
                         "start ({})",
                         io_.file_.dir(), errno_words(-result));
}

/// The kernel takes no more requests. It may still write to staging memory for those that it has:
/// waits for them in the memory shared with it. The rest goes by pread and pwrite.
void RingLoop::leave() {
  std::vector<size_t> unsent;
  for (unsigned at = io_uring_smp_load_acquire(ring_.sq.khead); at != ring_.sq.sqe_tail; ++at) {
    const uint64_t data = ring_.sq.sqes[at & *ring_.sq.kring_mask].user_data;
    if (data != wake_data) unsent.push_back(static_cast<size_t>(data));
  }
  for (const size_t number : unsent) begin(number);
  while (!idle()) {
    reap();
    if (!idle()) ::usleep(busy_wait_us);
  }
}

void RingLoop::apply_staging_changes() {
  while (true) {
    std::span<std::byte> staging;
    bool attached = false;
    {
      std::lock_guard lock(io_.mutex_);
      if (io_.staging_changes_.empty()) return;
      staging = io_.staging_changes_.front().staging;
      attached = io_.staging_changes_.front().attached;
    }
    if (!attached) forget_staging(staging);
    try {
      for (size_t at = 0; attached && at < staging.size(); at += buffer_bytes_max)
        register_piece(staging.data() + at, std::min(buffer_bytes_max, staging.size() - at));
    } catch (const std::bad_alloc&) {  // its I/O costs more of the processor, and nothing else
    }
    {
      std::lock_guard lock(io_.mutex_);
      io_.staging_changes_.pop_front();
      ++io_.changes_seen_;
    }
    io_.attached_.notify_all();
  }
}

void RingLoop::register_piece(std::byte* begin, size_t bytes) {
  if (!buffers_asked_) {
    buffers_asked_ = true;
    io_uring_rsrc_register sparse{};
    sparse.nr = registered_most;
    sparse.flags = IORING_RSRC_REGISTER_SPARSE;
    const int result = enroll(IORING_REGISTER_BUFFERS2, &sparse, sizeof sparse);
    if (result < 0)
      refuse_buffers("IORING_REGISTER_BUFFERS2: " + errno_words(-result));
    else
      buffers_most_ = registered_most;
  }
  if (buffers_most_ == 0) return;
  buffers_.reserve(buffers_.size() + 1);  // what the kernel knows is noted here, too
  spare_buffers_.reserve(static_cast<size_t>(buffers_used_) + 1);
  const int index = spare_buffers_.empty() ? buffers_used_ : spare_buffers_.back();
  if (index >= buffers_most_) {
    refuse_buffers(fmt::format("{} buffers are registered already", index));
    return;
  }
  const int result = update_buffer(index, {begin, bytes});
  if (result != 1) {
    int error = result < 0 ? -result : EIO;
    refuse_buffers(fmt::format("{} MiB of staging: {}{}", bytes >> 20, errno_words(error),
                               error == ENOMEM ? ": raise the limit on locked memory "
                                                 "(RLIMIT_MEMLOCK, ulimit -l)"
                                               : ""));
    return;
  }
  if (index == buffers_used_)
    ++buffers_used_;
  else
    spare_buffers_.pop_back();
  buffers_.push_back({begin, bytes, index});
}

/// 1 where the kernel took it, or -errno.
int RingLoop::update_buffer(int index, iovec buffer) {
  __u64 tag = 0;  // none: the kernel then posts no completion when the buffer goes
  io_uring_rsrc_update2 update{};
  update.offset = static_cast<unsigned>(index);
  update.data = reinterpret_cast<uintptr_t>(&buffer);
  update.tags = reinterpret_cast<uintptr_t>(&tag);
  update.nr = 1;
  return enroll(IORING_REGISTER_BUFFERS_UPDATE, &update, sizeof update);
}

void RingLoop::forget_staging(std::span<std::byte> staging) {
  std::erase_if(buffers_, [&](const Buffer& buffer) {
    if (buffer.begin < staging.data() || buffer.begin >= staging.data() + staging.size())
      return false;
    if (update_buffer(buffer.index, {}) == 1) spare_buffers_.push_back(buffer.index);
    return true;
  });
}

void RingLoop::refuse_buffers(const std::string& words) {
  std::lock_guard lock(io_.mutex_);
  if (std::exchange(buffers_refused_, true)) return;
  io_.add_why(fmt::format("{}: staging is not registered with io_uring, so I/O costs more CPU: {}",
                          io_.file_.dir(), words));
}

/// A request that ends when ring_wakes_ is no longer `value`, or is woken. (If the kernel does not
/// know such requests, wait() ends now and then.)
void RingLoop::arm_wake(uint32_t value) {
  if (!futex_ || wake_armed_) return;
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  FIRN_CHECK(sqe, "the ring is full with %zu requests free", free_.size());
  io_uring_prep_rw(futex_wait, sqe, futex_word, &io_.ring_wakes_, 0, value);
  sqe->addr3 = FUTEX_BITSET_MATCH_ANY;
  io_uring_sqe_set_data64(sqe, wake_data);
  wake_armed_ = true;
}

bool RingLoop::fill() {
  while (true) {
    std::optional<Transfer> transfer;
    {
      std::unique_lock lock(io_.mutex_);
      io_.ring_asleep_ = false;
      while (io_.staging_changes_.empty()) {
        if (!free_.empty()) transfer = io_.take();
        if (transfer || !idle()) break;
        if (io_.stopping_) return false;
        io_.work_.wait(lock);
      }
      if (!transfer) {
        if (idle()) return true;  // staging is to be registered
        // A later submission wakes us.
        io_.ring_asleep_ = true;
        arm_wake(io_.ring_wakes_);
        return true;
      }
    }
    start(std::move(*transfer));
    if (!refused_.empty()) return true;  // requests in flight come first
  }
}

void RingLoop::start(Transfer transfer) {
  const size_t number = free_.back();
  free_.pop_back();
  requests_[number].transfer = std::move(transfer);
  requests_[number].in_flight = true;
  // The sum of a part is taken while the parts before it are on their way: those go to the kernel
  // first.
  const Transfer& taken = requests_[number].transfer;
  if (taken.job->write()) {
    if (refused_.empty() && io_uring_sq_ready(&ring_) >= submitted_together)
      told(io_uring_submit(&ring_));
    taken.job->summer.sum_to(taken.job->data, taken.end);
  }
  begin(number);
}

void RingLoop::begin(size_t number) {
  Request& request = requests_[number];
  if (!refused_.empty()) {
    io_.move(request.transfer, at_);
    return over(number);
  }
  if (!files_)
    if (Error error = io_.reach(at_, request.transfer.job->buffered()); error.code != Code::ok) {
      request.transfer.error = std::move(error);
      return over(number);
    }
  request.call = call_of(request.transfer, at_);
  const FileCall& call = request.call;
  ssize_t allowed = io_.calls_.begin(call);
  if (allowed < 0) {
    completed(number, allowed);
    return;
  }
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  FIRN_CHECK(sqe, "the ring is full with %zu requests free", free_.size());
  auto bytes = static_cast<unsigned>(allowed);
  int buffer = buffer_of(call);
  const int file = files_ ? int{call.buffered} : call.fd;
  if (call.write && buffer >= 0)
    io_uring_prep_write_fixed(sqe, file, call.data, bytes, call.offset, buffer);
  else if (call.write)
    io_uring_prep_write(sqe, file, call.data, bytes, call.offset);
  else if (buffer >= 0)
    io_uring_prep_read_fixed(sqe, file, call.data, bytes, call.offset, buffer);
  else
    io_uring_prep_read(sqe, file, call.data, bytes, call.offset);
  if (files_) sqe->flags |= IOSQE_FIXED_FILE;
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
    const bool again = FIRN_CANARY(24) && answers[count - 1].data != wake_data;
    io_uring_cq_advance(&ring_, count - again);
    for (unsigned i = 0; i < count; ++i) {
      if (answers[i].data == wake_data) {
        wake_armed_ = false;
        const int why = answers[i].result;
        if (why < 0 && why != -EAGAIN && why != -EINTR && why != -ECANCELED) futex_ = false;
        continue;
      }
      auto number = static_cast<size_t>(answers[i].data);
      FIRN_CHECK(number < requests_.size() && requests_[number].in_flight,
                 "completion of request %zu, which is not in flight", number);
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
  if (!files_) io_.name_closed(transfer, at_);
  over(number);
}

void RingLoop::over(size_t number) {
  Transfer& transfer = requests_[number].transfer;
  Job* job = transfer.job;
  Job* ended = io_.put_back(transfer);
  requests_[number].in_flight = false;
  free_.push_back(number);
  if (ended)
    io_.conclude_job(ended, at_);
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
