// A region: one stream's stretch of the arena in which blocks have planned places. Places of blocks
// that are never alive at once overlap; frames stay mapped while one block follows the other.
//
// Owns the frames that are mapped in it, and knows which bytes are in use; the plan, and which
// block has which place, is PlacedBlocks's (placed_blocks.h). Looking up is lock-free; all else
// needs the engine's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "allocator/blocks/block.h"
#include "allocator/memory/frames.h"
#include "firn/thread_safety.h"

namespace firn {

class Region {
 public:
  /// The least size of a block: at most one begins in each such part.
  static constexpr uint64_t part_bytes = 1u << 20;
  static constexpr uint32_t parts_in_granule = granule_bytes / part_bytes;

  Region(uint64_t base, uint32_t granules, uint16_t stream);

  uint64_t base() const { return base_; }
  uint64_t bytes() const { return granules_ * granule_bytes; }
  uint32_t granules() const { return granules_; }
  uint16_t stream() const { return stream_; }

  /// The block in use around the address, or null. Lock-free.
  Block* at(uint64_t address, const BlockTable& table) const;

  /// Are the bytes [begin, end) of the region's addresses free of blocks in use?
  bool free(uint64_t begin, uint64_t end) const FIRN_HELD;
  /// Marks the block as in use, at its address and as large as its place, which is free and mapped.
  void use(Block& block) FIRN_HELD;
  /// Ends that. The block's uses are over behind `last`, of the region's stream or another.
  void leave(Block& block, Use last) FIRN_HELD;
  /// Blocks in use, by their addresses.
  const std::map<uint64_t, Block*>& used() const FIRN_HELD { return used_; }
  uint64_t used_bytes() const FIRN_HELD { return used_bytes_; }

  struct Run {
    uint64_t begin = 0;  // address
    uint32_t granules = 0;
  };
  /// Granules in [begin, end) without a frame.
  uint32_t lacking(uint64_t begin, uint64_t end) const FIRN_HELD;
  /// The stretches of those granules.
  std::vector<Run> gaps(uint64_t begin, uint64_t end) const FIRN_HELD;
  /// A frame was mapped at the address, where there was none.
  void mapped(uint64_t address, const Frame& frame) FIRN_HELD;
  struct Mapped {
    Frame frame;
    Use last;  // of the region's stream: all uses so far are over behind it
  };
  /// By address.
  const std::map<uint64_t, Mapped>& frames() const FIRN_HELD { return frames_; }
  /// Is none of the frame's bytes in use?
  bool idle(uint64_t address) const FIRN_HELD;
  /// The frame was unmapped.
  Frame unmapped(uint64_t address) FIRN_HELD;
  uint64_t mapped_granules() const FIRN_HELD { return mapped_granules_; }
  /// Stretches of frames side by side.
  std::vector<Run> runs() const FIRN_HELD;

  /// Uses on other streams of blocks that have left; the engine drops those that are over.
  std::vector<Use> others FIRN_GUARDED;

 private:
  struct Part {
    std::atomic<uint32_t> begins{0};  // index + 1 of the block that begins in it
    std::atomic<uint32_t> covers{0};  // and of one that covers its start
  };
  void mark(const Block& block, uint32_t number) FIRN_HELD;
  uint64_t granule_of(uint64_t address) const { return (address - base_) / granule_bytes; }

  const uint64_t base_;
  const uint32_t granules_;
  const uint16_t stream_;
  std::unique_ptr<Part[]> parts_;
  std::vector<bool> has_frame_ FIRN_GUARDED;  // by granule
  std::map<uint64_t, Mapped> frames_ FIRN_GUARDED;
  std::map<uint64_t, Block*> used_ FIRN_GUARDED;
  uint64_t used_bytes_ FIRN_GUARDED = 0, mapped_granules_ FIRN_GUARDED = 0;
};

}  // namespace firn
