// How a block's bytes move: between the device, host memory and the store. Which block leaves or
// comes, when, and which piece is written next is decided elsewhere (Owner tells); from then on a
// block goes its way here, round by round, to the end of that way or back to where it was.
//
//   drop  (drop.cpp)     start_spill() of a block that can be made again and was chosen for it: it
//                        is unmapped without a copy
//   out   (spill.cpp)    start_spill(): pieces are copied to host memory; their spans are given up
//                        once every piece has a copy and every use is over
//   on    (write.cpp)    write_back(): copies in host memory are written to the store
//   in    (arrive.cpp)   arrive(), once spans are mapped: pieces are copied to the device, after
//                        (read.cpp) they were read from the store; or why that fails
//   used  (at_host.cpp)  begin_host_use(): the processor uses a block that is away, where it is
//   ends  (reap.cpp)     copies and requests that are over are handed on to the way that began them
//   sums  (summing.cpp)  firn_verify: of copies in host memory, as they come and as they go
//   net   (guard.cpp)    for tests: under uses of memory that nobody reported
//
// A piece's bytes are in at least one of {device, host memory, store} at every moment, but those of
// a block that was dropped, whose recipe stands.
//
// Owns: the blocks under way (spilling, faulting), the copies in host memory, the sums and writes
// that are due, and the counts of what moved. (Transfers owns copies and requests in flight,
// Mapper what is to be unmapped, a block its pieces.)
// Lock: the engine's, around every call but failed()'s. carry_out_sums() releases it while it sums:
// everything may have changed when it returns. The device's context is current, but for figures.
// Only the net waits for the driver, as does firn_verify:all (summing.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "allocator/base/relaxed.h"
#include "allocator/blocks/piece_ref.h"
#include "allocator/blocks/uses.h"
#include "allocator/memory/device_health.h"
#include "allocator/movement/host_copies.h"
#include "allocator/movement/mapper.h"
#include "allocator/movement/sums.h"
#include "allocator/movement/transfers.h"
#include "allocator/movement/write_back.h"
#include "firn/clock.h"
#include "firn/store.h"
#include "firn/thread_safety.h"

namespace firn {

/// Counts of bytes and blocks that have moved.
struct Moved {
  uint64_t spilled_bytes = 0, clean_dropped_bytes = 0;  // left with a copy, and without one
  uint64_t dropped_bytes = 0;                           // left without any: a recipe stands
  uint64_t faults = 0;
  uint64_t faulted_bytes = 0, prefetched_bytes = 0;     // came to the device
  uint64_t forwarded_bytes = 0;                         // of both, without a read
  uint64_t store_written_bytes = 0, store_read_bytes = 0;
  uint64_t summed_bytes = 0;                            // in host memory
  uint64_t verified_bytes = 0;                          // compared with their copies as they left
};

/// Written under the lock, read without it: see Engine::failures().
struct Failed {
  Relaxed<uint64_t> lost_blocks, host_corrupt, device_corrupt, unseen_writes;
};

class Movement {
 public:
  using Lock = Mapper::Lock;

  /// The part above: it is told of events, and asked for decisions. Under the lock; none of these
  /// functions releases it.
  class Owner {
   public:
    virtual ~Owner() = default;

    // Words: for the user, once each; for the user; for the trace.
    virtual void trouble(const std::string& words) FIRN_HELD = 0;
    virtual void say(const std::string& words) const FIRN_HELD = 0;
    virtual void trace(const char* event, const Block& block, const char* detail) FIRN_HELD = 0;

    // Events.
    /// There is work for the rounds to come.
    virtual void work_begins() FIRN_HELD = 0;
    /// The block begins to leave the device, and not only to be copied.
    virtual void leaves(Block& block) FIRN_HELD = 0;
    /// It has left without a copy, and is made again for its next use.
    virtual void dropped(const Block& block) FIRN_HELD = 0;
    /// The block counts as used at this moment.
    virtual void make_young(Block& block) FIRN_HELD = 0;
    /// The block's bytes are gone: nothing is made from them any more.
    virtual void lost(Block& block) FIRN_HELD = 0;
    /// A piece has come to host memory. True: next_write() names it, or give_up_writes(), with no
    /// list here.
    virtual bool came_out(const PieceRef& ref) FIRN_HELD = 0;

    // A segment of small blocks, by the block that stands for it.
    /// It is about to leave. False: it cannot, and is as it was.
    virtual bool put_aside(Block& whole) FIRN_HELD = 0;
    /// It is on the device, or its bytes are on their way in.
    virtual void take_back(Block& whole) FIRN_HELD = 0;

    // Decisions.
    /// Is nothing to leave the device?
    virtual bool keeps_all() const FIRN_HELD = 0;
    /// Of the plan: events' number until which everything that is used has room on the device.
    /// None: there is no plan.
    virtual std::optional<uint64_t> window() const FIRN_HELD = 0;
    /// Takes the piece that is written next out of its list. None: none is due.
    virtual std::optional<PieceRef> next_write() FIRN_HELD = 0;
    /// The store is full: pieces that next_write() would have named stay in host memory.
    virtual std::vector<PieceRef> give_up_writes() FIRN_HELD = 0;
    /// Does the block's copy in host memory go once the store has it?
    virtual bool leaves_host(const Block& block) const FIRN_HELD = 0;
    /// The block's last events, for the report of a write that was not seen.
    virtual std::string last_events(const Block& block) const FIRN_HELD = 0;
  };

  struct Options {
    uint64_t span_bytes, piece_bytes, io_patience_ns;
    bool sums;                   // of copies in host memory
    bool verify, guard, poison;  // the net
  };
  struct Parts {
    Owner& owner;
    Options options;
    const Driver& driver;
    DeviceHealth& health;
    Clock& clock;
    Store* store;  // null: none
    HostTier& host;
    Streams& streams;
    Uses& uses;
    Transfers& transfers;
    Mapper& mapper;
  };
  explicit Movement(const Parts& parts);
  Movement(const Movement&) = delete;
  Movement& operator=(const Movement&) = delete;

  // Out.
  /// Begins to spill a block that is neither held nor pinned. `leave`: at least `pages` of it, from
  /// the tail, are unmapped in the end; otherwise its bytes are only made valid elsewhere. False:
  /// it is not spilling, now or any more.
  bool start_spill(Block& block, bool leave, uint64_t pages = UINT64_MAX) FIRN_HELD;
  /// Ends a spill: everything that was to leave has left, or it was touched, or failed. Resident
  /// when nothing was unmapped; hosted when something was.
  void keep(Block& block) FIRN_HELD;
  /// Ends the spills that can end.
  void finish_spills() FIRN_HELD;
  /// The device's bytes are about to change, or are not wanted any more.
  void drop_copies(Block& block) FIRN_HELD;
  /// An input of a block that was dropped is lost, and so is the block.
  void lose_with_input(Block& block, const Error& error) FIRN_HELD;
  /// Does it leave without a copy, to be made again?
  static bool drops(const Block& block) FIRN_HELD;

  // In.
  /// Spans of a block that is away were mapped: its bytes begin to come. `prefetched`: ahead of
  /// their use.
  void arrive(Block& block, bool prefetched) FIRN_HELD;
  /// The block was freed: no more of it comes.
  void forget(Block& block) FIRN_HELD { std::erase(faulting_, &block); }
  /// Begins to read a piece that is in the store alone. False: it is tried again later.
  bool start_read(Block& block, uint32_t piece) FIRN_HELD;

  // Used in host memory.
  /// Begins a use of a block that is away, none of it on the device: its pieces are gathered, in
  /// rounds, until use.begun, or use.error. The block has one at a time, and is held.
  void begin_host_use(HostUse& use) FIRN_HELD;
  /// Ends it, or gives it up. What it wrote is the block's from here on.
  void end_host_use(HostUse& use) FIRN_HELD;
  /// Bytes of such uses.
  uint64_t host_use_bytes() const FIRN_HELD { return host_use_bytes_; }
  /// Does nothing that is under way give host memory back?
  bool host_idle() const FIRN_HELD;
  /// Why the block cannot be used there, and the knob that changes it.
  Error no_host_memory(const Block& block) const FIRN_HELD;
  /// After more such rounds in a row, who lacks host memory gives up.
  static constexpr unsigned idle_rounds_most = 3;

  // Rounds, in this order: what has ended is taken, and blocks under way go on.
  /// True: the store has answered.
  bool begin_round() FIRN_HELD;
  /// True: copies are over.
  bool reap_copies() FIRN_HELD;
  /// True: a block is spilling no more.
  bool advance() FIRN_HELD;
  /// Begins writes that are due, as much at a time as keeps the store busy. True: some have begun.
  bool write_back() FIRN_HELD;
  /// Takes the sums that are due. True: there were some. Releases the lock meanwhile.
  bool carry_out_sums(Lock& lock) FIRN_HELD;
  /// Host memory or the store may have room anew.
  void room_came() FIRN_HELD { stuck_ = false; }

  // The end.
  /// Takes the store's answers alone. True: there were some.
  bool reap_store() FIRN_HELD;

  // The net.
  /// Opens a block for a use that writes, or another life. False: the device is dead; it stays
  /// closed.
  bool open_guarded(Block& block) FIRN_HELD;
  /// Is part of it still read-only (the device is dead)? Then it is not used again.
  bool closed(const Block& block) const FIRN_HELD;

  // The copies in host memory, and the parts that the rounds above work with.
  HostCopies& host_copies() FIRN_HELD { return host_copies_; }
  const WriteBack& writes() const FIRN_HELD { return write_back_; }
  Sums& sums() FIRN_HELD { return sums_; }

  // Figures.
  /// Is host memory full, with nowhere to write? Then only what has a copy leaves.
  bool stuck() const FIRN_HELD { return stuck_; }
  /// Did a spill or a read lack room in host memory, in this round?
  bool staging_wanted() const FIRN_HELD { return staging_wanted_; }
  /// Why the store cannot serve, and the knob that changes it.
  const char* no_store() const FIRN_HELD;
  /// Is anything to be done in the rounds to come, beside transfers?
  bool busy() const FIRN_HELD {
    return !spilling_.empty() || !faulting_.empty() || !gathering_.empty() || sums_.due() ||
           write_back_.grows();
  }
  const std::vector<Block*>& spilling() const FIRN_HELD { return spilling_; }
  const std::vector<Block*>& faulting() const FIRN_HELD { return faulting_; }
  /// Pages of the device's that leave with this spill; and with all of them.
  static uint64_t leaving_pages(const Block& block) FIRN_HELD;
  uint64_t leaving_pages() const FIRN_HELD;
  /// Bytes on their way to the device, or waiting for it in host memory or the store.
  uint64_t arriving_bytes() const FIRN_HELD;
  Moved moved() const FIRN_HELD;
  const Failed& failed() const { return failed_; }

  static constexpr uint64_t unanswered_ns = 30'000'000'000;
  // A failed read is tried again, with pauses (io_pause.h): the store has the last copy. It is
  // reported after said_after_ns; if given up once, it is not tried longer than that.
  static constexpr uint64_t said_after_ns = 1'000'000'000;

 private:
  void trouble(const std::string& words) FIRN_HELD { owner_.trouble(words); }
  void say(const std::string& words) const FIRN_HELD { owner_.say(words); }
  void trace(const char* event, const Block& block, const char* detail = "") FIRN_HELD {
    owner_.trace(event, block, detail);
  }

  // spill.cpp
  void make_pieces(Block& block) FIRN_HELD;
  void advance_spill(Block& block) FIRN_HELD;
  bool copy_out(Block& block, uint32_t piece) FIRN_HELD;
  bool host_stuck() const FIRN_HELD;
  void unmap_run(Block& block, size_t begin, size_t end) FIRN_HELD;
  bool finish_spill(Block& block) FIRN_HELD;
  void settle_away(Block& block) FIRN_HELD;
  Staging* staging_for(size_t bytes, uint64_t reserve) FIRN_HELD;
  void drop_piece(Piece& piece) FIRN_HELD;
  void came_out(const PieceRef& ref) FIRN_HELD;

  // drop.cpp
  bool start_drop(Block& block) FIRN_HELD;
  bool finish_drop(Block& block) FIRN_HELD;

  // arrive.cpp
  void begin_arriving(Block& block, bool prefetched) FIRN_HELD;
  void advance_fault(Block& block) FIRN_HELD;
  bool copy_in(Block& block, uint32_t piece) FIRN_HELD;

  // at_host.cpp
  void hold_at_host(HostUse& use, uint32_t index) FIRN_HELD;
  void gather(HostUse& use) FIRN_HELD;
  void start_host_use(HostUse& use) FIRN_HELD;
  void fail_host_use(HostUse& use, const Error& error) FIRN_HELD;

  // read.cpp
  bool begin_read(Block& block, uint32_t piece, Staging* staging) FIRN_HELD;
  std::string no_staging_words(size_t bytes) const FIRN_HELD;
  void read_done(const PieceRef& ref, const StoreCompletion& completion) FIRN_HELD;
  void unread(Block& block, Piece& piece, const Error& error) FIRN_HELD;
  void settle_failed(Block& block) FIRN_HELD;
  void lose(Block& block) FIRN_HELD;
  void give_up_reading(Block& block) FIRN_HELD;
  void read_at_last(Block& block) FIRN_HELD;
  void say_lost(const Block& block, const char* how) const FIRN_HELD;
  void undo_fault(Block& block) FIRN_HELD;

  // write.cpp
  bool start_write(const PieceRef& ref) FIRN_HELD;
  void written(const PieceRef& ref, const StoreCompletion& completion, uint64_t begun_ns) FIRN_HELD;
  void not_written(const PieceRef& ref, Slot slot, const Error& error, uint64_t begun_ns) FIRN_HELD;
  void take_no_more(const char* what, const Error& error, uint64_t begun_ns) FIRN_HELD;

  // reap.cpp
  void look_for_unanswered() FIRN_HELD;

  // summing.cpp
  void sum_later(const PieceRef& ref, bool arrived) FIRN_HELD;
  void summed(const PieceRef& ref, bool arrived, const Sum& sum) FIRN_HELD;
  bool written_as_arrived(Block& block, Piece& piece, const StoreCompletion& completion) FIRN_HELD;
  Error say_host_wrong(const Block& block, const Piece& piece, const Sum& sum) FIRN_HELD;
  bool arrived_whole(Block& block) FIRN_HELD;

  // guard.cpp
  bool left_unwritten(Block& block, Span& span) FIRN_HELD;
  void guard(Block& block) FIRN_HELD;
  void poison(Block& block) FIRN_HELD;

  Owner& owner_;
  const Options options_;
  const Driver& driver_;
  DeviceHealth& health_;
  Clock& clock_;
  Store* const store_;
  HostTier& host_;
  Streams& streams_;
  Uses& uses_;
  Transfers& transfers_;
  Mapper& mapper_;
  HostCopies host_copies_ FIRN_GUARDED{host_};
  WriteBack write_back_ FIRN_GUARDED{options_.io_patience_ns};
  Sums sums_ FIRN_GUARDED{host_};
  std::vector<Block*> spilling_ FIRN_GUARDED, faulting_ FIRN_GUARDED;  // on their way out, and in
  std::vector<HostUse*> gathering_ FIRN_GUARDED;  // uses in host memory that have not begun
  uint64_t host_use_bytes_ FIRN_GUARDED = 0;      // of those and of the others
  bool staging_wanted_ FIRN_GUARDED = false;  // a spill or a read waits for staging
  bool unread_said_ FIRN_GUARDED = false;     // failing reads were reported
  bool stuck_ FIRN_GUARDED = false;           // host memory full and nowhere to write
  Moved moved_ FIRN_GUARDED;
  Failed failed_;
  std::vector<std::byte> compared_ FIRN_GUARDED;  // bytes of the device's that are compared
};

}  // namespace firn
