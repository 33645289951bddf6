// The scheduler: queues, dependencies, worker threads, virtual time.
#include "work.h"

#include <signal.h>

#include <chrono>
#include <new>
#include <system_error>
#include <thread>

#include "gpu.h"
#include "sticky.h"
#include "tags.h"

namespace firn::software {

uint64_t Scheduler::now_ns() const {
  if (virtual_clock) return now_ns_;
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

std::shared_ptr<Work> Scheduler::enqueue(const std::shared_ptr<Stream>& stream, Body body,
                                         std::vector<std::shared_ptr<Work>> after) {
  auto work = std::make_shared<Work>();
  work->body = std::move(body);
  work->stream = stream;
  work->generation = generation_;
  work->after = std::move(after);
  // The legacy stream waits for every blocking stream of its context, and they for it.
  if (auto context = stream->context.lock(); context && stream->handle) {
    if (stream->legacy) {
      for (auto& [serial, other] : context->streams)
        if (other != stream && other->blocking() && other->last && !other->last->done)
          work->after.push_back(other->last);
    } else if (stream->blocking() && context->legacy->last && !context->legacy->last->done) {
      work->after.push_back(context->legacy->last);
    }
  }
  std::erase_if(work->after, [](const auto& other) { return !other || other->done; });
  // (Where the machine has no memory, nothing was enqueued.)
  stream->queue.push_back(work);
  const std::shared_ptr<Work> before = std::exchange(stream->last, work);
  try {
    incomplete_.insert(work.get());
    kick(stream);
  } catch (const std::bad_alloc&) {
    if (work->started || stream->queue.empty() || stream->queue.back() != work)
      die(work->body.entry, "no memory is left for the work behind it");
    stream->queue.pop_back();
    incomplete_.erase(work.get());
    stream->last = before;
    throw;
  }
  return work;
}

// Starts what can start, beginning with this stream: a list instead of recursion, because a long
// chain of events may complete at once.
void Scheduler::kick(const std::shared_ptr<Stream>& first) {
  if (first->blocked) return;  // it is in the list of what it waits for
  Linked<Stream> todo;
  todo.push_front(first);
  while (!todo.empty()) {
    const std::shared_ptr<Stream> stream = todo.pop_front();
    if (stream->running || stream->blocked || stream->queue.empty()) continue;
    std::shared_ptr<Work> work = stream->queue.front();
    while (!work->after.empty() && work->after.back()->done) work->after.pop_back();
    if (!work->after.empty()) {
      work->after.back()->waiters.push_back(stream);
      stream->blocked = true;
    } else if (work->body.instant()) {
      work->end_ns = now_ns();
      Linked<Stream> waiters;
      finish(work, waiters);
      while (!waiters.empty()) todo.push_front(waiters.pop_front());
      todo.push_front(stream);
    } else {
      start(work);
    }
  }
}

void Scheduler::start(const std::shared_ptr<Work>& work) {
  Stream& stream = *work->stream;
  if (virtual_clock && work->body.ready && !work->body.ready()) {
    polled_.push_back(work);
    stream.running = work->started = true;
    return;
  }
  const uint64_t now = now_ns();
  uint64_t begin = now;
  if (Link* link = work->body.link; link && work->body.link_ns) {
    begin = std::max(now, link->free_at_ns);
    link->free_at_ns = begin + work->body.link_ns;
  }
  work->begin_ns = begin;
  if (work->body.tags) begin_tags(*work->body.tags);
  work->end_ns = begin + work->body.link_ns + work->body.latency_ns;
  if (virtual_clock) {
    due_.emplace(std::pair{work->end_ns, ++starts_}, work);
    stream.running = work->started = true;
    return;
  }
  if (ready_.size() >= returning_) worker_for_one_more();  // (else the one that returns takes it)
  ready_.push_back(work);
  stream.running = work->started = true;
}

/// Wakes an idle worker, or makes one. std::bad_alloc where there is none and none can be made.
void Scheduler::worker_for_one_more() {
  if (idle_workers_ + returning_ > ready_.size()) {
    ready_changed_.notify_one();
    return;
  }
  // Signals stay with the application's threads, but for those that a kernel itself raises.
  sigset_t all, before;
  sigfillset(&all);
  for (int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&all, own);
  if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0) die("start", "pthread_sigmask failed");
  bool more = false;
  try {
    std::thread([this] { worker(); }).detach();
    ++workers_;
    more = true;
  } catch (const std::system_error&) {  // a limit on processes
  } catch (const std::bad_alloc&) {
  }
  if (pthread_sigmask(SIG_SETMASK, &before, nullptr) != 0) die("start", "pthread_sigmask failed");
  if (!more && workers_ == 0) throw std::bad_alloc();  // (else one of them takes it, later)
}

void Scheduler::finish(const std::shared_ptr<Work>& work, Linked<Stream>& waiters) {
  Stream& stream = *work->stream;
  if (stream.queue.empty() || stream.queue.front() != work)
    die(work->body.entry, "work completed out of order");
  stream.queue.pop_front();
  stream.running = false;
  work->done = true;
  work->done_ns = now_ns();
  incomplete_.erase(work.get());
  if (work->body.settle) work->body.settle();
  if (gpu().observer && work->started)
    gpu().observer(gpu().observer_context, work->body.entry,
                   reinterpret_cast<void*>(stream.handle), work->begin_ns, work->done_ns,
                   work->body.bytes);
  work->body = Body{.entry = work->body.entry};
  work->after.clear();
  while (!work->waiters.empty()) {
    std::shared_ptr<Stream> waiter = work->waiters.pop_front();
    waiter->blocked = false;
    waiters.push_back(std::move(waiter));
  }
  work->stream.reset();
  if (gpu().host_waiters) gpu().changed.notify_all();
}

void Scheduler::complete(const std::shared_ptr<Work>& work) {
  std::shared_ptr<Stream> stream = work->stream;
  Linked<Stream> waiters;
  finish(work, waiters);
  kick(stream);
  while (!waiters.empty()) kick(waiters.pop_front());
}

void Scheduler::execute(Lock& lock, const std::shared_ptr<Work>& work) {
  if (!work->body.run) return;
  const std::shared_ptr<Context> context = work->stream->context.lock();
  const auto run = std::move(work->body.run);  // drop() may come meanwhile
  lock.unlock();
  // (Copies are ours, and a callback is the program's: their faults are the process's.)
  CUresult result = CUDA_SUCCESS;
  if (work->body.type == node_kernel && !gpu().config.tags)  // (Tags are looked at, not used.)
    result = run_guarded(work->body.entry, run);
  else
    run();
  lock.lock();
  if (result != CUDA_SUCCESS) kill_context(context, result);
}

bool Scheduler::died(const Work& work) {
  const auto context = work.stream ? work.stream->context.lock() : nullptr;
  return context && context->dead != CUDA_SUCCESS;
}

void Scheduler::drop(const std::shared_ptr<Context>& context) {
  for (Work* work : incomplete_) {
    if (work->stream->context.lock() != context) continue;
    work->body.run = nullptr;
    work->body.ranges.clear();
    work->body.link = nullptr;
    work->body.link_ns = work->body.latency_ns = 0;
    if (work->started && work->body.ready)
      work->body.ready = [] { return true; };
    else
      work->body.ready = nullptr;
    work->end_ns = 0;
  }
  dropped_.notify_all();
  // (Without a list of them: a worker whose kernel failed may have no memory.)
  const auto next = [&]() -> std::shared_ptr<Stream> {
    for (const Work* work : incomplete_) {
      const std::shared_ptr<Stream>& stream = work->stream;
      if (!stream->running && !stream->blocked && !stream->queue.empty() &&
          stream->context.lock() == context)
        return stream;
    }
    return nullptr;
  };
  while (const std::shared_ptr<Stream> stream = next()) kick(stream);
}

void Scheduler::worker() {
  Lock lock(gpu().mutex);
  for (;;) {
    ++idle_workers_;
    ready_changed_.wait(lock, [&] { return !ready_.empty() && !gpu().exiting; });
    --idle_workers_;
    const std::shared_ptr<Work> work = ready_.pop_front();
    ++running_;
    while (work->body.ready && !gpu().exiting && !work->body.ready()) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      lock.lock();
    }
    execute(lock, work);
    for (uint64_t now = now_ns(); now < work->end_ns; now = now_ns())
      dropped_.wait_for(lock, std::chrono::nanoseconds(work->end_ns - now));
    --running_;
    if (work->generation != generation_) {
      gpu().changed.notify_all();  // reset() waits for it
      continue;
    }
    returning_ = 1;
    complete(work);
    returning_ = 0;
  }
}

void Scheduler::wait_until(Lock& lock, const char* entry, const std::function<bool()>& done) {
  while (!done()) {
    if (!virtual_clock) {
      ++gpu().host_waiters;
      gpu().changed.wait(lock, done);
      --gpu().host_waiters;
    } else if (!step(lock, UINT64_MAX)) {
      die(entry, "deadlock: waits for work that nothing queued can complete");
    }
  }
}

void Scheduler::poll_blocked() {
  for (size_t i = 0; i < polled_.size();) {
    if (!polled_[i]->body.ready()) {
      ++i;
      continue;
    }
    std::shared_ptr<Work> work = polled_[i];
    polled_.erase(polled_.begin() + static_cast<std::ptrdiff_t>(i));
    work->end_ns = now_ns_;
    due_.emplace(std::pair{now_ns_, ++starts_}, work);
  }
}

// Runs the next event, if it is due by `until_ns`. False: there is none.
bool Scheduler::step(Lock& lock, uint64_t until_ns) {
  if (advancing_) {  // another thread moves the clock: its event is this thread's event
    ++gpu().host_waiters;
    gpu().changed.wait(lock, [&] { return !advancing_; });
    --gpu().host_waiters;
    return true;
  }
  poll_blocked();
  if (due_.empty() || due_.begin()->first.first > until_ns) return false;
  std::shared_ptr<Work> work = due_.begin()->second;
  now_ns_ = std::max(now_ns_, due_.begin()->first.first);
  due_.erase(due_.begin());
  advancing_ = true;
  execute(lock, work);
  advancing_ = false;
  complete(work);
  if (gpu().host_waiters) gpu().changed.notify_all();
  return true;
}

void Scheduler::advance_to(Lock& lock, uint64_t ns) {
  while (step(lock, ns)) {
  }
  now_ns_ = std::max(now_ns_, ns);
}

uint64_t Scheduler::next_event_ns() const {
  for (const auto& work : polled_)
    if (work->body.ready()) return now_ns_;
  return due_.empty() ? UINT64_MAX : std::max(now_ns_, due_.begin()->first.first);
}

const Work* Scheduler::user_of(uint64_t base, size_t bytes) const {
  for (const Work* work : incomplete_)
    for (const Range& range : work->body.ranges)
      if (range.overlaps(base, bytes)) return work;
  return nullptr;
}

void Scheduler::reset(Lock& lock) {
  ++generation_;
  ready_.clear();
  due_.clear();
  polled_.clear();
  incomplete_.clear();
  gpu().changed.wait(lock, [&] { return running_ == 0; });
  now_ns_ = 0;
  starts_ = 0;
}

}  // namespace firn::software
