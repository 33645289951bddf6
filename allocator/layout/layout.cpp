// Locks: the one between the caller, which watches the deadline, and the threads that search.
#include "allocator/layout/layout.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "allocator/layout/part.h"
#include "allocator/layout/problem.h"

namespace firn::layout {
namespace {

using Clock = std::chrono::steady_clock;
using Parts = std::vector<std::unique_ptr<Part>>;

/// Parts may share addresses: the whole's goal is good enough for each of them.
Parts make_parts(Problem problem, const Options& options) {
  const uint64_t goal = std::max(options.capacity, problem.load);
  std::vector<std::vector<uint32_t>> members = independent_parts(problem);
  Parts parts;
  parts.reserve(members.size());
  for (std::vector<uint32_t>& each : members) {
    Problem part = members.size() == 1 ? std::move(problem) : make_part(problem, each);
    parts.push_back(std::make_unique<Part>(std::move(part), std::move(each), goal, options.seed,
                                           options.steps));
  }
  return parts;
}

/// Threads that take steps of the highest unfinished part, which alone decides the height of the
/// whole, until all parts are done or time is up.
class Crew {
 public:
  explicit Crew(const Parts& parts) : parts_(parts) {
    for (size_t i = 0; i < parts.size(); ++i) waiting_.emplace(parts[i]->height(), i);
  }

  void work(unsigned threads, Clock::time_point end) {
    working_ = threads;
    std::vector<std::jthread> all;
    const auto stop = [&] { stop_.store(true, std::memory_order_relaxed); };
    try {
      for (unsigned i = 0; i < threads; ++i) all.emplace_back([this] { run(); });
    } catch (...) {
      stop();
      throw;
    }
    {
      std::unique_lock lock(mutex_);
      changed_.wait_until(lock, end, [&] { return working_ == 0; });
      stop();
    }
    all.clear();
    if (failed_) std::rethrow_exception(failed_);
  }

 private:
  void run() {
    std::exception_ptr failed;
    try {
      take_steps();
    } catch (...) {
      failed = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    if (failed) failed_ = failed;
    if (failed) stop_.store(true, std::memory_order_relaxed);
    if (--working_ == 0) changed_.notify_one();
  }
  void take_steps() {
    // Several at a time: a search's data belongs to one part.
    constexpr int steps_in_turn = 8;
    Part::Bench bench;
    for (;;) {
      std::pair<uint64_t, size_t> highest;
      {
        const std::lock_guard lock(mutex_);
        if (waiting_.empty()) break;
        highest = *waiting_.rbegin();
      }
      Part& part = *parts_[highest.second];
      for (int step = 0; step < steps_in_turn && !part.done(); ++step) {
        if (stop_.load(std::memory_order_relaxed)) return;
        part.step(bench, stop_);
      }
      const uint64_t height = part.height();
      const std::lock_guard lock(mutex_);
      if (waiting_.erase(highest) == 0) continue;  // another thread has seen to it
      if (!part.done()) waiting_.emplace(height, highest.second);
    }
    // The other threads' attempts are of no use now.
    stop_.store(true, std::memory_order_relaxed);
  }

  const Parts& parts_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  unsigned working_ = 0;
  std::set<std::pair<uint64_t, size_t>> waiting_;  // height and index of the parts not done
  std::exception_ptr failed_;
};

}  // namespace

Layout solve(std::span<const Buffer> buffers, const Options& options) {
  const Clock::time_point begin = Clock::now();
  Problem problem = make_problem(buffers);
  Layout layout;
  layout.load = problem.load;
  layout.offsets.resize(buffers.size());
  Parts parts = make_parts(std::move(problem), options);
  std::erase_if(parts, [&](const std::unique_ptr<Part>& part) {
    // If there are many parts, most are done at once.
    if (!part->done()) return false;
    for (size_t i = 0; i < part->members().size(); ++i)
      layout.offsets[part->members()[i]] = part->offsets()[i];
    layout.height = std::max(layout.height, part->height());
    return true;
  });
  const unsigned threads =
      options.threads ? options.threads : std::max(1u, std::thread::hardware_concurrency());
  if (!parts.empty()) {
    const Clock::duration most = Clock::time_point::max() - begin;
    Crew(parts).work(threads, begin + std::min<Clock::duration>(options.deadline, most));
  }
  bool proven = true;
  for (const std::unique_ptr<Part>& part : parts) {
    for (size_t i = 0; i < part->members().size(); ++i)
      layout.offsets[part->members()[i]] = part->offsets()[i];
    layout.height = std::max(layout.height, part->height());
    proven = proven && (part->proven() || part->height() <= layout.load);
  }
  layout.optimal = layout.height == layout.load || proven;
  return layout;
}

}  // namespace firn::layout
