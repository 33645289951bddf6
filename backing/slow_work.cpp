#include "firn/slow_work.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <new>

#include "firn/said.h"
#include "firn/signals_blocked.h"

namespace firn {

namespace {
constexpr std::chrono::seconds patience_of_process{2};
}

SlowWorks::SlowWorks(std::chrono::nanoseconds patience, Say say)
    : patience_(patience), say_(std::move(say)) {}

SlowWorks::~SlowWorks() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

SlowWorks& SlowWorks::of_process() {
  struct Own {
    SlowWorks works{patience_of_process, [](const std::string& line) {
                      say_now("firn: " + line);
                    }};
    const pid_t process = ::getpid();
  };
  static std::atomic<Own*> own{nullptr};
  Own* mine = own.load(std::memory_order_acquire);
  // In the child of a fork the thread is the parent's, and the lock may be held for good.
  while (!mine || mine->process != ::getpid()) {
    auto* made = new Own;
    if (own.compare_exchange_strong(mine, made, std::memory_order_acq_rel)) return made->works;
    delete made;
  }
  return mine->works;
}

/// With the stretches before, as far as they count.
std::chrono::nanoseconds SlowWorks::lasted(const SlowWork& work, Time now) const {
  return past_[static_cast<size_t>(work.kind_)].debt + (now - work.begun_);
}

bool SlowWorks::say_if_due(const SlowWork& work, Time now) {
  Past& past = past_[static_cast<size_t>(work.kind_)];
  const std::chrono::nanoseconds so_far = lasted(work, now);
  if (past.said || so_far < patience_) return past.said;
  past.said = true;
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f", std::chrono::duration<double>(so_far).count());
  try {
    say_(work.words_() + " takes long (" + seconds + " s so far): the program waits for it");
  } catch (const std::bad_alloc&) {  // (also at the work's end, which may be one for that reason)
  }
  return true;
}

void SlowWorks::begin(SlowWork& work) {
  std::lock_guard lock(mutex_);
  Past& past = past_[static_cast<size_t>(work.kind_)];
  work.begun_ = std::chrono::steady_clock::now();
  past.debt = std::max(past.debt - (work.begun_ - past.ended) / 2, std::chrono::nanoseconds(0));
  running_.push_back(&work);
  if (past.said) return;
  if (!started_)
    start_watcher();
  else if (asleep_)
    changed_.notify_all();
}

void SlowWorks::start() {
  std::lock_guard lock(mutex_);
  if (!started_) start_watcher();
}

void SlowWorks::start_watcher() {
  started_ = true;
  SignalsBlocked blocked;
  try {
    watcher_ = std::thread([this] { watch(); });
    // Named by the starter, so that the thread is never seen by another name.
    pthread_setname_np(watcher_.native_handle(), "firn-slow-work");
  } catch (const std::exception&) {  // a limit on processes, or no memory
    // Then it is reported when it is over.
  }
}

void SlowWorks::end(SlowWork& work) {
  std::lock_guard lock(mutex_);
  const Time now = std::chrono::steady_clock::now();
  (void)say_if_due(work, now);
  Past& past = past_[static_cast<size_t>(work.kind_)];
  past.debt = lasted(work, now);
  past.ended = now;
  std::erase(running_, &work);
}

void SlowWorks::watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const Time now = std::chrono::steady_clock::now();
    std::chrono::nanoseconds next = std::chrono::nanoseconds::max();
    for (const SlowWork* work : running_)
      if (!say_if_due(*work, now)) next = std::min(next, patience_ - lasted(*work, now));
    asleep_ = next == std::chrono::nanoseconds::max();
    if (asleep_)
      changed_.wait(lock);
    else
      changed_.wait_for(lock, next);
  }
}

SlowWork::SlowWork(SlowWorks::Kind kind, Words words, SlowWorks& works)
    : works_(works), kind_(kind), words_(std::move(words)) {
  works_.begin(*this);
}

}  // namespace firn
