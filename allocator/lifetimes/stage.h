// The state of a rehearsal: blocks in pieces, device memory, host memory, channels, and the plan
// being carried out. Owns all of it. Private to rehearse.cpp.
//
// A piece's bytes may be valid on the device, in host memory and in the store, all at once; a piece
// is clean when it is on the device and valid elsewhere. A piece gives its device memory back only
// when it is clean or dead, and has no copy in flight.
#pragma once

#include <deque>
#include <queue>
#include <vector>

#include "allocator/lifetimes/rehearse.h"

namespace firn::lifetimes {

struct StagePiece {
  uint32_t pages = 0;
  bool device = false;    // valid there
  bool arriving = false;  // device memory is taken, the bytes are on their way
  bool leaving = false;   // its room is wanted: it leaves once it is valid elsewhere
  bool going = false;     // a copy out is in flight
  bool host = false;      // host memory is taken
  bool host_valid = false, store_valid = false;
  bool writing = false, reading = false;  // to, from the store
  bool clean() const { return device && (host_valid || store_valid); }
  bool mapped() const { return device || arriving; }
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
  bool changing = false;     // held, and written
  bool dying = false;        // it dies when they are over
  bool unborn = false;       // waits for room
  bool proven = false;       // used at least once since its birth
  bool away() const { return mapped < size; }
};

class Stage {
 public:
  struct Entry {
    uint32_t block, life;
    uint64_t touched, next_use;
    uint64_t pages;  // to be away or clean
  };
  struct Plan {
    std::vector<Entry> fetch, farthest, leaving, reads, writes;
    uint64_t window = 0, memory_window = 0;  // steps' numbers
    size_t fetched = 0, cleaned = 0, read = 0, written = 0;  // progress in carrying it out
  };

  Stage(const RehearsalMachine& machine, const Tuning& tuning, Rehearsed& result,
        RehearsalObserver* observer);

  /// A block with nothing on the device and nothing elsewhere.
  uint32_t make(uint64_t pages);
  /// Sets its start: pages on the device, the clean ones of these, those in the store only.
  void place(uint32_t block, uint64_t on_device, uint64_t clean, uint64_t in_store);
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
  /// Pages of host memory that are for transfers and for copies made ahead of leaving.
  uint64_t host_reserve() const;
  /// Does host memory only buffer transfers?
  bool passage() const { return machine_.host <= host_reserve(); }
  /// Sets how much of the block is on the device or in host memory, and of that in the store too.
  void lay_out_in_memory(uint32_t block, Item& item) const;
  uint64_t draining() const { return draining_; }
  uint64_t now() const { return now_; }
  /// Pages of finished copies out and in.
  uint64_t moved() const { return moved_; }

  /// Carried out by pump().
  Plan plan;
  void planned() { farthest_begin_ = 0; }
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

  StagePiece* valid(const Ref& ref);
  bool meant(const Entry& entry) const;
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
  bool may_leave(const StageBlock& block) const;
  uint64_t make_leave(uint32_t block, uint64_t pages, bool clean_only);
  uint64_t evict_farthest(uint64_t pages, uint32_t except, uint64_t beyond, bool clean_only);
  uint64_t evict_going(uint64_t beyond);
  void evict(uint64_t pages);
  bool host_room(uint64_t pages, uint64_t margin, uint64_t wanted_at);
  uint64_t in_flight() const;
  bool drop_returned();
  bool drop_resident_host();
  bool arrive(uint32_t block, uint64_t beyond, bool demanded);
  bool begin_arrivals();
  bool begin_in();
  bool begin_out();
  StagePiece* planned_write(Ref& ref);
  StagePiece* next_write(Ref& ref);
  bool begin_write();
  bool begin_read();
  bool read_for_host();

  const RehearsalMachine machine_;
  const Tuning tuning_;
  Rehearsed& result_;
  RehearsalObserver* const observer_;
  std::vector<StageBlock> blocks_;
  std::vector<uint32_t> dead_;  // to be used again
  std::vector<uint32_t> held_;
  size_t farthest_begin_ = 0;  // entries of plan.farthest before it are exhausted
  Transfer transfers_[channel_count];
  uint64_t now_ = 0, taken_ = 0, host_taken_ = 0, moved_ = 0;
  uint64_t draining_ = 0;  // pages of dead blocks' transfers
  uint64_t leaving_ = 0;   // pages marked to leave
  uint32_t lives_ = 0;
  bool host_wanted_ = false;
  std::deque<Ref> arrivals_, going_, unwritten_;
  std::deque<Ref> returned_;  // came to the device, and were in host memory
  std::priority_queue<Droppable> droppable_;  // host copies that are in the store too
};

}  // namespace firn::lifetimes
