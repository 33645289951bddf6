// The work that streams do, in order; and the scheduler that runs it, on the wall clock with worker
// threads (one per busy stream at most, none before the first work) or on a virtual clock without.
//
// Owns: queues, marks, threads, the clock. Lock: Gpu::mutex, dropped while work executes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "abi.h"
#include "own.h"

namespace firn::software {

using Lock = std::unique_lock<std::mutex>;

struct Context;
struct Device;
struct Link;
struct Capture;
struct GraphNode;
struct Arrival;
struct TagCopy;
struct Event;
struct Stream;

struct Range {
  uint64_t base = 0;
  size_t bytes = 0;
  bool overlaps(uint64_t other, size_t other_bytes) const {
    return base < other + other_bytes && other < base + bytes;
  }
};

/// The action of a piece of work; copied each time a captured graph is replayed.
struct Body {
  const char* entry = "";
  NodeType type = node_empty;
  std::function<void()> run{};    // without the lock; empty: takes no time of its own
  std::function<void()> settle{}; // under the lock, at completion
  std::function<bool()> ready{};  // under the lock: may it start? (waiting for a value)
  std::vector<Range> ranges{};    // addresses it uses until it is complete
  Link* link = nullptr;           // taken for `link_ns`, in turn
  uint64_t link_ns = 0;
  uint64_t latency_ns = 0;        // besides
  uint64_t bytes = 0;             // copied; for the observer
  std::shared_ptr<Arrival> arrival{}; // a copy into mapped memory
  std::shared_ptr<TagCopy> tags{};    // a copy of tags
  std::shared_ptr<Event> record{}; // its completion is this event (a node of a graph)
  bool instant() const { return !run && !ready && !link_ns && !latency_ns; }
};

/// Linked through `Element::next`: each is in one such list at most. Nothing is allocated, so that
/// work completes where the machine has no memory, as a GPU's does.
template <class Element>
class Linked {
 public:
  Linked() = default;
  Linked(const Linked&) = delete;
  Linked& operator=(const Linked&) = delete;
  bool empty() const { return !head_; }
  size_t size() const { return size_; }
  void push_front(std::shared_ptr<Element> element) {
    if (!tail_) tail_ = element.get();
    element->next = std::move(head_);
    head_ = std::move(element);
    ++size_;
  }
  void push_back(std::shared_ptr<Element> element) {
    element->next = nullptr;
    Element* const last = element.get();
    (tail_ ? tail_->next : head_) = std::move(element);
    tail_ = last;
    ++size_;
  }
  std::shared_ptr<Element> pop_front() {
    std::shared_ptr<Element> element = std::move(head_);
    head_ = std::move(element->next);
    if (!head_) tail_ = nullptr;
    --size_;
    return element;
  }
  void clear() {
    while (!empty()) pop_front();
  }

 private:
  std::shared_ptr<Element> head_;
  Element* tail_ = nullptr;
  size_t size_ = 0;
};

struct Work {
  Body body;
  std::shared_ptr<Stream> stream;
  std::vector<std::shared_ptr<Work>> after;  // all must be complete before it starts
  Linked<Stream> waiters;                    // streams whose next work waits for this one
  std::shared_ptr<Work> next;                // in the scheduler's list of ready work
  bool started = false, done = false;
  uint64_t generation = 0;  // of the scheduler: work from before a reset completes nowhere
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;   // not before
  uint64_t done_ns = 0;
};

struct Stream {
  uint64_t handle = 0;      // 0: internal (a lane of a graph)
  uint64_t serial = 0;
  std::weak_ptr<Context> context;
  int device = 0;
  unsigned flags = 0;
  int priority = 0;
  bool legacy = false;
  std::deque<std::shared_ptr<Work>> queue;  // incomplete, in order
  std::shared_ptr<Work> last;               // enqueued last, complete or not
  bool running = false, blocked = false;
  std::shared_ptr<Stream> next;             // of those that wait for the same, or are looked at
  std::shared_ptr<Capture> capture;         // it records instead of running
  std::vector<std::shared_ptr<GraphNode>> capture_tail;
  Own own;
  bool blocking() const { return !(flags & CU_STREAM_NON_BLOCKING); }
};

struct SharedMark;

struct Event {
  uint64_t handle = 0;
  std::weak_ptr<Context> context;
  int device = 0;
  unsigned flags = 0;
  std::shared_ptr<Work> mark;  // null: never recorded
  std::shared_ptr<Capture> captured;
  std::vector<std::shared_ptr<GraphNode>> captured_nodes;
  std::shared_ptr<SharedMark> shared;  // of several processes: then instead of `mark`
};

class Scheduler {
 public:
  uint64_t now_ns() const;
  bool virtual_clock = false;

  /// Appends to the stream; legacy-stream order is added here.
  std::shared_ptr<Work> enqueue(const std::shared_ptr<Stream>& stream, Body body,
                                std::vector<std::shared_ptr<Work>> after = {});
  /// Blocks until `done()`; on the virtual clock advances to it. Aborts, naming `entry`, when
  /// nothing that is queued could ever make it true.
  void wait_until(Lock& lock, const char* entry, const std::function<bool()>& done);
  /// A stream's last work is the last when this was called: what comes behind it is not waited for.
  void wait_for(Lock& lock, const char* entry, std::shared_ptr<Work> work) {
    wait_until(lock, entry, [&] { return !work || work->done || died(*work); });
  }
  /// Virtual clock: runs what is due until `ns`, then sets the clock there.
  void advance_to(Lock& lock, uint64_t ns);
  uint64_t next_event_ns() const;

  /// Incomplete work that uses the range; null when there is none.
  const Work* user_of(uint64_t base, size_t bytes) const;
  bool idle() const { return incomplete_.empty(); }
  /// Completes a dead context's queued work without running it, as soon as it can.
  void drop(const std::shared_ptr<Context>& context);
  /// Has its context been ended by an error? Then its work is not waited for.
  static bool died(const Work& work);
  /// Drops what has not started, waits for what runs. For firnGpuReset().
  void reset(Lock& lock);

 private:
  void kick(const std::shared_ptr<Stream>& stream);
  void start(const std::shared_ptr<Work>& work);
  void worker_for_one_more();
  /// `waiters` gets the streams that waited for it.
  void finish(const std::shared_ptr<Work>& work, Linked<Stream>& waiters);
  void complete(const std::shared_ptr<Work>& work);
  void execute(Lock& lock, const std::shared_ptr<Work>& work);
  bool step(Lock& lock, uint64_t until_ns);
  void poll_blocked();
  void worker();

  std::unordered_set<Work*> incomplete_;
  uint64_t generation_ = 0;
  // Wall clock.
  Linked<Work> ready_;
  std::condition_variable ready_changed_;
  std::condition_variable dropped_;  // running work may be over before its time
  unsigned workers_ = 0;  // they last as long as the process
  unsigned idle_workers_ = 0, running_ = 0;
  unsigned returning_ = 0;  // 1 while a worker, holding the lock, completes what it ran
  // Virtual clock.
  uint64_t now_ns_ = 0, starts_ = 0;
  std::map<std::pair<uint64_t, uint64_t>, std::shared_ptr<Work>> due_;  // by (end, start order)
  std::deque<std::shared_ptr<Work>> polled_;  // waiting for a value
  bool advancing_ = false;                    // one thread at a time moves the clock
};

}  // namespace firn::software
