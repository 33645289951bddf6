// Segments: granules of device memory that a stream's small blocks (below 1 MiB) share.
//
// A segment's number is in the arena's table as the number of its granule, marked (segment_mark).
// Each of its units of 512 B has the block that begins there, or none: a block is found by going
// back from the unit of an address. A stream's free bytes are ranges, which join their neighbours,
// but not across segments.
//
// A segment is set aside before it leaves the device: no new block comes into it, and the end of a
// block in it takes the engine's lock (word::aside). open() ends that.
//
// Owns: the segments and their numbers, the tables of units, the free ranges of all streams, and
// the count of small blocks. (BlockTable owns the descriptors. The engine maps a segment's frames,
// and makes the block that stands for it.)
// Lock: the engine's, around every call, except segment(), at() and whole_at(), which need none: a
// Segment stays where it is until the end, and is reused. Nothing here calls the driver.
// It calls nothing above, but for the functions that each() and take_joined() are given; that of
// take_joined() retires blocks. The caller that retires a segment's last block sees to its end.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "allocator/base/zero_array.h"
#include "allocator/blocks/block.h"
#include "allocator/blocks/ready_blocks.h"
#include "allocator/blocks/streams.h"
#include "allocator/memory/frames.h"
#include "allocator/memory/units.h"
#include "firn/range_map.h"
#include "firn/thread_safety.h"

namespace firn {

/// A 2 MiB frame cut into small blocks, for one stream.
struct Segment {
  uint64_t address = 0;
  uint16_t stream = 0;
  uint32_t live FIRN_GUARDED = 0;  // blocks handed out or ready in it
  Use emptied FIRN_GUARDED;        // without any: over when its stream's work until then is
  std::vector<Frame> frames FIRN_GUARDED;
  std::atomic<uint32_t>* units = nullptr;  // per 512 B: block index + 1 at its first unit
  /// Once operators are watched: the block that stands for all of it, has its frames, and leaves
  /// and comes back as any other. Its small blocks' uses are uses of this one.
  std::atomic<Block*> whole{nullptr};
  bool aside FIRN_GUARDED = false;  // leaving or away: nothing new comes into it
};

class SmallBlocks {
 public:
  static constexpr uint32_t segment_mark = 0x80000000u;
  static constexpr uint32_t segments_most = 1u << 17;
  static constexpr uint32_t units_per_segment = granule_bytes / unit_bytes;

  SmallBlocks() = default;
  ~SmallBlocks();
  SmallBlocks(const SmallBlocks&) = delete;
  SmallBlocks& operator=(const SmallBlocks&) = delete;

  // Looking up, without the lock. `number`: the arena's, or the segment's own.
  Segment& segment(uint32_t number) const {
    return *segments_[number & ~segment_mark].load(std::memory_order_acquire);
  }
  /// The small block around the address, which lies in the segment; null: none.
  Block* at(uint32_t number, uint64_t address, const BlockTable& table) const;
  /// The block that stands for the segment, if a live small block lies at the address; null: none
  /// does, or watching has yet to begin. Proves the small block if `proves`, or if it has
  /// word::outside.
  Block* whole_at(uint32_t number, uint64_t address, const BlockTable& table, bool proves) const;

  // Segments.
  /// Has every number a segment?
  bool full() const FIRN_HELD { return spare_.empty() && count_ == segments_most; }
  /// Makes a segment, which open() has to follow, and returns its number; full() is false. None:
  /// the machine lacks the memory for its units, and all is as before.
  std::optional<uint32_t> add(unsigned stream, uint64_t address) FIRN_HELD;
  /// Gives its free bytes to its stream's blocks: it is new, or comes back.
  void open(Segment& segment, const BlockTable& table) FIRN_HELD;
  /// Sets it aside, and marks its blocks (word::aside), up to the first that has to stay. False:
  /// there is such a block, and the caller opens the segment again, or tries again.
  bool set_aside(Segment& segment, const BlockTable& table) FIRN_HELD;
  struct Inside {
    bool may_leave = true;  // once the ready blocks in it are retired
    bool ready = false;     // there are such; known where it may leave
  };
  /// Finds out whether its blocks let it leave.
  static Inside look_inside(const Segment& segment, const BlockTable& table) FIRN_HELD;
  /// Takes all of its bytes from its stream. False: some are in use, and all is as before.
  bool take_out(const Segment& segment) FIRN_HELD;
  /// Ends an empty segment that was taken out, or set aside: its number can be another's.
  void drop(uint32_t number) FIRN_HELD;

  // Blocks.
  /// Calls `see` with the segment's blocks, live or ready, by address, until it returns false; then
  /// returns false.
  template <class See>
  static bool each(const Segment& segment, const BlockTable& table, See&& see) FIRN_HELD;
  /// The stream has free ranges from now on, none as yet. (Streams come in order.)
  void add_stream(unsigned stream) FIRN_HELD;
  /// The smallest free range that fits; none: a segment has to come first.
  std::optional<uint64_t> take(unsigned stream, size_t bytes) FIRN_HELD {
    return ranges_[stream]->take(bytes);
  }
  /// Before a new segment comes: ready blocks of all sizes return their bytes to their segments,
  /// and join what is free beside them, as in the native pool at each free. (Ready blocks are taken
  /// without a lock; after this the next of their sizes are carved anew, once for each free. A pool
  /// that has grown to what its program needs does it no more, unless its segments leave.) It calls
  /// `retire` for each ready block, but does nothing in a small pool.
  template <class Retire>
  std::optional<uint64_t> take_joined(unsigned stream, size_t bytes, ReadyBlocks& ready,
                                      const BlockTable& table, Retire&& retire) FIRN_HELD;
  /// Gives back what no block was made for.
  void give(unsigned stream, uint64_t address, size_t bytes) FIRN_HELD {
    ranges_[stream]->release(address, bytes, granule_bytes);
  }
  /// A new block has its bytes, and is found by its addresses from here on.
  void enter(Segment& segment, const Block& block) FIRN_HELD;
  /// Returns a ready block's bytes to its segment: it is found no more.
  void retire(Segment& segment, const Block& block) FIRN_HELD;

  // Figures.
  /// Numbers given so far: of all that is, or was.
  uint32_t segments() const FIRN_HELD { return count_; }
  int64_t blocks() const FIRN_HELD { return blocks_; }  // in their segments, live or cached
  struct Gaps {
    int64_t pieces = 0;       // free ranges beside blocks
    int64_t whole_bytes = 0;  // of segments that are free as a whole
  };
  Gaps gaps() const FIRN_HELD;

 private:
  // The units of so many segments lie in one table, on huge pages.
  static constexpr uint32_t segments_per_table = 128;
  static constexpr size_t unit_table_bytes =
      size_t{segments_per_table} * units_per_segment * sizeof(std::atomic<uint32_t>);
  // In a smaller pool one more segment costs little, and ready blocks are worth it.
  static constexpr uint64_t joined_from_bytes = 32u << 20;

  std::atomic<uint32_t>* units_for(uint32_t number) FIRN_HELD;
  const std::atomic<uint32_t>* units_of(uint32_t number) const {
    return unit_tables_[number / segments_per_table].load(std::memory_order_acquire) +
           number % segments_per_table * units_per_segment;
  }
  static std::atomic<uint32_t>& unit_of(const Segment& segment, const Block& block) {
    return segment.units[(block.address - segment.address) / unit_bytes];
  }

  ZeroArray<std::atomic<Segment*>> segments_{segments_most};
  std::array<std::atomic<std::atomic<uint32_t>*>, segments_most / segments_per_table>
      unit_tables_{};
  int64_t blocks_ FIRN_GUARDED = 0;
  uint32_t count_ FIRN_GUARDED = 0;
  std::vector<uint32_t> spare_ FIRN_GUARDED;                    // numbers
  std::vector<std::unique_ptr<RangeMap>> ranges_ FIRN_GUARDED;  // per stream: free in its segments
};

inline Block* SmallBlocks::at(uint32_t number, uint64_t address, const BlockTable& table) const {
  // (A segment is one granule, and granules are aligned.)
  const std::atomic<uint32_t>* units = units_of(number & ~segment_mark);
  for (auto unit = static_cast<int64_t>(address % granule_bytes / unit_bytes); unit >= 0; --unit) {
    const uint32_t index = units[unit].load(std::memory_order_acquire);
    if (index == 0) continue;
    Block& block = table[index - 1];
    return address < block.address + block.bytes ? &block : nullptr;
  }
  return nullptr;
}

inline Block* SmallBlocks::whole_at(uint32_t number, uint64_t address, const BlockTable& table,
                                    bool proves) const {
  Block* whole = segment(number).whole.load(std::memory_order_acquire);
  Block* small = whole ? at(number, address, table) : nullptr;
  if (!small) return nullptr;
  uint64_t w = small->word.load();
  do {
    if (word::state(w) != State::resident || (w & word::freed)) return nullptr;
    if ((w & word::proven) || !(proves || (w & word::outside))) return whole;
  } while (!small->word.try_prove(w));
  return whole;
}

template <class See>
bool SmallBlocks::each(const Segment& segment, const BlockTable& table, See&& see) {
  uint32_t left = segment.live;
  for (size_t unit = 0; unit < units_per_segment && left > 0;) {
    const uint32_t index = segment.units[unit].load(std::memory_order_acquire);
    if (index == 0) {
      ++unit;
      continue;
    }
    Block& block = table[index - 1];
    unit += size_t{block.bytes} / unit_bytes;
    --left;
    if (!see(block)) return false;
  }
  return true;
}

template <class Retire>
std::optional<uint64_t> SmallBlocks::take_joined(unsigned stream, size_t bytes, ReadyBlocks& ready,
                                                 const BlockTable& table, Retire&& retire) {
  if (ranges_[stream]->total() < joined_from_bytes) return std::nullopt;
  ready.take_all(table, 0, size_class::small_count, std::forward<Retire>(retire));
  return take(stream, bytes);
}

}  // namespace firn
