// Frames that several blocks share: a block whose size is not a multiple of a frame's has its first
// and last bytes in frames whose rest belongs to other blocks, so that a job holds only what it
// asked for. Each block's addresses are its own: a shared frame is mapped at the addresses of every
// block that is in it (virtual aliasing, which the driver allows), and each uses its own pages of
// it; the page is far larger than any cache line, so no line is used through two addresses.
//
// A frame here is known by its index; sizes and offsets are in pages. The caller holds the engine's
// lock.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/memory/units.h"
#include "firn/driver.h"
#include "firn/thread_safety.h"

namespace firn {

/// Where a block's pages lie in its frames, in the order of its addresses: the pages of a first
/// and of a last shared frame, a bit for each (bit 0: at the frame's start), 0 for none; and whole
/// granules between them. A block within one shared frame has a head and nothing else.
struct Shape {
  uint32_t head = 0, body = 0, tail = 0;
  bool shared() const { return head != 0 || tail != 0; }
  uint32_t pages() const;
  /// Granules of addresses that it touches.
  uint32_t granules() const { return body + (head != 0) + (tail != 0); }
  /// The first byte's offset in its first granule.
  uint64_t offset() const;
};

class SharedFrames {
 public:
  /// The shape for `pages` (not a multiple of a granule's) that takes the fewest new frames; among
  /// those, one that fills gaps exactly.
  Shape shape(uint32_t pages) const FIRN_HELD;
  /// New frames that the shape takes now, its body included.
  uint32_t new_frames(const Shape& shape) const FIRN_HELD;

  static constexpr uint32_t none = UINT32_MAX;
  /// Takes these pages of the fullest frame in which they are free; none: there is no such frame.
  uint32_t take(uint32_t pages) FIRN_HELD;
  /// A new frame, of which these pages are taken.
  uint32_t add(CUmemGenericAllocationHandle handle, uint32_t pages) FIRN_HELD;
  /// True when no page of the frame is taken any more: the frame is forgotten.
  bool give(uint32_t index, uint32_t pages) FIRN_HELD;
  /// These taken pages will be given back soon.
  void let_go(uint32_t index, uint32_t pages) FIRN_HELD;
  /// Frames that will be free again once all that was let go is given back.
  uint64_t going() const FIRN_HELD { return going_; }
  CUmemGenericAllocationHandle handle(uint32_t index) const FIRN_HELD {
    return frames_[index].handle;
  }

  uint64_t count() const FIRN_HELD { return count_; }
  uint64_t free_pages() const FIRN_HELD { return free_pages_; }  // of all of them

 private:
  struct Shared {
    CUmemGenericAllocationHandle handle = 0;
    uint32_t taken = 0, going = 0;
    bool goes() const { return taken != 0 && taken == going; }
    uint32_t open_at = 0;  // in open_, when not full
  };
  uint32_t find(uint32_t pages) const FIRN_HELD;
  Shape within_one(uint32_t pages) const FIRN_HELD;
  void open(uint32_t index) FIRN_HELD;
  void close(uint32_t index) FIRN_HELD;

  std::vector<Shared> frames_;
  std::vector<uint32_t> spare_;  // of frames_, unused
  std::vector<uint32_t> open_;   // of frames_, with free pages
  uint64_t count_ = 0, free_pages_ = 0, going_ = 0;
};

}  // namespace firn
