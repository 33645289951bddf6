// Streams, epochs and uses: when is work that used a block over?
//
// An epoch is a stretch of a stream's work closed by a recorded event. The open epoch's number is
// read (lock-free) after work was enqueued; closing first raises the number and then records the
// event, so work that read epoch e lies before the event that closes e. Nothing is recorded until
// somebody asks.
//
// Owns the events. find() is lock-free; everything else needs the engine's lock and its context
// current.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "allocator/memory/device_health.h"
#include "firn/driver.h"

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
  /// The index, seeing it for the first time if need be; -1 when there are too many. The place of a
  /// stream that has ended is another's, once its work is over and no other place is left.
  /// `context`: that of another device whose stream it is; null: the engine's own.
  int see(CUstream stream, CUcontext context = nullptr);

  /// The stream may be destroyed by its owner, unseen, while blocks still name it: from here its
  /// handle is not given to the driver any more. Its work is over when the device's is.
  void may_end(unsigned index) { entries_[index]->may_end.store(true, std::memory_order_release); }
  bool may_end_known(unsigned index) const {
    return entries_[index]->may_end.load(std::memory_order_acquire);
  }
  /// The stream is about to be destroyed: an event behind its work takes its place, and its handle
  /// is not given to the driver until used() says that a later stream has it. Refused events make
  /// it one that may_end().
  void ends(unsigned index);
  /// As ends(), of all streams of another context, whose work is over: events of it go, too.
  void context_ends(CUcontext context);
  /// Operators give work to the stream beside their own: it may wait for another process's.
  void set_aside(unsigned index) { entries_[index]->aside.store(true, std::memory_order_relaxed); }
  bool aside(unsigned index) const { return entries_[index]->aside.load(std::memory_order_relaxed); }
  /// The program gives work to the stream. Lock-free.
  void used(unsigned index) {
    if (entries_[index]->ended.load(std::memory_order_relaxed))
      entries_[index]->ended.store(false, std::memory_order_release);
  }

  /// The use that work enqueued before this call on the stream belongs to. Lock-free.
  Use now(unsigned index) const {
    return Use::make(index, entries_[index]->open.load(std::memory_order_acquire));
  }
  /// Is the use known to be over? Lock-free; poll() learns more.
  bool over(Use use) const {
    return !use || use.epoch() <= entries_[use.stream()]->done.load(std::memory_order_acquire);
  }
  /// Makes sure that an event lies behind the use, so that it can become over. False when the
  /// driver refused (tried again at the next call), or a capture is under way there.
  bool close(Use use);
  /// Makes `index`'s later work wait for the use. False: it cannot be told to now (the driver refused,
  /// the stream is captured, or may have ended); whoever needs the order asks again, or waits until
  /// the use is over. Errors: driver, where that is not to be waited for (its own stream is captured).
  Result<bool> order(unsigned index, Use use);
  /// Asks the driver which events have completed. True when something became over. An answer that
  /// is neither yes nor not yet is the device's health's.
  bool poll();
  /// Waits in the calling thread until the use is over: at the engine's end, when nobody else waits.
  Result<void> wait(Use use);

  /// The stream by one name: the default stream by null; and by null each thread's own default
  /// stream, for that is another one in every thread, ours included, and work behind the default
  /// stream's lies behind theirs.
  static CUstream plain(CUstream stream) {
    return stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD ? nullptr : stream;
  }
  /// What a stream is found by. Every device has a default stream, and all have the same handle.
  static CUstream key_of(CUstream stream, CUcontext context) {
    stream = plain(stream);
    return stream || !context ? stream : reinterpret_cast<CUstream>(context);
  }

  /// Where it is looked for first, of 2 * capacity places.
  static size_t hash(CUstream stream) {
    auto bits = reinterpret_cast<uintptr_t>(stream);
    return (bits ^ (bits >> 12) ^ (bits >> 24)) * 0x9E3779B97F4A7C15ull >> 51;  // 13 bits
  }

  /// Is a stream that was seen being captured into a graph?
  bool any_captured() const;

  /// What find() knows it by.
  CUstream key(unsigned index) const {
    return entries_[index]->key.load(std::memory_order_relaxed);
  }
  CUstream handle(unsigned index) const {
    return entries_[index]->stream.load(std::memory_order_relaxed);
  }
  unsigned count() const { return count_.load(std::memory_order_acquire); }
  /// True while events are recorded and not yet seen complete.
  bool pending() const { return pending_ > 0; }
  /// Leaves events to the driver's end (exit, fork).
  void abandon() { abandoned_ = true; }

 private:
  struct Closed {
    uint64_t epoch;
    CUevent event;
  };
  struct Entry {
    std::atomic<CUstream> stream{nullptr};  // the handle
    std::atomic<CUstream> key{nullptr};     // it is found by: see key_of()
    CUcontext context = nullptr;   // another device's; null: the engine's own
    std::vector<CUevent> spare;    // of that other context
    std::atomic<uint64_t> open{1};
    std::atomic<uint64_t> done{0};
    std::atomic<bool> may_end{false};
    std::atomic<bool> ended{false};
    std::atomic<bool> aside{false};
    bool listed = false;    // in ended_
    uint64_t recorded = 0;  // the last epoch with an event behind it
    std::deque<Closed> closed;
  };
  /// Is it being captured into a graph, or may that not be asked?
  bool captured(CUstream stream, CUresult* answer = nullptr) const;
  bool close_by_device(Entry& entry);
  bool close_ended(Entry& entry);
  Result<void> may_be_closed(Entry& entry) const;
  int reuse_ended();
  void list_ended(unsigned index);
  void enter(unsigned index, CUstream key);
  bool no_handle(const Entry& entry) const {
    return entry.may_end.load(std::memory_order_acquire) ||
           entry.ended.load(std::memory_order_acquire);
  }
  std::vector<CUevent>& spare_of(Entry& entry) { return entry.context ? entry.spare : spare_; }

  const Driver& driver_;
  DeviceHealth& health_;
  // Index + 1, open addressing; left: one was here that has gone.
  static constexpr uint32_t left = UINT32_MAX;
  std::array<std::atomic<uint32_t>, 2 * capacity> slots_{};
  std::deque<unsigned> ended_;  // in the order of their ends; some have come to life again
  std::array<std::unique_ptr<Entry>, capacity> entries_;
  std::atomic<unsigned> count_{0};
  std::vector<CUevent> spare_;
  std::vector<CUevent> unwanted_;  // whose end the driver refused
  size_t pending_ = 0;
  bool abandoned_ = false;
};

}  // namespace firn
