// A turn at what a flag guards: taken if it is free, and never waited for. (A mutex that a thread
// tries while it has it is undefined; here the thread's own second try finds it taken.)
// Owns: the flag until its end.
#pragma once

#include <atomic>

namespace firn::pytorch {

class Turn {
 public:
  explicit Turn(std::atomic<bool>& taken)
      : taken_(taken), mine_(!taken.exchange(true, std::memory_order_acquire)) {}
  ~Turn() {
    if (mine_) taken_.store(false, std::memory_order_release);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  /// Is it this one's?
  explicit operator bool() const { return mine_; }

 private:
  std::atomic<bool>& taken_;
  const bool mine_;
};

}  // namespace firn::pytorch
