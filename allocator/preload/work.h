// One piece of work that a call is about to enqueue: which blocks it can reach, held on the device
// until it is enqueued.
//
// It can reach the blocks around the addresses that it was given (see()), those that pointer tables
// in these lead to, at any depth, those that memory outside the arenas is known to lead to, and
// those that blocks not yet inspected may lead to (inspections.h). No lock and no allocation while
// no memory is known to hold addresses, and all is resident.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "allocator/preload/host_memory.h"
#include "allocator/preload/small.h"
#include "allocator/preload/views.h"

namespace firn::preload {

/// A block that work can reach.
struct Reached {
  View* view = nullptr;
  uint64_t base = 0;
  uint64_t bytes = 0;
};

/// The program is about to get an error number for `error`. For out of memory, stderr says in words
/// what happened and which knob changes it, once for each `said`.
void say_why(const Error& error, const char* what, std::atomic<bool>& said);

class Work {
 public:
  explicit Work(Where where) : where_(where) {}
  ~Work() {
    if (!first_.holds.empty() || !others_.empty()) [[unlikely]]
      end_thrown();
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /// An address, or a word that may be one.
  void see(uint64_t word) {
    if (!view_ || !view_->arena.contains(word)) {
      View* view = views().at(word);
      if (!view) {
        if (host_memory().may_be(word)) [[unlikely]]
          see_host(word);
        return;
      }
      if (view_ && view != view_) several_ = true;
      view_ = view;
    }
    words_.push_back(word);
  }
  /// An address that is only read.
  void see_read(uint64_t word) {
    if (views().at(word)) reads_.push_back(word);
  }
  /// Everything live: for a kernel with unknown parameters.
  void see_all();
  /// An address of host memory: addresses found there count as given.
  void see_host(uint64_t address);
  /// Nothing of Firn's was seen. (Memory outside may hold addresses all the same.)
  bool empty() const { return words_.empty() && reads_.empty(); }

  /// Holds all that the work can reach. `follow`: the blocks seen, and those that they lead to. On
  /// an error nothing is held.
  CUresult hold(bool follow);
  /// The work has been enqueued, or was refused. Idempotent.
  void release(bool enqueued);
  /// Did hold() find addresses in memory, to follow?
  bool followed() const { return followed_; }
  /// Every block that hold() reached, small ones included; each once.
  std::vector<Reached> reached() const;
  std::span<const uint64_t> seen() const { return words_; }
  const Where& at() const { return where_; }

 private:
  static constexpr size_t few = 48;
  struct Part {  // the holds of one engine
    View* view = nullptr;
    Small<Hold, few> holds;
  };

  CUresult hold_all(std::span<const uint64_t> words);
  CUresult touch(Part& part, std::span<const uint64_t> words, Access access);
  CUresult touch_slow(Part& part, uint64_t word, Access access);
  Part& part_of(View& view);
  CUstream stream_for(View& view) const {
    return where_.context && where_.context != view.context
               ? view.engine->stream_of(where_.stream, where_.context)
               : where_.stream;
  }
  bool leads_on() const;
  void follow();
  CUresult hold_once(bool follow_tables);
  void end_thrown() noexcept;

  const Where where_;
  View* view_ = nullptr;   // of the last word seen
  bool several_ = false;   // there were words of several devices
  bool followed_ = false;
  bool guessed_ = false;   // found_ has blocks of launches not yet inspected
  bool patient_ = true;    // what does not fit may fit after their inspection
  bool ending_ = false;    // release() is under way, or was left by an exception
  Small<uint64_t, few> words_;    // those seen
  Small<uint64_t, 2> reads_;
  Small<uint64_t, few> found_;    // those that memory led to
  Part first_;
  std::vector<std::unique_ptr<Part>> others_;
};

/// The block around an address, live at this moment.
bool block_around(View& view, uint64_t address, Reached& block);

}  // namespace firn::preload
