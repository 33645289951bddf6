// Streams, epochs and uses: when is work that used a block over?
//
// An epoch is a stretch of a stream's work closed by a recorded event. The open epoch's number is
// read (lock-free) after work was enqueued; closing first raises the number and then records the
// event, so work that read epoch e lies before the event that closes e. Events are recorded only on
// demand.
//
// Owns the events. find() is lock-free; everything else needs the engine's lock and its context
// current.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "allocator/memory/device_health.h"
#include "firn/driver.h"
#include "firn/thread_safety.h"

namespace firn {

/// (stream, epoch) in one word: 12 bits of stream index, 52 of epoch. 0: never used.
struct Use {
  uint64_t bits = 0;
  static Use make(unsigned stream, uint64_t epoch) {
    return Use{(static_cast<uint64_t>(stream) << 52) | epoch};
  }
  unsigned stream() const { return static_cast<unsigned>(bits >> 52); }
  uint64_t epoch() const { return bits & ((1ull << 52) - 1); }
  explicit operator bool() const { return bits != 0; }
};

class Streams {
 public:
  static constexpr unsigned capacity = 4096;

  Streams(const Driver& driver, DeviceHealth& health) : driver_(driver), health_(health) {}
  ~Streams();

  /// The index of a stream, or -1 when it was never seen. Lock-free.
  int find(CUstream stream) const;
  /// The index, adding the stream if it is new; -1 when there are too many. When no index is left,
  /// a new stream takes that of an ended one whose work is over.
  /// `context`: the other device's context that the stream is of; null: the engine's own.
  int see(CUstream stream, CUcontext context = nullptr) FIRN_HELD;

  /// The stream may be destroyed by its owner, unseen, while blocks still name it: from here its
  /// handle is not passed to the driver any more. Its work is over when the device's is: see
  /// DeviceWait.
  void may_end(unsigned index) FIRN_HELD {
    tracked_[index]->may_end.store(true, std::memory_order_release);
  }
  bool may_end_known(unsigned index) const {
    return tracked_[index]->may_end.load(std::memory_order_acquire);
  }
  /// The stream is about to be destroyed: an event behind its work stands for it, and its handle is
  /// not passed to the driver until used() reports a later stream that has it. If the event is
  /// refused, the stream becomes one that may_end().
  void ends(unsigned index) FIRN_HELD;
  /// As ends(), for all streams of another context, whose work is over: its events go, too.
  void context_ends(CUcontext context) FIRN_HELD;
  /// Operators enqueue work on it beside their own stream: it may wait for another process.
  void set_aside(unsigned index) FIRN_HELD {
    tracked_[index]->aside.store(true, std::memory_order_relaxed);
  }
  bool aside(unsigned index) const FIRN_HELD {
    return tracked_[index]->aside.load(std::memory_order_relaxed);
  }
  /// The program enqueues work on the stream. Lock-free.
  void used(unsigned index) {
    if (tracked_[index]->ended.load(std::memory_order_relaxed))
      tracked_[index]->ended.store(false, std::memory_order_release);
  }

  /// The use that work enqueued before this call on the stream belongs to. Lock-free.
  Use now(unsigned index) const {
    return Use::make(index, tracked_[index]->open.load(std::memory_order_acquire));
  }
  /// Is the use known to be over? Lock-free; poll() learns more.
  bool over(Use use) const {
    return !use || use.epoch() <= tracked_[use.stream()]->done.load(std::memory_order_acquire);
  }
  /// Makes sure that an event lies behind the use, so that it can become over. False when the
  /// driver refused (tried again at the next call), or a capture is under way there. Of a stream
  /// that may_end(): asks for a wait for the device; false while anything is being captured.
  bool close(Use use) FIRN_HELD;
  /// Makes `index`'s later work wait for the use. Code::busy: no event can be had for that now, and
  /// the work on `index` has to be put off until the use is over.
  Result<void> order(unsigned index, Use use) FIRN_HELD;
  /// Where close() is refused: is the stream idle, so that its uses so far are over?
  bool ask(Use use) FIRN_HELD;

  /// A wait for all of the device's work that close() asked for. The caller begins it with the
  /// lock, calls cuCtxSynchronize in `context` (null: the engine's own) without, and ends it with.
  struct DeviceWait {
    CUcontext context = nullptr;
    std::vector<Use> over;  // once the device's work is
  };
  bool device_wait_due() const FIRN_HELD { return device_waits_ > 0; }
  /// Null: none is due, or a capture is under way, which the wait would spoil.
  std::optional<DeviceWait> begin_device_wait() FIRN_HELD;
  void end_device_wait(const DeviceWait& wait, CUresult result) FIRN_HELD;
  /// Asks the driver which events have completed. True when something became over. An answer that
  /// is neither yes nor not yet is the device's health's.
  bool poll() FIRN_HELD;
  /// Waits in the calling thread until the use is over: at the engine's end, when nobody else needs
  /// the lock.
  Result<void> wait(Use use) FIRN_HELD;

  /// One name per stream: null for the default stream, and for each thread's own default stream
  /// too. The latter is another one in every thread, ours included, and work behind the default
  /// stream lies behind theirs.
  static CUstream plain(CUstream stream) {
    return stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD ? nullptr : stream;
  }
  /// The key of find(). Every device has a default stream, and all have the same handle.
  static CUstream key_of(CUstream stream, CUcontext context) {
    stream = plain(stream);
    return stream || !context ? stream : reinterpret_cast<CUstream>(context);
  }

  /// Where the search for it begins, of 2 * capacity places.
  static size_t hash(CUstream stream) {
    auto bits = reinterpret_cast<uintptr_t>(stream);
    return (bits ^ (bits >> 12) ^ (bits >> 24)) * 0x9E3779B97F4A7C15ull >> 51;  // 13 bits
  }

  /// May the engine give it work now: is it of the engine's own context, with a handle that is
  /// known to live, and not being captured?
  bool takes_work(unsigned index) const FIRN_HELD;
  /// Is it being captured into a graph, or does the driver refuse to say? The handle has to live,
  /// and its context to be current. `answer`: the driver's.
  bool captured(CUstream stream, CUresult* answer = nullptr) const FIRN_HELD;
  /// Is a stream that was seen being captured into a graph?
  bool any_captured() const FIRN_HELD;

  /// The key of find().
  CUstream key(unsigned index) const {
    return tracked_[index]->key.load(std::memory_order_relaxed);
  }
  CUstream handle(unsigned index) const {
    return tracked_[index]->stream.load(std::memory_order_relaxed);
  }
  unsigned count() const { return count_.load(std::memory_order_acquire); }
  /// True while events are recorded and not yet seen complete.
  bool pending() const FIRN_HELD { return pending_ > 0; }
  /// Leaves events to the driver's end (exit, fork).
  void abandon() { abandoned_ = true; }

 private:
  struct Closed {
    uint64_t epoch;
    CUevent event;
  };
  struct Tracked {
    std::atomic<CUstream> stream{nullptr};  // the handle
    std::atomic<CUstream> key{nullptr};     // for find(): see key_of()
    CUcontext context = nullptr;   // another device's; null: the engine's own
    std::vector<CUevent> spare;    // events of that other context
    std::atomic<uint64_t> open{1};
    std::atomic<uint64_t> done{0};
    std::atomic<bool> may_end{false};
    std::atomic<bool> ended{false};
    std::atomic<bool> aside{false};
    bool listed FIRN_GUARDED = false;  // in ended_
    uint64_t waiting FIRN_GUARDED = 0;  // a wait under way covers epochs up to it
    bool device_wait FIRN_GUARDED = false;  // close() asked for one
    uint64_t recorded FIRN_GUARDED = 0;  // the last epoch with an event behind it
    std::deque<Closed> closed FIRN_GUARDED;
  };
  bool ask_for_device_wait(Tracked& tracked) FIRN_HELD;
  bool close_ended(Tracked& tracked) FIRN_HELD;
  int reuse_ended() FIRN_HELD;
  void list_ended(unsigned index) FIRN_HELD;
  void forget_handle(Tracked& tracked) FIRN_HELD;
  void enter(unsigned index, CUstream key) FIRN_HELD;
  bool no_handle(const Tracked& tracked) const {
    return tracked.may_end.load(std::memory_order_acquire) ||
           tracked.ended.load(std::memory_order_acquire);
  }
  std::vector<CUevent>& spare_of(Tracked& tracked) FIRN_HELD {
    return tracked.context ? tracked.spare : spare_;
  }

  const Driver& driver_;
  DeviceHealth& health_;
  // Index + 1, open addressing; left: a removed stream.
  static constexpr uint32_t left = UINT32_MAX;
  std::array<std::atomic<uint32_t>, 2 * capacity> slots_{};
  std::deque<unsigned> ended_ FIRN_GUARDED;  // oldest first; some are in use again
  std::array<std::unique_ptr<Tracked>, capacity> tracked_;
  std::atomic<unsigned> count_{0};
  std::vector<CUevent> spare_ FIRN_GUARDED;
  std::vector<CUevent> unwanted_ FIRN_GUARDED;  // events that the driver refused to destroy
  size_t pending_ FIRN_GUARDED = 0;
  /// Polls, a tenth of a second's at least, in which no wait for the device is begun after a capture
  /// forbade one: it may be of a stream that was never seen.
  static constexpr unsigned pause_polls = 1'000;
  unsigned pause_ FIRN_GUARDED = 0;
  size_t device_waits_ FIRN_GUARDED = 0;  // streams that wait for the device
  bool abandoned_ = false;
};

}  // namespace firn
