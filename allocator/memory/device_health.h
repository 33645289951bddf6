// Tracks whether a device still answers. After an illegal address, a failed assertion or an
// uncorrectable memory error, the driver answers nearly every call with that error until the
// context is destroyed, and nothing in flight ever completes. A driver that keeps refusing an
// essential call is treated alike.
//
// Once dead a device stays dead, and no engine of it moves, maps or unmaps anything any more: every
// call that would need to returns error().
//
// Owns the error. Everything but dead() and error() needs the engine's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "firn/driver.h"
#include "firn/thread_safety.h"

namespace firn {

class DeviceHealth {
 public:
  DeviceHealth(const Driver& driver, int device) : driver_(driver), device_(device) {}

  bool dead() const { return dead_.load(std::memory_order_acquire); }
  /// Of a dead device: the call that revealed it, and the driver's message.
  const Error& error() const { return error_; }

  /// The error of a failed call. Ends the device if the error is permanent.
  Error failed(const char* entry, CUresult result) FIRN_HELD;
  /// The result of a call that is retried until it succeeds: refused too often in a row, it ends
  /// the device.
  void answered(const char* entry, CUresult result) FIRN_HELD;
  /// Refusals of such calls, ever: a waiting thread retries until one succeeds or the device ends.
  uint64_t refusals() const FIRN_HELD { return refusals_; }
  /// The call is essential: its refusal ends the device.
  void end(const char* entry, CUresult result) FIRN_HELD;

  /// The process has run out of memory in the middle of an operation. Allocates none itself.
  void end_without_memory() noexcept FIRN_HELD;
  /// True after that: the engine's bookkeeping of blocks may be wrong.
  bool without_memory() const FIRN_HELD { return undone_; }

  /// Does the driver give this error until the context is destroyed?
  static bool stays(CUresult result);

 private:
  // Some tenths of a second: a round of polling lies between two.
  static constexpr unsigned refusals_most = 1000;

  const Driver& driver_;
  const int device_;
  std::atomic<bool> dead_{false};
  Error error_;
  bool undone_ = false;
  // Made ahead: in that moment there is no memory to format a message.
  Error without_memory_ = make_error(
      Code::host_out_of_memory, 0,
      "the process ran out of host memory in the middle of moving blocks: Firn stops moving "
      "blocks, and those that are away from the device cannot come back");
  const std::string without_memory_line_ =
      "firn: device " + std::to_string(device_) + ": " + without_memory_.text;
  uint64_t refusals_ = 0;
  std::vector<std::pair<const char*, unsigned>> refused_;  // by entry: refusals in a row
};

}  // namespace firn
