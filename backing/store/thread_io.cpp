// The pread/pwrite threads of a DirIo: where io_uring is refused, or no longer allowed.
#include <fmt/format.h>
#include <pthread.h>

#include "backing/store/dir_io.h"

namespace firn {

void DirIo::work(ThreadFile& at) {
  (void)pthread_setname_np(pthread_self(), fmt::format("firn-io-{}", number_ % 1000).c_str());
  std::unique_lock lock(mutex_);
  while (true) {
    // Another thread has the file, which the program closed before this one had it.
    if (has_file_ && !at.own() && at.reach_errno(false) != 0) return;
    std::optional<Transfer> transfer = take();
    if (!transfer) {
      if (stopping_) return;
      work_.wait(lock);
      continue;
    }
    lock.unlock();
    move(*transfer, at);
    if (Job* job = put_back(*transfer)) conclude_job(job, at);
    lock.lock();
    // A job's end may have made room for another thread (depth), or left it more to take.
    if (!idle()) work_.notify_one();
  }
}

void DirIo::move(Transfer& transfer, ThreadFile& at) {
  Job& job = *transfer.job;
  // The thread that has a write's first part sums all of it: the job cannot end before. (Where a
  // ring was in use, it has summed what it took.)
  if (job.write() && transfer.begin == 0) job.summer.sum_to(job.data, job.bytes);
  while (true) {
    if (Error error = reach(at, transfer.job->buffered()); error.code != Code::ok) {
      transfer.error = std::move(error);
      break;
    }
    FileCall call = call_of(transfer, at);
    if (advance(transfer, calls_.transfer(call), file_)) continue;
    name_closed(transfer, at);
    break;
  }
}

}  // namespace firn
