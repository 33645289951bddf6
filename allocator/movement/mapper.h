// Mapping: frames come to a block's addresses, and leave them. A large block is split into spans of
// at most a large frame, and each is mapped and unmapped as one. A call of the driver's that fails
// leaves nothing half done.
//
// Mapping takes three steps. claim() takes frames and marks the spans (Span::coming,
// Block::coming), map_apart() makes the driver's calls without the lock, and install() makes the
// spans the block's; undo() instead, if the block has been freed meanwhile. Unmapping takes two:
// give_up() marks the spans (Span::going, Block::going) and unmap_next() makes the call without the
// lock. While spans are marked no other thread maps them, and the block's addresses and descriptor
// stay.
//
// Owns: the claims and the unmappings that are due, the list of devices that mapped memory is open
// to, and the counts of both. (Frames owns the frames, a block its spans.)
// Lock: the engine's, around every call. Functions that take it release it for the driver's calls:
// everything may have changed when they return. The device's context is current, but for figures.
// It calls nothing above: where a descriptor's end waited for a claim or for an unmapping, the
// function returns the block, and the caller sees to that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "allocator/blocks/block.h"
#include "allocator/memory/copy_gate.h"
#include "allocator/memory/device_health.h"
#include "allocator/memory/driver_time.h"
#include "allocator/memory/frames.h"
#include "firn/clock.h"
#include "firn/thread_safety.h"

namespace firn {

/// Memory on the device, as Engine::check() counts it: whole frames, and parts of shared ones.
struct FrameCount {
  uint64_t granules = 0, shared_pages = 0;
  void add(const std::vector<Frame>& frames) { count(frames, 1); }
  void remove(const std::vector<Frame>& frames) { count(frames, uint64_t(-1)); }

 private:
  void count(const std::vector<Frame>& frames, uint64_t times) {
    for (const Frame& frame : frames) {
      if (frame.host) continue;
      if (frame.part)
        shared_pages += times * frame.pages();
      else
        granules += times * frame.granules;
    }
  }
};

/// Spans of a block that frames were taken for, to be mapped without the lock.
struct Mapping {
  struct Part {
    uint32_t span;
    std::vector<Frame> frames;
  };
  Block* block = nullptr;
  uint32_t generation = 0;
  std::vector<Part> parts;
  bool prefetched = false;
  bool birth = false;  // the block is new, and will be ready for an allocation to come
};

/// Spans of a block, side by side, that nothing uses any more, to be unmapped without the lock.
struct Unmapping {
  Block* block = nullptr;
  uint32_t begin = 0, end = 0;  // its spans
  std::vector<Frame> frames;
};

class Mapper {
 public:
  using Lock = LockedEngine;
  struct Neighbours {
    const Driver& driver;
    DeviceHealth& health;
    Frames& frames;
    CopyGate& gate;
    Clock& clock;
    int device;
    uint32_t span_granules;
    uint64_t pause_ns;  // after a refusal: see may_map_ahead()
  };
  explicit Mapper(Neighbours neighbours);
  Mapper(const Mapper&) = delete;
  Mapper& operator=(const Mapper&) = delete;

  // At once, under the lock: memory that is in no block's spans.
  /// Maps frames side by side from `address` on, and opens them. After an error, which is the
  /// driver's, nothing is mapped there.
  Result<void> map(uint64_t address, const std::vector<Frame>& frames) FIRN_HELD;
  /// Unmaps what lies side by side from `address` on, in one call. A refusal is tried again, and
  /// ends the device at last; a dead device's mappings are left to the end of its context.
  void unmap(uint64_t address, const std::vector<Frame>& frames) FIRN_HELD;

  // Access.
  using Open = std::function<Result<void>(uint64_t address, uint64_t bytes)>;
  /// Opens to another device what is mapped later, and before that what is mapped now: `walk` calls
  /// the function that it is given for each range, until one fails; then nothing is added. Does
  /// nothing for a device that was added before.
  Result<void> add_peer(int device, const std::function<Result<void>(const Open&)>& walk) FIRN_HELD;
  /// Makes a mapped span read-only for every device, or opens it again.
  Result<void> set_access(const Block& block, const Span& span, CUmemAccess_flags flags) FIRN_HELD;

  // Mapping without the lock.
  /// Makes the frames for a shape that `room` is reserved for, without the lock. Does nothing if
  /// the shape needs more by now: the caller checks again. Errors: the driver's.
  Result<void> provide(Lock& lock, const Shape& shape, const Reservation& room) FIRN_HELD;
  /// Takes frames for unmapped spans of so many pages, from span `first` on, for which the room is
  /// enough, and claims them. On failure nothing has changed.
  Result<Mapping> claim(Block& block, uint64_t pages, Reservation room, uint32_t first = 0)
      FIRN_HELD;
  /// The same with these frames: as many as the spans need, the largest first and as long as a
  /// span; only the last span is shorter.
  static Mapping claim(Block& block, std::vector<Frame> frames, uint64_t pages,
                       uint32_t first = 0) FIRN_HELD;
  /// Maps what was claimed, without the lock. The spans are marked no more, and the block is
  /// otherwise unchanged; after an error, which is the driver's, the frames have gone back.
  Result<void> map_apart(Lock& lock, Mapping& mapping) FIRN_HELD;
  /// The spans that were mapped are the block's.
  static void install(Mapping& mapping) FIRN_HELD;
  /// Unmaps the spans that were mapped, and gives their frames back.
  void undo(Mapping& mapping) FIRN_HELD;
  /// Gives up a claim: nothing of it was mapped, or will be.
  void drop(Mapping& mapping) FIRN_HELD;

  // Claims that are due, in their order.
  void add(Mapping mapping) FIRN_HELD { mappings_.push_back(std::move(mapping)); }
  std::optional<Mapping> next() FIRN_HELD;
  /// Gives up those of the block, or all of them.
  void drop_claims(const Block& block) FIRN_HELD;
  void drop_claims() FIRN_HELD;
  /// Gives up the first one of a new block. Returns the block, which the caller forgets; null: none
  /// is left.
  Block* drop_birth() FIRN_HELD;
  /// A claim that was due could not be mapped: for a while nothing is mapped ahead of need.
  void refused() FIRN_HELD { refused_ns_ = at_.clock.now_ns(); }
  bool may_map_ahead() FIRN_HELD;

  // Unmapping without the lock.
  /// Gives up mapped spans, [begin, end), whose uses are over.
  void give_up(Block& block, size_t begin, size_t end) FIRN_HELD;
  /// Gives up all mapped spans, neighbours in one go. False: there were none.
  bool give_up(Block& block) FIRN_HELD;
  /// Unmaps the oldest spans that were given up, without the lock, unless so many granules are
  /// available. Returns their block; null: nothing was due.
  Block* unmap_next(Lock& lock, uint64_t granules) FIRN_HELD;
  /// The same for spans of this block. Null: none are due, but other threads may have them in hand.
  Block* unmap_next(Lock& lock, const Block& block) FIRN_HELD;

  // Figures.
  size_t mappings_due() const FIRN_HELD { return mappings_.size(); }
  size_t unmappings_due() const FIRN_HELD { return unmappings_.size(); }
  /// Does a thread map, or make frames, at this moment?
  bool mapping() const FIRN_HELD { return mapping_apart_ > 0; }
  /// Is anything to be unmapped, or being unmapped at this moment?
  bool unmapping() const FIRN_HELD { return !unmappings_.empty() || unmapping_apart_ > 0; }
  /// Granules to come: of spans given up and not yet unmapped, and of frames being given back.
  uint64_t going_granules() const FIRN_HELD;
  /// Bytes of spans that are due to be mapped, but for new blocks.
  uint64_t claimed_bytes() const FIRN_HELD;
  /// Frames that no span has: of what is due, or being mapped or unmapped at this moment.
  FrameCount in_hand() const FIRN_HELD;
  uint64_t spans_given_up() const FIRN_HELD { return spans_given_up_; }  // ever
  uint64_t maps() const FIRN_HELD { return maps_; }                      // frames mapped, ever
  uint64_t unmaps() const FIRN_HELD { return unmaps_; }

 private:
  struct Calls {
    CUresult result = CUDA_SUCCESS;
    const char* entry = "";
    size_t mapped = 0;  // frames
  };
  Calls call_map(uint64_t address, const std::vector<Frame>& frames,
                 const std::vector<CUmemAccessDesc>& access) const;
  CUresult call_unmap(uint64_t address, size_t bytes) const;
  void carry_out(Lock& lock, Unmapping unmapping) FIRN_HELD;
  void give_frames(Mapping& mapping) FIRN_HELD;

  const Neighbours at_;
  // To what is mapped: this device's, then its peers'.
  std::vector<CUmemAccessDesc> access_ FIRN_GUARDED;
  std::deque<Mapping> mappings_ FIRN_GUARDED;    // due
  std::deque<Unmapping> unmappings_ FIRN_GUARDED;  // due
  FrameCount apart_ FIRN_GUARDED;                // frames that threads map or unmap at this moment
  unsigned mapping_apart_ FIRN_GUARDED = 0;      // threads that map, or make frames, at this moment
  unsigned unmapping_apart_ FIRN_GUARDED = 0;    // threads that unmap at this moment
  uint64_t going_granules_ FIRN_GUARDED = 0;     // of whole frames that are to be unmapped
  std::optional<uint64_t> refused_ns_ FIRN_GUARDED;  // when a claim was last refused
  uint64_t spans_given_up_ FIRN_GUARDED = 0, maps_ FIRN_GUARDED = 0, unmaps_ FIRN_GUARDED = 0;
};

}  // namespace firn
