// Regions, the planned places in them, and the blocks that have these places. A plan only guesses
// which allocation comes next: a place is handed out when what overlaps it is free, on the region's
// stream, as ready blocks are.
//
// Owns: the regions, for good; the places of the plan, and which block has which. (A region owns
// its frames; mapping them is the caller's.) Lock: the engine's, around every call; region() needs
// none. It calls nothing above: where a block is no longer needed the function returns it, and the
// caller sees to what its descriptor is known by and drops it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "allocator/blocks/block.h"
#include "allocator/blocks/ready_blocks.h"
#include "allocator/blocks/region.h"
#include "allocator/blocks/streams.h"
#include "allocator/blocks/uses.h"
#include "firn/thread_safety.h"

namespace firn {

class PlacedBlocks {
 public:
  static constexpr uint32_t regions_most = 64;
  struct Place {
    uint32_t identity;  // the allocation's, in the program's history
    uint64_t known_as;  // the history's bytes
    uint64_t address, bytes;
    Region* region;
    Block* block;   // null until it is first handed out
    bool barred;    // its address may be known to others
    uint32_t next;  // the identity's next place + 1; it may be played twice at once
  };

  PlacedBlocks(BlockTable& table, Streams& streams, Uses& uses)
      : table_(table), streams_(streams), uses_(uses) {}

  // Regions.
  /// That of the number. Lock-free.
  Region* region(uint32_t number) const {
    return regions_[number].load(std::memory_order_acquire);
  }
  const std::vector<std::unique_ptr<Region>>& regions() const FIRN_HELD { return owner_; }
  /// Null: the stream has none.
  Region* region_of(unsigned stream) const FIRN_HELD;
  /// Adds one, of which there are fewer than regions_most. Returns its number: region() finds it.
  uint32_t add_region(uint64_t address, uint32_t granules, unsigned stream) FIRN_HELD;

  // The plan.
  void add_place(Region& region, uint32_t identity, uint64_t known_as, uint64_t offset,
                 uint64_t bytes) FIRN_HELD;
  /// Hands the places out from now on, if there are any. The regions are planned to have so many
  /// bytes.
  void begin(uint64_t planned_bytes) FIRN_HELD;
  /// Hands none out any more: blocks in places stay there until they are freed.
  void stop() FIRN_HELD { active_ = false; }
  /// Forgets the plan, which was stopped. Returns blocks that had places and are not in use: the
  /// caller drops them.
  std::vector<Block*> forget() FIRN_HELD;

  // Places and their blocks.
  /// The place planned for the identity's next block, which the history knows by so many bytes;
  /// null: it has none, or places are not handed out.
  Place* place_of(uint32_t identity, uint64_t known_as) FIRN_HELD;
  /// That place, if it is in the region, has as many bytes as `asked`, only the region's stream
  /// knows its address, and no block in use overlaps it.
  Place* free_place(const Region& region, uint32_t identity, uint64_t known_as, uint64_t asked)
      FIRN_HELD;
  /// Did the identity's allocation get this block although a place is planned for it?
  bool missed(uint32_t identity, const Block& block) const FIRN_HELD;
  /// Hands out the place's block, which is so many pages to others: no block in use overlaps it,
  /// and it is mapped. Null: the table is full.
  Block* settle_in(Place& place, uint32_t pages) FIRN_HELD;
  /// The address of the block's place may be used by others than its stream: it is handed out no
  /// more.
  void bar(const Block& block) FIRN_HELD;
  /// Takes freed blocks of the region back from `ready`: others may have their places. Returns one
  /// whose place is not planned any more, which the caller drops before it goes on; null: all are
  /// taken back.
  Block* collect(Region& region, ReadyBlocks& ready) FIRN_HELD;
  /// Drops a ready block: its descriptor can serve another.
  void drop(Block& block) FIRN_HELD;

  // Figures.
  bool active() const FIRN_HELD { return active_; }
  uint64_t places() const FIRN_HELD { return places_.size(); }
  uint64_t planned_bytes() const FIRN_HELD { return planned_bytes_; }
  uint64_t placed() const FIRN_HELD { return placed_; }  // blocks handed out, ever
  /// Of frames with any block in use in them.
  uint64_t busy_bytes() const FIRN_HELD;
  /// Free pieces between blocks in places, in stretches of frames with any in use: their number and
  /// bytes. `waits`: the caller's; is the block freed, and waits for other streams?
  std::pair<int64_t, int64_t> gaps(const std::function<bool(const Block&)>& waits) const FIRN_HELD;
  /// Checks all regions, or aborts. Returns the granules that they hold.
  uint64_t check() const FIRN_HELD;

 private:
  Place* planned(const Block& block) FIRN_HELD;

  std::array<std::atomic<Region*>, regions_most> regions_{};  // by number, for good
  std::vector<std::unique_ptr<Region>> owner_ FIRN_GUARDED;
  BlockTable& table_;
  Streams& streams_;
  Uses& uses_;
  bool active_ FIRN_GUARDED = false;
  std::vector<Place> places_ FIRN_GUARDED;
  std::vector<uint32_t> of_ FIRN_GUARDED;  // by identity: its first place + 1
  uint64_t planned_bytes_ FIRN_GUARDED = 0, placed_ FIRN_GUARDED = 0;
};

}  // namespace firn
