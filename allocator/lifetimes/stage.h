// The state of a rehearsal: blocks in pieces, device memory, host memory, channels, and the plan,
// which carry_out.h carries out over them (StageTiers). Owns all of it. Private to rehearse.cpp.
//
// A piece's bytes may be valid on the device, in host memory and in the store, all at once; a piece
// is clean when it is on the device and valid elsewhere. A piece gives its device memory back only
// when it is clean or dead, and has no copy in flight.
#pragma once

#include <deque>
#include <optional>
#include <queue>
#include <vector>

#include "allocator/lifetimes/carry_out.h"
#include "allocator/lifetimes/load.h"
#include "allocator/lifetimes/rehearse.h"

namespace firn::lifetimes {

struct StagePiece {
  uint32_t pages = 0;
  bool device = false;    // valid there
  bool arriving = false;  // device memory is taken, the bytes are on their way
  bool leaving = false;   // its room is wanted: it leaves once it is valid elsewhere
  bool cleaning = false;  // it is to be made valid elsewhere, ahead of leaving
  bool going = false;     // host memory is taken, the copy out waits or is in flight
  bool host = false;      // host memory is taken
  bool host_valid = false, store_valid = false;
  bool writing = false, reading = false;  // to, from the store
  bool clean() const { return device && (host_valid || store_valid); }
  bool mapped() const { return device || arriving; }
  bool wanted_out() const { return (leaving || cleaning) && device && !clean(); }
};

struct StageBlock {
  std::vector<StagePiece> pieces;
  uint32_t life = 0;         // 0: dead
  uint32_t version = 0;      // of its contents
  uint64_t size = 0, mapped = 0, clean = 0;  // pages; mapped: with those that arrive
  uint64_t touched = 0;      // number of the last step
  uint64_t next_use = no_use;  // number of the step
  uint64_t next_change = no_use;  // or death, by the last decision
  bool held = false;         // used by the kernels that run now or next
  bool dying = false;        // it dies when they are over
  bool unborn = false;       // waits for room
  bool proven = false;       // used at least once since its birth
  bool away() const { return mapped < size; }
};

class StageTiers;

class Stage {
 public:
  Stage(const RehearsalMachine& machine, const Tuning& tuning, Rehearsed& result,
        RehearsalObserver* observer);

  /// A block with nothing on the device and nothing elsewhere.
  uint32_t make(uint64_t pages);
  /// Sets its start: pages on the device, the clean ones of these, those in the store only.
  void start_with(uint32_t block, uint64_t on_device, uint64_t clean, uint64_t in_store);
  void bear(uint32_t block);
  /// The program waits for it from here on: nothing of it leaves.
  void want(uint32_t block, uint64_t step);
  bool is_there(uint32_t block) const;
  void use(uint32_t block);
  void change(uint32_t block);
  void kill(uint32_t block);
  /// The kernels that ran are over.
  void let_go();

  StageBlock& operator[](uint32_t block) { return blocks_[block]; }
  uint32_t count() const { return static_cast<uint32_t>(blocks_.size()); }
  uint64_t free() const { return machine_.capacity - taken_; }
  /// Sets how much of the block is on the device or in host memory, and of that in the store too.
  void lay_out_in_memory(uint32_t block, Item& item) const;
  /// Pages of host memory that are not for transfers, while `to_clean` pages are to be made clean.
  uint64_t keeps(uint64_t to_clean);
  uint64_t draining() const { return draining_; }
  uint64_t now() const { return now_; }

  /// Carried out by pump(); whoever makes it sets `valid` and `period`.
  Plan<uint32_t> plan;
  CarryOut<StageTiers> carry_out() FIRN_ASSERTS(no_lock);  // (a rehearsal is one thread's)
  /// The number of the last step.
  uint64_t step = 0;
  void period_over() { reading_.period_over(); }

  /// The program waits for this block, or for room for it if it is unborn.
  static constexpr uint32_t nobody = UINT32_MAX;
  uint32_t wanted = nobody;

  /// Begins what can be begun now.
  void pump();
  /// Advances time to `until`, or to the next end of a transfer if that is earlier. False: there is
  /// neither.
  bool advance(uint64_t until);
  void happen(Happening happening);

 private:
  struct Transfer {
    bool active = false, stale = false;  // stale: the bytes are no longer wanted
    bool owns_device = false, owns_host = false;  // memory is given back when the transfer ends
    uint32_t block = 0, life = 0, piece = 0, pages = 0;
    uint64_t end_ns = 0;
  };
  struct Ref {
    uint32_t block, life, version, piece;
  };
  struct Droppable {
    uint64_t next_use;
    Ref ref;
    bool operator<(const Droppable& other) const { return next_use < other.next_use; }
  };
  using Refs = std::deque<Ref>;

  StagePiece* valid(const Ref& ref);
  const Transfer& on(Channel channel) const {
    return transfers_[static_cast<unsigned>(channel)];
  }
  Transfer& on(Channel channel) { return transfers_[static_cast<unsigned>(channel)]; }
  void begin(Channel channel, const Ref& ref);
  void end(Channel channel);
  void ended(Channel channel, const Transfer& transfer, StagePiece& piece);
  Ref ref(uint32_t block, uint32_t piece) const;
  void take(uint32_t block, uint32_t piece);
  void give(uint32_t block, uint32_t piece);
  void take_host(StagePiece& piece);
  void give_host(StagePiece& piece);
  void strip(uint32_t block, bool dies);

  // stage_move.cpp
  uint64_t make_leave(uint32_t block, uint64_t pages);
  bool make_clean(uint32_t block, uint64_t pages);
  void evict(uint64_t pages);
  uint64_t arrivable(uint32_t block) const;
  void arrive(uint32_t block, uint64_t pages);
  bool serve_wanted();
  bool make_copies_out();
  bool make_reads();
  bool make_writes();
  bool begin_next(Channel channel, Refs& queue);
  std::optional<Ref> take_unwritten(bool last_used);
  bool host_room(uint64_t pages, uint64_t reserve);
  bool drop_host_copy(uint64_t wanted_at, uint64_t window);
  bool drop_returned();
  bool drop_resident_host();
  uint64_t waiting(const Refs& queue, bool StagePiece::*flag) const;
  uint64_t on_the_way(Channel channel) const;

  friend class StageTiers;
  const RehearsalMachine machine_;
  const Tuning tuning_;
  Rehearsed& result_;
  RehearsalObserver* const observer_;
  std::vector<StageBlock> blocks_;
  std::vector<uint32_t> dead_;  // to be used again
  std::vector<uint32_t> held_;
  Transfer transfers_[channel_count];
  uint64_t now_ = 0, taken_ = 0, host_taken_ = 0;
  uint64_t draining_ = 0;  // pages of dead blocks' transfers
  uint64_t leaving_ = 0;   // pages marked to leave
  uint64_t arriving_ = 0;  // pages with device memory whose bytes are on their way
  uint64_t kept_free_ = 0; // pages for the block that the program waits for
  uint32_t lives_ = 0;
  bool host_wanted_ = false;
  Load reading_;
  // In the order of their turn. Out: wanted out, without host memory; then with it. In: on their
  // way to the device, wherever they are; of those, the ones in host memory.
  Refs outs_, going_, arrivals_, coming_;
  Refs writes_, reads_;  // begun, one after the other
  Refs unwritten_;       // came to host memory, and are not in the store
  Refs returned_;        // came to the device, and were in host memory
  std::priority_queue<Droppable> droppable_;  // host copies that are in the store too
};

/// The tiers of a rehearsal: see carry_out.h.
class StageTiers {
 public:
  using Handle = uint32_t;
  explicit StageTiers(Stage& stage) : s_(&stage) {}
  static NoLock& lock() FIRN_RETURNS(no_lock) { return no_lock; }

  uint32_t life(uint32_t block) const { return of(block).life; }
  uint64_t touched(uint32_t block) const { return of(block).touched; }
  uint64_t next_use(uint32_t block) const { return of(block).next_use; }
  uint64_t size(uint32_t block) const { return of(block).size; }
  uint64_t mapped(uint32_t block) const { return of(block).mapped; }
  uint64_t coming(uint32_t) const { return 0; }
  uint64_t clean(uint32_t block) const;

  bool may_leave(uint32_t block) const {
    return of(block).life && of(block).proven && of(block).mapped > 0;
  }
  bool unused(uint32_t block) const { return !of(block).held; }
  void watch_uses(uint32_t) {}
  bool aside(uint32_t block) const { return of(block).held; }
  std::vector<uint32_t> copied_out() const;
  bool is_copied_out(uint32_t block) const;
  uint64_t copied_tail(uint32_t block) const;
  uint64_t make_leave(uint32_t block, uint64_t pages) { return s_->make_leave(block, pages); }
  bool make_clean(uint32_t block, uint64_t pages) { return s_->make_clean(block, pages); }
  void stop_cleaning(uint32_t block);
  void finish_leaving() {}

  bool may_arrive(uint32_t block) const { return !of(block).unborn && of(block).away(); }
  bool at_host(uint32_t) const { return false; }
  uint64_t arrivable(uint32_t block) const { return s_->arrivable(block); }
  uint64_t soon() const;
  void reclaim_ready() {}
  bool fetch(uint32_t block);

  size_t pieces(uint32_t block) const { return of(block).pieces.size(); }
  uint64_t piece_pages(uint32_t block, size_t i) const { return of(block).pieces[i].pages; }
  bool stored(uint32_t block, size_t i) const {
    return of(block).pieces[i].store_valid || of(block).pieces[i].writing;
  }
  bool unwritten(uint32_t block, size_t i) const {
    return of(block).pieces[i].host_valid && !stored(block, i);
  }
  bool only_stored(uint32_t block, size_t i) const {
    const StagePiece& piece = of(block).pieces[i];
    return !piece.mapped() && !piece.host && piece.store_valid;
  }
  bool drop_host_copy(uint64_t wanted_at, uint64_t window) {
    return s_->drop_host_copy(wanted_at, window);
  }
  std::optional<PieceOf<uint32_t>> unwritten_longest() { return unwritten(false); }
  std::optional<PieceOf<uint32_t>> unwritten_last_used() { return unwritten(true); }
  bool host_wanted() const { return s_->host_wanted_; }
  bool read_to_host(uint32_t block, size_t i);

  uint64_t span_bytes() const { return bytes(s_->machine_.span); }
  uint64_t host_bytes() const { return bytes(s_->machine_.host); }
  uint64_t host_used() const { return bytes(s_->host_taken_); }
  uint64_t spare_bytes() const;
  uint64_t bytes_in() const { return bytes(s_->arriving_); }
  uint64_t bytes_out() const;
  uint64_t bytes_written() const;
  uint64_t bytes_read() const;
  uint64_t store_bound() const {
    return bytes_written() + bytes(s_->unwritten_.size() * s_->machine_.piece);
  }
  uint64_t page_bytes() const { return s_->machine_.page_bytes; }
  double bytes_s(Channel channel) const {
    return s_->machine_.bytes_s[static_cast<size_t>(channel)];
  }
  uint64_t now() const { return s_->step; }
  double reading_part() const { return s_->reading_.part(); }
  bool has_store() const { return s_->machine_.has_store(); }

 private:
  const StageBlock& of(uint32_t block) const { return s_->blocks_[block]; }
  uint64_t bytes(uint64_t pages) const { return pages * s_->machine_.page_bytes; }
  std::optional<PieceOf<uint32_t>> unwritten(bool last_used);

  Stage* s_;
};

inline CarryOut<StageTiers> Stage::carry_out() { return {plan, StageTiers(*this)}; }

}  // namespace firn::lifetimes
