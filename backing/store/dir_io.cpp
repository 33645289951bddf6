#include "backing/store/dir_io.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>

#include "backing/store/ring_loop.h"
#include "firn/check.h"
#include "firn/signals_blocked.h"

namespace firn {

DirIo::DirIo(SpillFile& file, FileCalls& calls, JobHost& host, IoLimits limits, bool ring,
             unsigned number)
    : file_(file), calls_(calls), host_(host), limits_(limits), number_(number),
      depth_(limits.depth), ring_(ring) {}

DirIo::~DirIo() { stop(); }

void DirIo::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;  // from here on no transfer begins
  }
  wake();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  for (auto& side : waiting_) {
    for (Job* job : side) delete job;
    side.clear();
  }
}

/// mutex_ held. Threads of ours take no signals: they are the program's, and SIGXFSZ would end it.
Result<void> DirIo::start() {
  if (!threads_.empty()) return {};
  const SignalsBlocked blocked;
  Result<void> started;
  try {
    if (ring_) {
      threads_.emplace_back([this] { RingLoop(*this).run(); });
    } else {
      for (unsigned i = 0; i < limits_.threads; ++i)
        threads_.emplace_back([this] { run(ThreadFile(file_)); });
    }
  } catch (const std::system_error& refused) {  // fewer threads will do
    if (threads_.empty())
      started = make_error(Code::io, refused.code().value(),
                           fmt::format("{}: cannot start an I/O thread: {}", file_.dir(),
                                       refused.what()));
  }
  return started;
}

void DirIo::wake() {
  work_.notify_all();
  if (!ring_asleep_) return;
  ++ring_wakes_;
  (void)::syscall(SYS_futex, &ring_wakes_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);  // >= 0
}

Result<void> DirIo::submit(std::unique_ptr<Job> job) {
  {
    std::lock_guard lock(mutex_);
    Result<void> started = start();
    if (!started) return started;
    job->arrived.assign((job->bytes + limits_.request_bytes - 1) / limits_.request_bytes, false);
    Side side = job->write() ? writes : reads;
    waiting_[side].push_back(job.get());
    (void)job.release();
  }
  wake();
  return {};
}

std::unique_ptr<Job> DirIo::withdraw(unsigned queue, uint64_t tag) {
  std::lock_guard lock(mutex_);
  for (auto& side : waiting_) {
    auto found = std::find_if(side.begin(), side.end(), [&](const Job* job) {
      return !job->begun && job->queue == queue && job->tag == tag;
    });
    if (found == side.end()) continue;
    std::unique_ptr<Job> job(*found);
    side.erase(found);
    return job;
  }
  return nullptr;
}

Result<void> DirIo::attach(std::span<std::byte> staging) {
  std::unique_lock lock(mutex_);
  if (!ring_) return {};
  Result<void> started = start();
  if (!started) return started;
  change_staging(lock, staging, true);
  return {};
}

void DirIo::detach(std::span<std::byte> staging) {
  std::unique_lock lock(mutex_);
  if (ring_ && !threads_.empty()) change_staging(lock, staging, false);
}

/// Has the ring's thread do it; returns when it has, or there is no ring any more.
void DirIo::change_staging(std::unique_lock<RankedMutex<Rank::dir_io>>& lock,
                           std::span<std::byte> staging, bool attached) {
  staging_changes_.push_back({staging, attached});
  const uint64_t number = ++changes_asked_;
  lock.unlock();
  wake();
  lock.lock();
  attached_.wait(lock, [&] { return changes_seen_ >= number || !ring_; });
}

bool DirIo::ring() const {
  std::lock_guard lock(mutex_);
  return ring_;
}

bool DirIo::has_file() const { return has_file_; }

std::string DirIo::why() const {
  std::lock_guard lock(mutex_);
  return why_;
}

void DirIo::share_depth(unsigned depth) {
  std::lock_guard lock(mutex_);
  depth_ = std::clamp(depth, 1u, limits_.depth);
}

std::optional<Transfer> DirIo::take() {
  unsigned busy = in_flight_[reads] + in_flight_[writes];
  if (stopping_ || idle() || busy >= depth_) return std::nullopt;
  unsigned for_writes = std::max(depth_ / 4, 1u);
  unsigned for_reads = std::max(depth_ - for_writes, 1u);
  bool read_first =
      !waiting_[reads].empty() && (waiting_[writes].empty() || in_flight_[reads] < for_reads);
  auto& side = waiting_[read_first ? reads : writes];
  Job* job = side.front();
  Transfer transfer;
  transfer.job = job;
  transfer.begin = job->next;
  transfer.end = std::min(job->next + limits_.request_bytes, job->bytes);
  job->begun = true;
  job->next = transfer.end;
  ++job->in_flight;
  ++in_flight_[job->write() ? writes : reads];
  if (job->next == job->bytes) side.pop_front();
  return transfer;
}

Job* DirIo::put_back(Transfer& transfer) {
  std::lock_guard lock(mutex_);
  Job* job = transfer.job;
  Side side = job->write() ? writes : reads;
  --job->in_flight;
  --in_flight_[side];
  if (transfer.error.code == Code::ok) {
    job->arrived[transfer.begin / limits_.request_bytes] = true;
    while (job->arrived_prefix < job->bytes &&
           job->arrived[job->arrived_prefix / limits_.request_bytes])
      job->arrived_prefix = std::min(job->arrived_prefix + limits_.request_bytes, job->bytes);
  } else {
    if (!job->failed()) job->error = std::move(transfer.error);
    if (job->next < job->bytes) std::erase(waiting_[side], job);
    job->next = job->bytes;  // nothing more of it begins
  }
  return job->in_flight == 0 && job->next == job->bytes ? job : nullptr;
}

void DirIo::conclude_job(Job* job, ThreadFile& at) {
  if (conclude(*job, at)) {
    host_.finished(std::unique_ptr<Job>(job));
    return;
  }
  {
    std::lock_guard lock(mutex_);
    if (!stopping_) {
      waiting_[reads].push_front(job);
      job = nullptr;
    }
  }
  if (job) {
    job->error = make_error(Code::cancelled, 0, "the store is being closed");
    host_.finished(std::unique_ptr<Job>(job));
    return;
  }
  wake();
}

void DirIo::add_why(const std::string& words) try {
  if (why_.find(words) == std::string::npos) why_ += (why_.empty() ? "" : "; ") + words;
} catch (const std::bad_alloc&) {  // then nothing is said
}

void DirIo::settle(ThreadFile& at) {
  std::string trouble;
  try {
    trouble = ThreadFile::take_table({&at, 1}, calls_);
    if (!trouble.empty())
      trouble = fmt::format("{}: spilled data may be lost if the program closes descriptors that "
                            "it did not open: the I/O threads share its descriptor table ({})",
                            file_.dir(), trouble);
  } catch (const std::bad_alloc&) {  // then nothing is said
  }
  if (at.own()) has_file_ = true;
  std::lock_guard lock(mutex_);
  if (!trouble.empty()) add_why(trouble);
}

void DirIo::run(ThreadFile at) {
  if (at.in_own_table()) note_inherited_table();  // the starter's
  if (!at.own()) settle(at);
  work(at);
}

Error DirIo::reach(ThreadFile& at, bool buffered) {
  Error error = at.reach(buffered);
  if (at.own() && !has_file_.load(std::memory_order_relaxed)) has_file_ = true;
  return error;
}

void DirIo::name_closed(Transfer& transfer, ThreadFile& at) {
  if (transfer.error.code == Code::ok || transfer.error.code == Code::lost) return;
  if (Error closed = reach(at, transfer.job->buffered()); closed.code == Code::lost)
    transfer.error = std::move(closed);
}

void DirIo::fall_back(const std::string& words, ThreadFile& at) {
  {
    std::lock_guard lock(mutex_);
    ring_ = false;
    has_file_ = at.own();
    add_why(words);
    try {
      while (threads_.size() < limits_.threads && !stopping_)
        threads_.emplace_back([this](ThreadFile copy) { run(std::move(copy)); }, at.copy());
    } catch (const std::system_error& refused) {  // this thread is left, and does as well
      add_why(std::string("only one I/O thread: ") + refused.what());
    } catch (const std::bad_alloc&) {  // the same
    }
  }
  attached_.notify_all();
  work(at);
}

}  // namespace firn
