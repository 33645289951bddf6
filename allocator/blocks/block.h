// One allocation: its descriptor, its pieces, and the table of all descriptors.
//
// The word, the last use, the age and the link are atomics used without a lock; all else in a Block
// belongs to the holder of the engine's lock (or, before it is handed out, to its maker). Members
// without FIRN_GUARDED stay the same while it is handed out, and are read without the lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "allocator/base/relaxed.h"
#include "allocator/blocks/block_state.h"
#include "allocator/blocks/block_word.h"
#include "allocator/blocks/streams.h"
#include "allocator/memory/frames.h"
#include "allocator/memory/host_tier.h"
#include "firn/store.h"
#include "firn/thread_safety.h"

namespace firn {

struct IoRequest;
struct HostUse;  // allocator/movement/host_use.h

/// A stretch of a large block, at most a large frame long: mapped and unmapped as one, so that a
/// large block leaves and comes back bit by bit.
struct Span {
  uint32_t begin = 0, pages = 0;    // within the block
  bool guarded = false;              // firn_test_guard: open for reading only
  bool leaving = false;              // spilling: unmapped once its pieces are valid elsewhere
  bool coming = false;               // being mapped, without the engine's lock
  bool going = false;                // to be unmapped, or being unmapped, without it
  std::vector<Frame> frames;         // none: not mapped
  bool mapped() const { return !frames.empty(); }
};

/// Some of a block's spans, side by side, by their numbers: [begin, end).
struct SpanRange {
  uint32_t begin = 0, end = UINT32_MAX;
  bool has(size_t span) const { return begin <= span && span < end; }
};

/// A part of a large block within one span, the unit of copying and writing.
struct Piece {
  uint64_t offset = 0;
  size_t bytes = 0;
  bool on_device = true;     // its span is mapped and holds the bytes, or a copy in is enqueued
  bool wanted_out = false;   // spilling: to be made valid elsewhere
  Staging* host = nullptr;   // holds the bytes when host_valid
  Slot slot;                 // holds the bytes when slot_valid
  bool host_valid = false, slot_valid = false;
  bool elsewhere() const { return host_valid || slot_valid; }  // it may leave without being copied
  bool copying_out = false;
  bool writing = false, reading = false;
  uint16_t read_tries = 0;       // since it was on the device
  uint32_t read_failures = 0;    // in a row
  uint64_t read_again_ns = 0;    // not before this time
  uint64_t unread_ns = 0;        // since when reads for this fault fail; 0: none failed
  IoRequest* request = nullptr;  // when writing or reading
  // firn_verify: `sum` is of its bytes as they arrived in host memory, if `summed`; `summing`: it
  // is to be taken, or compared; `checked`: this fault found the copy there unchanged; `doubtful`:
  // it found it changed, while being written; `unproven`: to be compared on the device.
  Sum sum;
  bool summed = false, summing = false, checked = false, doubtful = false, unproven = false;
};

struct alignas(64) Block {
  // Used by allocating, freeing and touching: one cache line.
  BlockWord word;
  std::atomic<uint64_t> use{0};        // Use::bits of the last use
  std::atomic<uint64_t> age{0};        // engine tick of the last touch
  std::atomic<uint32_t> next{0};       // link of a ready stack: index + 1
  uint32_t index = 0;                  // of this descriptor in its table
  uint16_t stream = 0;                 // Streams index of the allocation's stream
  uint16_t size_class = 0;
  uint32_t pages = 0;                 // large: mapped size; 0: small
  uint64_t address = 0;
  Relaxed<size_t> bytes = 0;           // usable, by size class; counted by statistics
  Relaxed<size_t> requested = 0;
  // The rest: small blocks use next to none of it.
  std::atomic<uint32_t> asked{0};       // large: units of 512 B asked for, as last handed out
  Relaxed<uint32_t> generation = 0;     // large: raised at every free: tells stale I/O from current
  std::atomic<uint32_t> maker_of{0};    // the generation in which maker ...
  std::atomic<const char*> maker{nullptr};  // ... allocated it; see Engine::hold_new()
  uint64_t place_bytes = 0;             // of its place in a region; 0: it has frames of its own
  uint32_t place = 0;                   // then: its index in PlacedBlocks
  uint32_t segment = 0;                 // of a block that stands for a segment: its number + 1
  uint32_t version FIRN_GUARDED = 0;    // raised at every write: tells stale copies from valid ones
  uint32_t live_at FIRN_GUARDED = 0;    // index in the engine's list of live large blocks
  uint64_t next_use FIRN_GUARDED = UINT64_MAX;  // as decided last: an event's number
  uint64_t next_change FIRN_GUARDED = UINT64_MAX;  // next write or death, likewise
  Use arrival FIRN_GUARDED;             // copy-in that a user's stream has to wait for
  bool prefetched FIRN_GUARDED = false;
  bool uses_ordered FIRN_GUARDED = false;  // spilling: the copy stream waits for every use already
  bool leave FIRN_GUARDED = true;          // spilling: to be unmapped, not only cleaned
  /// Why a fault cannot go on: a copy in was refused; reads fail; the last copy is wrong.
  enum class Failing : uint8_t { nothing, copies, reads, lost } failing FIRN_GUARDED{};
  bool unreadable FIRN_GUARDED = false;     // reads failed for too long and were given up; not lost
  uint32_t read_refusals FIRN_GUARDED = 0;  // how often reads were given up
  uint32_t fault_failures FIRN_GUARDED = 0;  // copies in that failed and were rolled back
  Error fault_error FIRN_GUARDED;           // the last of them, or why it is lost or unreadable
  bool by_recipe FIRN_GUARDED = false;  // its recipe stands and is chosen: it leaves without a copy
  bool dropping FIRN_GUARDED = false;   // spilling: all of it is to be dropped
  bool kept FIRN_GUARDED = false;       // freed, and needed for a block that is away: see recipes.h
  const char* pin_reason FIRN_GUARDED = nullptr;
  const char* given_reason FIRN_GUARDED = nullptr;  // when word::given
  uint32_t pin_count FIRN_GUARDED = 0;
  bool exported FIRN_GUARDED = false;       // another process may have it mapped
  HostUse* at_host FIRN_GUARDED = nullptr;  // the processor uses it in host memory, or will
  bool small_segment = false;  // when word::segment: counted in the small blocks' pool
  std::vector<Use> more_uses FIRN_GUARDED;  // when word::many_uses
  std::vector<uint16_t> recorded_streams FIRN_GUARDED;  // when word::recorded
  /// Reads of it for blocks that were made again, maybe over: the program knows of none, so that
  /// who writes it next, or has its memory next, waits for them. When word::recipes.
  std::vector<Use> remake_reads FIRN_GUARDED;
  std::vector<Span> spans FIRN_GUARDED;     // large: all of the block, in order of addresses
  Shape shape;                              // large, one span: how it lies in shared frames
  uint32_t mapped FIRN_GUARDED = 0;         // pages of the spans that are mapped
  uint32_t device FIRN_GUARDED = 0;         // of these, pages under the budget
  uint32_t coming FIRN_GUARDED = 0;         // pages being mapped (movement/mapper.h)
  uint32_t going FIRN_GUARDED = 0;          // pages being unmapped (the same)
  bool dropped FIRN_GUARDED = false;        // meanwhile: its end waits for those calls
  std::vector<Piece> pieces FIRN_GUARDED;   // none until it is spilled for the first time

  State state() const { return word.state(); }
  uint64_t mapped_bytes() const {  // when fully mapped
    return place_bytes ? place_bytes : pages * page_bytes;
  }
  /// Of a large block: where its own granules of addresses begin.
  uint64_t base() const { return address / granule_bytes * granule_bytes; }
  uint32_t granules() const {
    return static_cast<uint32_t>(
        (address - base() + mapped_bytes() + granule_bytes - 1) / granule_bytes);
  }
  const Span& span_of(const Piece& piece) const FIRN_HELD {
    // All spans but the last are alike.
    return spans[piece.offset / (spans.front().pages * page_bytes)];
  }
};
static_assert(offsetof(Block, asked) == alignof(Block));

/// Divides a large block into spans of so many granules, the last one shorter; none is mapped. A
/// block that shares frames has one span.
void make_spans(Block& block, uint32_t span_granules) FIRN_HELD;
/// The spans that have a byte of the addresses [begin, end). Empty: none has.
SpanRange spans_in(const Block& block, uint64_t begin, uint64_t end) FIRN_HELD;
/// The pieces that lie in the span; none if the block has none.
std::span<Piece> pieces_of(Block& block, const Span& span) FIRN_HELD;
/// Are all of them valid elsewhere too, so that they leave without being copied?
bool clean(std::span<const Piece> pieces) FIRN_HELD;
/// The same of the whole block; a block without pieces has no copy.
inline bool clean(const Block& block) FIRN_HELD {
  return !block.pieces.empty() && clean(std::span(block.pieces));
}
/// Where the span's frames are mapped, and how many bytes of addresses they take.
inline uint64_t address_of(const Block& block, const Span& span) {
  return block.base() + span.begin * page_bytes;
}
inline uint64_t bytes_at(const Block& block, const Span& span) {
  return block.shape.shared() ? block.granules() * granule_bytes : span.pages * page_bytes;
}

/// Moves the block by an event, with the table's blessing (aborts otherwise), and clears flags. For
/// transitions that no other thread competes for.
inline void transit(Block& block, Event event, word::Flags clear = 0) FIRN_HELD {
  block.word.move(event, clear, block.address);
}

/// The same for a block that nobody else can name: one that was just taken from where ready ones
/// are; and sets flags. No locked instruction.
inline void transit_own(Block& block, Event event, word::Flags set = 0) {
  block.word.move_own(event, set, block.address);
}

/// Adds a hold to a large block that is resident. False: it is not, or it was freed and waits for
/// the last hold, after which this one would never be dropped.
bool hold_live(Block& block);

/// The flags that end with an allocation's life.
inline constexpr uint64_t life_flags =
    word::proven | word::pinned | word::copies | word::unsettled | word::freed | word::recorded |
    word::segment | word::given | word::outside | word::told | word::aside |
    word::recipes;

/// Descriptors at stable addresses, found by index; a descriptor is never freed, only reused. On
/// huge pages: a million blocks are freed in unpredictable order.
class BlockTable {
 public:
  static constexpr uint32_t chunk = 32768, chunks = 1024;

  Block& operator[](uint32_t index) const {
    return chunks_[index / chunk].load(std::memory_order_acquire)[index % chunk];
  }
  /// A descriptor in State::free. Under the engine's lock; null when 32 Mi blocks are live, or when
  /// the machine has no memory for more.
  Block* make() FIRN_HELD;
  void recycle(Block* block) FIRN_HELD { spare_.push_back(block->index); }
  uint32_t size() const FIRN_HELD { return size_; }
  ~BlockTable();

 private:
  std::array<std::atomic<Block*>, chunks> chunks_{};
  std::vector<uint32_t> spare_ FIRN_GUARDED;
  uint32_t size_ FIRN_GUARDED = 0;
};

/// The size classes: small ones 512 B apart at first, then eight to a doubling, up to 1 MiB; large
/// ones whole granules, and between them, up to 32 MiB, sixteen to a doubling, where that saves
/// more than a thirty-second.
namespace size_class {
inline constexpr size_t small_most = (1u << 20) - 1;  // larger requests have pages of their own
inline constexpr unsigned small_count = 80;
inline constexpr unsigned whole_count = 1024;           // up to 2 GiB; larger ones take the lock
inline constexpr unsigned shared_count = 5 * 16 + 1;    // from 1 MiB on
inline constexpr unsigned count = small_count + whole_count + shared_count;

/// 0..small_count-1 for 1..small_most.
unsigned of_small(size_t bytes);
size_t small_bytes(unsigned size_class);
/// Pages of a large block of `bytes`: a multiple of a granule's, or, up to `shared_most`, those of
/// its size class.
uint32_t pages(size_t bytes, uint32_t shared_most);
/// The class of a result of pages(); `count` when too large for a stack.
unsigned of_pages(uint32_t pages);
}  // namespace size_class

}  // namespace firn
