// The engine behind allocator/engine/engine.h. Its functions are in the files beside it, by what
// happens to a block there (engine.cpp: opening, closing, looking up, pump()), and are declared in
// the order of those files.
//
// One mutex guards everything but the hot paths (see block.h for what they use). Functions that
// take a Lock& may release it to wait; whatever they were given may have changed when they return.
#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>

#include "allocator/blocks/block.h"
#include "allocator/blocks/candidates.h"
#include "allocator/blocks/placed_blocks.h"
#include "allocator/blocks/ready_blocks.h"
#include "allocator/blocks/small_blocks.h"
#include "allocator/blocks/uses.h"
#include "allocator/engine/engine.h"
#include "allocator/engine/in_motion.h"
#include "allocator/engine/limits.h"
#include "allocator/engine/net.h"
#include "allocator/engine/tallies.h"
#include "allocator/engine/thrash_notices.h"
#include "allocator/lifetimes/carry_out.h"
#include "allocator/lifetimes/decide.h"
#include "allocator/lifetimes/fullest.h"
#include "allocator/lifetimes/load.h"
#include "allocator/memory/arena.h"
#include "allocator/movement/mapper.h"
#include "allocator/movement/movement.h"
#include "allocator/movement/transfers.h"
#include "allocator/memory/device_health.h"
#include "allocator/memory/driver_time.h"
#include "allocator/policy/births.h"
#include "allocator/policy/event_ring.h"
#include "allocator/policy/learner.h"
#include "allocator/policy/outlook.h"
#include "allocator/policy/place_planner.h"
#include "allocator/policy/spare_choice.h"
#include "allocator/record/trace.h"
#include "firn/canary.h"
#include "firn/ranked_mutex.h"

namespace firn {

/// A wait of the calling thread's that is over, until the observer knows it.
struct Stalled {
  uint64_t begin_ns = 0, end_ns = 0;
  uint64_t address = 0;  // of the block; 0: it waited for room
  Wait wait;
};

class EngineInspector;  // tests/simulation/inspector.h
class EngineTiers;      // tiers.h

inline constexpr const char* in_places_words = "in planned places (firn_places)";
/// Why a block on the device that is not in such a place stays there; null: it may leave.
const char* why_it_stays(const Block& block);

class EngineImpl final : public Engine,
                         private EngineLimits,
                         private InMotion,
                         private Movement::Owner {
  friend class EngineInspector;
  friend class EngineTiers;

 public:
  using Lock = Mapper::Lock;

  EngineImpl(const EngineOptions& options, const Driver& driver, Store* store, unsigned queue,
             Clock& clock, TraceWriter* trace);
  ~EngineImpl() override;
  Result<void> start();

  Result<void*> allocate(size_t bytes, CUstream stream, size_t requested, Told told) override;
  Result<void> free(void* pointer) override;
  Result<void> free_behind(void* pointer, CUstream fence, uint64_t given) override;
  Result<void> record_stream(const void* pointer, CUstream stream, CUcontext context) override;
  CUcontext context() const override { return options_.context; }
  void may_end(CUstream stream) override;
  void stream_ends(CUstream stream) override;
  void context_ends(CUcontext context) override;
  CUstream stream_of(CUstream stream, CUcontext context) override;
  Addresses addresses() const override { return {arena_->base(), arena_->bytes()}; }
  bool contains(const void* pointer) const override;
  std::optional<BlockInfo> find(const void* pointer) const override;
  Result<Hold> touch(const void* pointer, CUstream stream, Access access, Seen seen) override;
  Result<Hold> touch_anyway(const void* pointer, CUstream stream, Access access,
                            Seen seen) override;
  void count_refusal() override;
  void release(Hold hold, CUstream stream) override;
  size_t touch_many(std::span<const uint64_t> addresses, Access access, Hold* holds, size_t& held,
                    Seen seen) override;
  void release_many(std::span<const Hold> holds, CUstream stream) override;
  void used_on(std::span<const Hold> holds, CUstream stream) override;
  void saw_stream(CUstream stream) override;
  void release_unused(std::span<const Hold> holds) override;
  Hold hold_apart(const void* pointer) override;
  void release_apart(Hold hold) override;
  Hold hold_new(const void* pointer, const char* maker) override;
  void allocated_outside(const void* pointer) override;
  Result<void> pin(const void* pointer, const char* reason) override;
  Result<void> unpin(const void* pointer) override;
  Result<void> give_address(const void* pointer, const char* reason) override;
  Result<std::shared_ptr<const ExportedMemory>> export_memory(const void* pointer,
                                                              const char* reason) override;
  Result<void> allow_peer(int device) override;
  Result<void> prefetch(const void* pointer, size_t bytes, CUstream stream) override;
  Result<void> cold(const void* pointer, size_t bytes) override;
  bool pump() override;
  bool ponder() override;
  bool prepare_host() override;
  bool give_host_back(bool pressed) override;
  bool host_due() const override { return host_due_.load(std::memory_order_acquire); }
  bool ponder_due() const override { return ponder_due_.load(std::memory_order_acquire); }
  bool busy() const override;
  void trim() override;
  Result<void> set_budget(uint64_t bytes) override;
  uint64_t give_way(uint64_t bytes, uint64_t patience_ns) override;
  void spill_all() override;
  void spill_away() override;
  void observe(EngineObserver* observer) override;
  void stop_spilling(bool stopped, bool for_good) override;
  void waited(const WaitedBy& who) override;
  void made_by(const void* pointer, std::string_view maker) override;
  Result<void*> allocate_segment(size_t bytes, CUstream stream, bool small,
                                 const char* reason) override;
  void count(const PartEvent& event) override;
  bool watching() const override { return watching_.load(std::memory_order_relaxed); }
  EngineStats stats() const override;
  Failures failures() const override;
  uint64_t zero_copy_bytes() const override;
  uint64_t budget_bytes() const override;
  uint64_t room_at_most() const override;
  PoolTallies tallies() const override;
  void reset_peaks() override;
  void reset_totals() override;
  std::vector<BlockInfo> blocks() const override;
  void check() const override;
  void abandon() override;

 private:
  /// A call of the engine's: makes the device's context current, and counts the thread's time in
  /// the driver. Begins before the lock is taken, and ends after it: lines said meanwhile are
  /// written then, and the observer is told.
  struct Entered : DriverTimeScope, Driver::ContextGuard {
    explicit Entered(EngineImpl& engine);
    ~Entered();
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;

    EngineImpl& engine;
    std::vector<Stalled> stalls;  // of this thread meanwhile
    bool told = false;            // there are events for the observer
    Entered* const outer;         // of the same thread, maybe of another engine

   private:
    const int thrown_ = std::uncaught_exceptions();
  };
  static thread_local Entered* entered;  // the innermost of the thread

  // engine.cpp
  void left_undone() noexcept;
  Block* block_at(uint64_t address) const;
  Block* live_at(const void* pointer, bool exact) const;
  BlockInfo describe_block(const Block& block, uint64_t w) const;  // w: its word
  Block* large_at(uint32_t number, uint64_t address) const;  // hot.h; null: none
  bool pump_locked();
  void wait(Lock& lock, uint64_t ns);
  void await(Lock& lock, Use use);
  bool carry_out_device_wait(Lock& lock);
  void begin_stall();
  void count_stall(uint64_t begin_ns, const Block* waited_for, uint64_t room = 0);
  void trace(const char* event, const Block& block, const char* detail = "") override;
  void trace_sample();
  void say(const std::string& words) const override;
  void trouble(const std::string& words) override;
  Result<void> can_use(const Driver::ContextGuard& context);
  bool settle_all(Lock& lock);
  void give_all(Lock& lock);
  void reach_watch();
  void prove_told(Block& block);
  bool operators_in_way(const Error& error, size_t bytes) const;
  bool may_be_in_host(const Error& error, size_t bytes);
  uint64_t staying_bytes(bool with_held) const;

  // allocate.cpp
  int see_stream(CUstream stream, CUcontext context = nullptr);
  ReadyBlocks& ready(unsigned stream) const;  // hot.h
  void* hand_out(Block& block, size_t bytes, size_t requested, unsigned cell);
  template <class Attempt>
  Result<void*> with_watching(size_t bytes, Attempt&& attempt);  // hot.h
  Result<Block*> large_block(Lock& lock, unsigned stream, size_t bytes);
  Block* ready_block(unsigned stream, unsigned size_class);
  uint32_t pages_of(size_t bytes) const {
    return size_class::pages(bytes, span_granules_ * granule_pages);
  }
  Shape shape_of(uint32_t pages) const;
  Result<Mapping> begin_block(unsigned stream, size_t bytes, Reservation room, const Shape& shape);
  Result<Mapping> begin_block(unsigned stream, size_t bytes, std::vector<Frame> frames,
                              const Shape& shape);
  Result<Block*> finish_block(Lock& lock, Mapping& mapping);
  void enlist(Block& block);
  void forget_block(Block& block);
  Result<Block*> make_host_block(Lock& lock, unsigned stream, size_t bytes, const Error& no_room);
  Result<void*> allocate_small(Lock& lock, unsigned stream, size_t bytes, size_t requested,
                               Told told);
  Result<void> add_segment(Lock& lock, unsigned stream);
  Block* take_parked(unsigned stream, uint32_t pages);

  // free.cpp
  Result<void> free_slow(Block& block);
  void count_free(Block& block, unsigned cell);
  void finish_free(Block& block);
  void settle_later(Block& block);
  void settle_freed();
  void make_ready(Block& block, unsigned cell);
  void route_freed(Block& block);
  void look_at_deferred();
  void settle_deferred();
  bool fenced_wait() const;
  static uint64_t export_key(const Block& block) {
    return block.place_bytes != 0 ? block.address : block.base();
  }
  const Use* fence_of(const Block& block) const;
  void drop_descriptor(Block& block);

  // small.cpp, segments.cpp: the engine's part around SmallBlocks, which has the segments;
  // parts.cpp, stats.cpp
  bool release_segments();
  /// The segment of a small block, or of the block that stands for the segment.
  Segment& segment_of(const Block& block) const {
    return small_blocks_.segment(arena_->at(block.address));
  }
  Block* whole_at(uint32_t number, uint64_t address, Seen seen) const;  // hot.h
  Result<Hold> touch_small(uint32_t number, uint64_t address, CUstream stream, Access access,
                           Seen seen);
  void begin_watching();
  void make_whole(uint32_t index);
  Block* moved_with(Block* block) const;
  State state_of(const Block& block) const;
  void use_with_segment(const Block& small);
  bool put_aside(Block& whole) override;
  void take_back(Block& whole) override;
  void take_back_later();
  void retire_small(Block& block);
  void end_segment(Block& whole);
  void drop_segment(Block& whole);
  uint64_t staying_segments(bool look_inside) const;
  void uncount_segment(Block& block);
  void add_inactive(PoolTallies& tallies) const;
  void count_segment(bool made, bool large, uint64_t address, uint64_t bytes, unsigned stream);
  void tell(const MemoryEvent& event);

  // map.cpp: what the engine has to do around Mapper, which maps
  bool claim_ahead(Block& block, uint64_t pages);
  Result<void> carry_out(Lock& lock, Mapping& mapping);
  bool carry_out_mappings(Lock& lock);
  void drop_births();
  void unmap_spans(Block& block);
  bool carry_out_unmappings(Lock& lock, uint64_t granules = UINT64_MAX);
  bool carry_out_unmappings(Lock& lock, const Block& block);
  void end_dropped(Block& block);
  uint64_t pages_soon() const;

  void wipe(Block& block);  // export.cpp

  // touch.cpp
  template <class Mark>
  Result<void> pin_with(Block& block, Mark&& mark);
  static bool proves(Seen seen, uint64_t w);  // of a block with this word
  Result<Hold> touch_slow(Block& block, CUstream stream, Access access, Seen seen, bool anyway);
  Error unreadable(const Block& block, std::optional<uint64_t> stall_begin);
  int index_of(CUstream stream);                 // hot.h, as the next three
  void set_use(Block& block, Use use);
  void drop_hold(Block& block);
  int& thread_holds() const;  // the calling thread's on this device's blocks
  int find_index(CUstream stream);
  void wait_for_stream(CUstream stream);
  void change_use(Block& block, Use use);
  void last_hold_dropped(Block& block, uint64_t word_before);
  static int& shared_cell_holds(int device);

  // control.cpp
  void shrink_to_budget(Lock& lock, uint64_t until_ns);
  // make_room.cpp
  class RoomSearch;
  struct RoomWanted {
    uint64_t granules;
    const Block* block = nullptr;      // needs the room; null: an allocation does
    uint64_t patience_ns = still_ns;   // how long only work on the device may hold it up
    bool gives_up = true;              // the caller can go on without room, in host memory
  };
  Result<Reservation> make_room(Lock& lock, const RoomWanted& wanted);
  // room.cpp
  bool still(uint64_t patience_ns);
  void park_ready(bool small_too);
  void reclaim_parked(uint64_t granules, bool spare_claimed = false);
  uint64_t evict(uint64_t pages, const Block* except);
  uint64_t evict_clean(uint64_t pages, const Block* except);
  bool clean_ahead();
  bool evict_block(Block& block, uint64_t pages, uint64_t& started);
  int64_t all_holds() const;
  bool something_moves();
  Error no_room(uint64_t granules, const Block* wanted) const;
  std::string advice(uint64_t bytes, uint64_t budget, const std::vector<PinnedBytes>& pinned,
                     bool wanted) const;
  Error short_device(uint64_t granules, const Block* wanted, const Error& error) const;
  std::vector<PinnedBytes> pinned_bytes() const;

  // movement_owner.cpp: as Movement::Owner, beside trace(), say(), trouble(), put_aside() and
  // take_back()
  void work_begins() override;
  void leaves(Block& block) override;
  void make_young(Block& block) override;
  bool came_out(const PieceRef& ref) override;
  bool keeps_all() const override { return spilling_stopped_; }
  std::optional<uint64_t> window() const override;
  std::optional<PieceRef> next_write() override;
  std::vector<PieceRef> give_up_writes() override;
  bool leaves_host(const Block& block) const override;
  std::string last_events(const Block& block) const override;

  // lifetimes.cpp
  uint64_t tick() const;                       // hot.h, as the next three
  uint64_t next_tick();
  bool noting() const;
  uint64_t note(EventKind kind, const Block& block);  // its time
  void learn(Lock& lock);
  bool take_events();
  void replan(Lock& lock);
  void adopt(const Outlook& outlook, const lifetimes::Decision& decision, uint64_t now);
  bool carry_out();
  uint64_t movable_capacity() const;
  uint64_t clean_pages(Block& block) const;
  void lay_out_period(Outlook& outlook);
  uint64_t pages_to_come(const History::Upcoming& coming);

  // host.cpp
  uint64_t spare_bytes() const;
  uint64_t host_reserve_bytes() const;
  bool host_is_passage() const;
  uint64_t lay_out_in_memory(const Outlook& outlook, std::vector<lifetimes::Item>& items) const;
  uint64_t in_flight_most() const;

  // choose.cpp
  void consider_choice();
  bool take_stock();
  bool ponder_choice();

  // births.cpp: what the engine has to do around Births, which foresees allocations
  bool allocate_ahead();
  bool make_ready_ahead(unsigned stream, size_t bytes);
  void make_ready_now(Block& block);
  bool room_for_birth(uint64_t granules);

  // places.cpp, plan_places.cpp, regions.cpp: what the engine has to do around PlacePlanner, which
  // tells when places are planned, and PlacedBlocks, which has them
  PlacedBlocks::Place* next_place(unsigned stream, size_t bytes);
  Block* placed_block(Lock& lock, unsigned stream, size_t bytes);
  void collect_places(Region& region);
  void drop_placed(Block& block);
  void stop_placing();
  PlacePlanner::Figures places_figures() const;
  void consider_places();
  void take_places_stock();
  bool ponder_places();
  void adopt_places(const lifetimes::Places& planned, uint64_t period);
  bool fill_region(Region& region, uint64_t begin, uint64_t end);
  void count_region_bytes(bool made, uint64_t address, uint64_t bytes, unsigned stream);
  void count_region_runs(size_t before, const Region& region);
  uint64_t reclaim_regions(uint64_t granules);
  Region* make_region(unsigned stream);
  void add_regions(std::vector<BlockInfo>& blocks) const;
  bool places_in_way(uint64_t granules) const;

  // report.cpp
  void report(const std::vector<Stalled>& stalls);
  void report_events();
  // notices.cpp: the engine's part around ThrashNotices, which has the words
  std::optional<bool> look_for_thrash(const Stalled& stalled);
  uint64_t working_bytes(uint64_t since) const;
  void notice(const std::string& words);

  // fault.cpp
  Result<void> begin_fault(Lock& lock, Block& block, bool anyway);
  uint64_t prefetchable_pages(const Block& block, uint64_t most = UINT64_MAX) const;
  bool may_arrive(const Block& block) const;
  bool prefetch_span(Block& block);
  bool run_prefetches();
  void finish_drain(Block& block);
  uint64_t granules_for(const Block& block, uint64_t pages) const;
  Result<void> map_host_fault(Lock& lock, Block& block, const Error& no_room);
  void count_zero_copy(uint64_t bytes, const Error& no_room);

  const EngineOptions options_;
  const uint32_t span_granules_;
  const Driver& driver_;
  Store* const store_;
  Clock& clock_;
  TraceWriter* const trace_;
  const bool traced_;  // events go to trace_ and net_
  mutable DriverTimes driver_times_;
  mutable DriverTimedMutex mutex_{driver_times_};
  std::unique_ptr<Arena> arena_;
  DeviceHealth health_;
  Frames frames_;
  HostTier host_;
  mutable Streams streams_;
  Uses uses_{streams_};
  mutable Transfers transfers_;
  Mapper mapper_;
  Movement movement_;
  mutable BlockTable table_;
  std::array<std::atomic<ReadyBlocks*>, Streams::capacity> ready_{};
  std::vector<std::unique_ptr<ReadyBlocks>> ready_owner_;
  SmallBlocks small_blocks_;
  PlacedBlocks placed_{table_, streams_, uses_};
  // By base; of blocks in planned places, by address.
  std::unordered_map<uint64_t, std::shared_ptr<const ExportedMemory>> exported_;
  AgeOrder ages_;   // of evict(), from call to call
  AgeOrder ahead_;  // of walks that rank by themselves
  // Read at every touch, and seldom written.
  alignas(64) mutable std::atomic<bool> watching_{false};
  std::atomic<int> program_stream_{-1};  // of the last release; -1: none yet
  std::unique_ptr<EventRing> ring_;      // Policy::lifetime, as learner_; null otherwise
  // Written at every touch.
  alignas(64) std::atomic<uint64_t> ticks_{1};
  RankedMutex<Rank::freed> freed_mutex_;          // under the engine's, or alone
  std::vector<Block*> freed_;       // the driver could not be called: see settle_later()
  alignas(64) std::atomic<bool> busy_{false};
  std::unique_ptr<Learner> learner_;  // Policy::lifetime; null otherwise
  Outlook outlook_;
  bool planning_ = false;            // a thread decides, without the lock
  bool device_waited_ = false;       // a thread waits for the device, without the lock
  SpareChoice choice_{options_.spare_fraction};
  lifetimes::Plan<Block*> plan_;
  Births births_;
  PlacePlanner planner_{options_.places && !options_.adversarial, options_.no_wall_clock};
  std::atomic<bool> ponder_due_{false}, host_due_{false};
  lifetimes::Load reading_;             // of the store
  lifetimes::Fullest fullest_;
  uint64_t reading_since_ = 0;          // event number at which reading_'s period began
  std::atomic<EngineObserver*> observer_{nullptr};
  bool watch_told_ = false;          // to the observer
  std::vector<MemoryEvent> events_;  // that the observer does not know yet
  std::thread::id reporting_;        // the thread that reports them; default: none
  std::thread::id watch_begins_;  // the thread that is about to begin; default: none
  std::atomic<bool> watch_due_{false}, streams_told_{false};
  bool told_early_ = false;  // tensors are marked Told::always from the first one on
  uint64_t asleep_at_ = UINT64_MAX;  // event number at spill_away()
  HotCounters hot_;
  mutable std::array<ThreadCount, cells_own> thread_holds_{};  // by thread_cell()
  AtomicTally segment_tally_[2], reserved_tally_[2];
  Peak segment_peak_;
  mutable PartTallies parts_;
  ThrashNotices thrash_notices_;
  std::unique_ptr<Net> net_;  // firn_verify
  mutable EngineStats counted_;     // the part counted under the lock
  uint64_t sample_ns_ = 0, pinned_ns_ = 0;  // of the trace's last such rows
  bool abandoned_ = false;
};

}  // namespace firn
