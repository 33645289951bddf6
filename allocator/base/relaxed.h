// A number written by one thread at a time while others may read it, for statistics or for a check
// that is repeated: an atomic with the syntax, and the cost, of a plain number.
#pragma once

#include <atomic>

namespace firn {

template <class T>
class Relaxed {
 public:
  Relaxed(T value = {}) : value_(value) {}
  Relaxed(const Relaxed& other) : value_(other) {}
  operator T() const { return value_.load(std::memory_order_relaxed); }
  Relaxed& operator=(T value) {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }
  Relaxed& operator=(const Relaxed& other) { return *this = static_cast<T>(other); }
  /// Not atomic: writers take turns.
  Relaxed& operator++() { return *this = *this + 1; }

 private:
  std::atomic<T> value_;
};

}  // namespace firn
