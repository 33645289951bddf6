#include "allocator/base/worker.h"

#include <pthread.h>

#include <chrono>
#include <new>
#include <system_error>
#include <utility>

#include "firn/canary.h"
#include "firn/signals_blocked.h"

namespace firn {

Worker::~Worker() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Worker::post(std::function<void()> work) {
  if (FIRN_CANARY(20)) {
    changed_.notify_all();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the thread wakes for nothing
  }
  {
    std::lock_guard lock(mutex_);
    try {
      if (!thread_.joinable()) {
        SignalsBlocked blocked;
        thread_ = std::thread([this] { run(); });
      }
      waiting_.push_back(std::move(work));
      if (!FIRN_CANARY(20)) changed_.notify_all();
      return;
    } catch (const std::system_error&) {  // limits of processes: ulimit -u, pids.max
    } catch (const std::bad_alloc&) {
    }
  }
  work();
}

void Worker::run() {
  pthread_setname_np(pthread_self(), name_.c_str());
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (ending_) return;
    const std::function<void()> work = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    lock.unlock();
    work();
    lock.lock();
  }
}

}  // namespace firn
