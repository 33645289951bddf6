// Whether a device still answers. An illegal address, a failed assertion, an uncorrectable error of
// memory: from then on the driver answers nearly every call with that error until the context is
// destroyed, and nothing that is in flight ever completes. A driver that refuses, time and again,
// a call that nothing can go on without is treated alike.
//
// Once dead a device stays dead, and no engine of it moves, maps or unmaps anything any more: every
// call that would need to is answered error().
//
// Owns the error. Everything but dead() and error() needs the engine's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "firn/driver.h"

namespace firn {

class DeviceHealth {
 public:
  DeviceHealth(const Driver& driver, int device) : driver_(driver), device_(device) {}

  bool dead() const { return dead_.load(std::memory_order_acquire); }
  /// Of a dead device: the call that told, and the driver's words.
  const Error& error() const { return error_; }

  /// The error of a call that failed. Ends the device where the answer is one that stays.
  Error failed(const char* entry, CUresult result);
  /// The answer of a call that is asked again and again until it succeeds: refused so often in a
  /// row, it ends the device.
  void answered(const char* entry, CUresult result);
  /// How often one was refused, ever: whoever waits asks again until it is answered, or the end.
  uint64_t refusals() const { return refusals_; }
  /// The call cannot be done without: its refusal ends the device.
  void end(const char* entry, CUresult result);

  /// The process's memory has come to its end in the middle of something. Takes none itself.
  void end_without_memory() noexcept;
  /// Then: what the engine notes of blocks may be wrong.
  bool without_memory() const { return undone_; }

  /// Does the answer stay until the context is destroyed?
  static bool stays(CUresult result);

 private:
  // Some tenths of a second: a round of questions lies between two.
  static constexpr unsigned refusals_most = 1000;

  const Driver& driver_;
  const int device_;
  std::atomic<bool> dead_{false};
  Error error_;
  bool undone_ = false;
  // For the day on which there is no memory to make words of.
  Error without_memory_ = make_error(
      Code::host_out_of_memory, 0,
      "the process has no memory for Firn's own needs, in the middle of moving blocks: nothing is "
      "moved from here on, and what is not on the device cannot come back");
  const std::string without_memory_line_ =
      "firn: device " + std::to_string(device_) + ": " + without_memory_.text;
  uint64_t refusals_ = 0;
  std::vector<std::pair<const char*, unsigned>> refused_;  // by entry: how often in a row
};

}  // namespace firn
