// Frames: handles to physical device memory, of 2 to 32 MiB (driver calls cost per handle, not per
// byte), kept and reused, never more in total than the budget. A Reservation is the right to
// take frames; it must be held before any are taken.
//
// Owns every handle it created, free or taken. The caller holds the engine's lock, with the
// device's context current.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "allocator/memory/device_health.h"
#include "allocator/memory/shared_frames.h"
#include "firn/driver.h"
#include "firn/thread_safety.h"

namespace firn {

struct Frame {
  CUmemGenericAllocationHandle handle = 0;
  uint32_t granules = 0;
  bool host = false;  // host memory at a device address: outside the budget, never kept
  uint32_t part = 0;  // the block's pages of a shared frame, a bit for each; 0: all of it
  uint32_t shared = 0;  // then: the shared frame's index
  uint64_t bytes() const { return granules * granule_bytes; }
  uint64_t pages() const {
    return part ? static_cast<uint64_t>(std::popcount(part)) : granules * granule_pages;
  }
};

class Frames;

/// The right to take `granules` of frames. Move-only; gives back what was not taken.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept
      : frames_(std::exchange(other.frames_, nullptr)),
        granules_(std::exchange(other.granules_, 0)) {}
  Reservation& operator=(Reservation&& other) noexcept {
    std::swap(frames_, other.frames_);
    std::swap(granules_, other.granules_);
    return *this;
  }
  ~Reservation() FIRN_HELD;
  uint64_t granules() const { return granules_; }

 private:
  friend class Frames;
  Reservation(Frames* frames, uint64_t granules) : frames_(frames), granules_(granules) {}
  Frames* frames_ = nullptr;
  uint64_t granules_ = 0;
};

class Frames {
 public:
  Frames(const Driver& driver, DeviceHealth& health, int device, uint64_t budget_bytes);
  ~Frames();
  /// Checks that the device can do what frames need. Errors: not_supported in words, driver.
  Result<void> check() FIRN_NO_ANALYSIS;  // (before other threads know of it: without the lock)

  /// Granules that could be reserved now.
  uint64_t available() const FIRN_HELD;
  /// Reserves `granules`, or nothing when fewer are available (granules() == 0).
  Reservation reserve(uint64_t granules) FIRN_HELD;
  /// Turns the reservation into as few frames as fill stretches of `granules_most` (the last one is
  /// shorter), in order: one frame per stretch if that size is free or can be made without giving
  /// others back; else several free ones that fill it. On a driver error nothing is taken and the
  /// reservation is given back; if the device itself is out of memory (others use it too), the
  /// effective budget shrinks to the frames held.
  Result<std::vector<Frame>> take(Reservation reservation,
                                  uint32_t granules_most = large_frame_granules) FIRN_HELD;
  /// Frames for a block of that shape, in the order of its addresses; its parts of shared frames
  /// come from those with room. The reservation is for at least granules_for(shape).
  Result<std::vector<Frame>> take(Reservation reservation, const Shape& shape,
                                  uint32_t granules_most) FIRN_HELD;
  /// Frames to be given back and made so that take() finds those for a shape.
  struct Change {
    std::vector<Frame> given_back, made;
    std::vector<uint32_t> wanted;  // granules of those to be made
    CUmemAllocationProp prop{};
    CUresult result = CUDA_SUCCESS;
    const char* entry = "cuMemCreate";  // the call that returned `result`
    uint64_t gone = 0;                  // frames of given_back that have gone
    uint64_t grown = 0;                 // granules made beyond those given back
    uint64_t given = 0;                 // granules of given_back
    uint64_t promised = 0;              // granules of `wanted`, which are reserved
    uint64_t returning = 0;             // granules given back beyond those made
    bool empty() const { return wanted.empty(); }
  };
  /// The change that the shape needs now, with `reserved` granules reserved for it: empty as a
  /// rule. All of it counts as held until end_change(), which must follow.
  Change begin_change(const Shape& shape, uint32_t granules_most, uint64_t reserved) FIRN_HELD;
  /// The driver's calls for it. No lock is needed.
  void carry_out(Change& change) const;
  /// Errors: as take().
  Result<void> end_change(Change change) FIRN_HELD;
  /// Granules that changes under way will make available.
  uint64_t returning() const FIRN_HELD { return returning_; }
  /// Granules to reserve for the shape, in the present state.
  uint64_t granules_for(const Shape& shape) const FIRN_HELD { return shared_.new_frames(shape); }
  const SharedFrames& shared() const FIRN_HELD { return shared_; }
  /// A part of a shared frame will be given back soon.
  void let_go(const Frame& part) FIRN_HELD { shared_.let_go(part.shared, part.part); }
  /// One frame of host memory near the device, which kernels reach over the link: not device
  /// memory, so outside the budget. For the touch that must not fail.
  Result<std::vector<Frame>> take_host(uint64_t granules) FIRN_HELD;
  /// Granules of such frames now: host memory besides the tiers.
  uint64_t host_granules() const FIRN_HELD { return host_held_; }
  /// Checks whether take_host() can work at all; the first call may take seconds. Errors:
  /// not_supported, with the reason.
  Result<void> host_granted() const FIRN_NOT_HELD { return ask_for_host(); }
  /// Is that known, so that take_host() need not wait for it?
  bool host_asked() const;
  /// The memory node of take_host(), next to the device; id -1: none has memory for us.
  const CUmemLocation& host_location() const { return host_prop_.location; }
  /// Gives back frames that are no longer mapped anywhere.
  void give(std::vector<Frame>& frames) FIRN_HELD;
  /// Returns free frames to the device until at most `keep_granules` are free.
  void trim(uint64_t keep_granules = 0) FIRN_HELD;

  void set_budget(uint64_t bytes) FIRN_HELD;
  uint64_t budget_granules() const FIRN_HELD { return budget_; }
  /// Created: taken, free, and in_change().
  uint64_t held_granules() const FIRN_HELD { return held_; }
  /// Granules of changes under way: being given back, or counted as held before they are made.
  uint64_t in_change() const FIRN_HELD { return in_change_; }
  uint64_t free_granules() const FIRN_HELD;
  uint64_t peak_granules() const FIRN_HELD { return peak_; }
  void reset_peak() FIRN_HELD { peak_ = held_; }
  uint64_t created() const FIRN_HELD { return created_; }  // frames, for all time
  uint64_t released() const FIRN_HELD { return released_; }
  /// True after the device, not the budget, refused a frame.
  bool device_short() const FIRN_HELD { return limit_ < budget_; }
  void forget_limit() FIRN_HELD { limit_ = budget_; }
  void abandon() { abandoned_ = true; }

 private:
  friend class Reservation;
  Result<Frame> create(uint32_t granules) FIRN_HELD;
  void release(Frame frame) FIRN_HELD;
  void trim_to_limit() FIRN_HELD;
  CUresult call_release(const Frame& frame) const;
  static constexpr size_t sizes = large_frame_granules + 1;
  size_t victim_for(uint32_t granules, const std::array<size_t, sizes>& kept) const FIRN_HELD;
  Result<Frame> obtain(uint32_t granules) FIRN_HELD;
  std::vector<uint32_t> free_that_fill(uint32_t granules) const FIRN_HELD;
  Result<Frame> obtain_part(uint32_t pages) FIRN_HELD;
  Result<void> ask_for_host() const;
  Result<std::vector<Frame>> take_whole(uint64_t granules, uint32_t granules_most) FIRN_HELD;
  // With more handles than that, moving one stretch costs more, each time, than a new frame.
  static constexpr size_t filling_most = 4;
  uint64_t headroom() const FIRN_HELD { return limit_ > held_ ? limit_ - held_ : 0; }

  const Driver& driver_;
  DeviceHealth& health_;
  const int device_;
  CUmemAllocationProp prop_{}, host_prop_{};  // location.id -1: no node has memory
  bool host_supported_ = false;
  bool made_shareable_ = false;  // a frame was made that can be shared
  std::array<std::vector<Frame>, sizes> free_;  // by granules
  SharedFrames shared_;
  uint64_t budget_;         // granules
  uint64_t limit_;          // <= budget_: what the device was seen to give
  uint64_t held_ = 0, peak_ = 0, reserved_ = 0, host_held_ = 0;
  // Of all changes under way: promised, returning; and see in_change().
  uint64_t changing_ = 0, returning_ = 0, in_change_ = 0;
  uint64_t created_ = 0, released_ = 0;
  bool abandoned_ = false;
};

inline Reservation::~Reservation() {
  if (frames_) frames_->reserved_ -= granules_;
}

}  // namespace firn
