// The process's share of host memory: its budget, by the number of Firn's processes here; how much
// the machine, or the container, can still give; when some must be given back.
//
// Owns: its membership among the neighbours. Locks: one, a leaf, while a budget is set. Any service
// thread calls look(), which acts only now and then.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "allocator/memory/host_tier.h"
#include "firn/neighbours.h"
#include "firn/ranked_mutex.h"

namespace firn {

class HostMemory {
 public:
  HostMemory();
  /// `asked_bytes`: the user's budget; 0: a share of what is available. Returns the budget.
  uint64_t begin(uint64_t asked_bytes);
  /// From here look() may be called. The budget never falls below `least_bytes`.
  void start(uint64_t least_bytes);
  void look();
  /// look() with values already read: the memory the machine has left, and memory_pressure().
  void found(uint64_t left_bytes, double pressure);

  uint64_t given_bytes() const { return given_.load(std::memory_order_relaxed); }
  unsigned sharers() const { return sharers_.load(std::memory_order_relaxed); }
  /// For the engines: what they may still map together, and what the machine has.
  std::atomic<uint64_t>* left() { return &left_; }
  HostRoom* room() { return &room_; }
  /// Takes one engine's own part out of left().
  void take(uint64_t bytes);

  /// Memory is short: engines are to give some back. give_due() is true once for each look that
  /// found it so, and for the first look after that.
  bool pressed() const { return pressed_.load(std::memory_order_relaxed); }
  bool give_due() {
    return due_.load(std::memory_order_relaxed) && due_.exchange(false, std::memory_order_relaxed);
  }

 private:
  void share();

  Neighbours neighbours_;
  bool automatic_ = false, told_ = false;  // told_: /proc says how much memory there is
  uint64_t available_bytes_ = 0;  // then: at our start
  uint64_t budget_ = 0, least_ = 0;
  std::atomic<uint64_t> left_{0}, given_{0};
  std::atomic<unsigned> sharers_{1};
  HostRoom room_;
  std::atomic<bool> pressed_{false}, due_{false};
  std::atomic<uint64_t> share_again_ns_{0}, look_again_ns_{0}, look_wait_ns_{0};
  RankedMutex<Rank::host> mutex_;
};

}  // namespace firn
