// The engine behind allocator/engine/engine.h. Its functions are in the files beside it, by what
// happens to a block there (engine.cpp: opening, closing, looking up, pump()), and are declared in
// the order of those files.
//
// One mutex guards everything but the hot paths (see block.h for what they use). Functions that are
// FIRN_HELD are called with it, those that are FIRN_NOT_HELD without it. Functions that take a
// Lock& may release it to wait; whatever they were given may have changed when they return.
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
#include "allocator/blocks/recipes.h"
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
#include "allocator/movement/host_use.h"
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
#include "allocator/policy/remake_choice.h"
#include "allocator/policy/reverse_order.h"
#include "allocator/policy/spare_choice.h"
#include "allocator/record/trace.h"
#include "firn/canary.h"
#include "firn/ranked_mutex.h"
#include "firn/thread_safety.h"

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
const char* why_it_stays(const Block& block) FIRN_HELD;

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
  Result<void> start() FIRN_NOT_HELD;

  Result<void*> allocate(size_t bytes, CUstream stream, size_t requested, Told told) override
      FIRN_NOT_HELD;
  Result<void> free(void* pointer) override FIRN_NOT_HELD;
  Result<void> free_behind(void* pointer, CUstream fence, uint64_t given) override FIRN_NOT_HELD;
  Result<void> record_stream(const void* pointer, CUstream stream, CUcontext context) override
      FIRN_NOT_HELD;
  CUcontext context() const override { return options_.context; }
  void may_end(CUstream stream) override FIRN_NOT_HELD;
  void stream_ends(CUstream stream) override FIRN_NOT_HELD;
  void context_ends(CUcontext context) override FIRN_NOT_HELD;
  CUstream stream_of(CUstream stream, CUcontext context) override FIRN_NOT_HELD;
  Addresses addresses() const override { return {arena_->base(), arena_->bytes()}; }
  bool contains(const void* pointer) const override;
  std::optional<BlockInfo> find(const void* pointer) const override;
  Result<Hold> touch(const void* pointer, CUstream stream, Access access, Seen seen) override
      FIRN_NOT_HELD;
  Result<Hold> touch_anyway(const void* pointer, CUstream stream, Access access,
                            Seen seen) override FIRN_NOT_HELD;
  void count_refusal() override FIRN_NOT_HELD;
  void release(Hold hold, CUstream stream) override FIRN_NOT_HELD;
  size_t touch_many(std::span<const uint64_t> addresses, Access access, Hold* holds, size_t& held,
                    Seen seen) override FIRN_NOT_HELD;
  void release_many(std::span<const Hold> holds, CUstream stream) override FIRN_NOT_HELD;
  void used_on(std::span<const Hold> holds, CUstream stream) override FIRN_NOT_HELD;
  void saw_stream(CUstream stream) override FIRN_NOT_HELD;
  void release_unused(std::span<const Hold> holds) override FIRN_NOT_HELD;
  Hold hold_apart(const void* pointer) override;
  void release_apart(Hold hold) override FIRN_NOT_HELD;
  Hold hold_new(const void* pointer, const char* maker) override;
  void allocated_outside(const void* pointer) override;
  Result<OnHost> on_host(const void* pointer, Access access) override FIRN_NOT_HELD;
  Result<void> end_on_host(uint64_t name) override FIRN_NOT_HELD;
  Result<void> pin(const void* pointer, const char* reason) override FIRN_NOT_HELD;
  Result<void> unpin(const void* pointer) override FIRN_NOT_HELD;
  Result<void> give_address(const void* pointer, const char* reason) override FIRN_NOT_HELD;
  Result<std::shared_ptr<const ExportedMemory>> export_memory(const void* pointer,
                                                              const char* reason) override
      FIRN_NOT_HELD;
  Result<void> allow_peer(int device) override FIRN_NOT_HELD;
  Result<void> prefetch(std::span<const Addresses> ranges, CUstream stream) override FIRN_NOT_HELD;
  Result<void> cold(std::span<const Addresses> ranges, std::optional<CUstream> stream) override
      FIRN_NOT_HELD;
  void remake_with(Remaker* remaker) override;
  Result<void> give_recipe(const void* pointer, const RecipeOf& recipe) override FIRN_NOT_HELD;
  bool choose_remake(const void* pointer, bool chosen) override FIRN_NOT_HELD;
  void note_remake(const RemakeInUse& in_use) override FIRN_NOT_HELD;
  std::vector<uint64_t> take_ended_recipes() override FIRN_NOT_HELD;
  Iteration iteration() const override;
  bool ask_what_to_remake(lifetimes::Operators operators, uint64_t iteration_ns,
                          std::function<void(RemakeChoice)> answer) override FIRN_NOT_HELD;
  bool pump() override FIRN_NOT_HELD;
  bool ponder() override FIRN_NOT_HELD;
  bool prepare_host() override FIRN_NOT_HELD;
  bool give_host_back(bool pressed) override FIRN_NOT_HELD;
  bool host_due() const override { return host_due_.load(std::memory_order_acquire); }
  bool ponder_due() const override { return ponder_due_.load(std::memory_order_acquire); }
  bool busy() const override;
  void trim() override FIRN_NOT_HELD;
  Result<void> set_budget(uint64_t bytes) override FIRN_NOT_HELD;
  uint64_t give_way(uint64_t bytes, uint64_t patience_ns) override FIRN_NOT_HELD;
  void spill_all() override FIRN_NOT_HELD;
  void spill_away() override FIRN_NOT_HELD;
  void observe(EngineObserver* observer) override FIRN_NOT_HELD;
  void stop_spilling(bool stopped, bool for_good) override FIRN_NOT_HELD;
  void waited(const WaitedBy& who) override FIRN_NOT_HELD;
  void made_by(const void* pointer, std::string_view maker) override FIRN_NOT_HELD;
  Result<void*> allocate_segment(size_t bytes, CUstream stream, bool small,
                                 const char* reason) override FIRN_NOT_HELD;
  void count(const PartEvent& event) override FIRN_NOT_HELD;
  bool watching() const override { return watching_.load(std::memory_order_relaxed); }
  EngineStats stats() const override FIRN_NOT_HELD;
  Failures failures() const override;
  uint64_t zero_copy_bytes() const override FIRN_NOT_HELD;
  uint64_t budget_bytes() const override FIRN_NOT_HELD;
  uint64_t room_at_most() const override FIRN_NOT_HELD;
  PoolTallies tallies() const override FIRN_NOT_HELD;
  void reset_peaks() override FIRN_NOT_HELD;
  void reset_totals() override FIRN_NOT_HELD;
  std::vector<BlockInfo> blocks() const override FIRN_NOT_HELD;
  void check() const override FIRN_NOT_HELD;
  void abandon() override;

 private:
  /// A call of the engine's: makes the device's context current, and counts the thread's time in
  /// the driver. Begins before the lock is taken, and ends after it: lines said meanwhile are
  /// written then, and the observer is told.
  struct Entered : DriverTimeScope, Driver::ContextGuard {
    explicit Entered(EngineImpl& engine);
    ~Entered() FIRN_NOT_HELD;
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
  void left_undone() noexcept FIRN_NOT_HELD;
  Block* block_at(uint64_t address) const;
  Block* live_at(const void* pointer, bool exact) const;
  BlockInfo describe_block(const Block& block, uint64_t w) const;  // w: its word
  Block* large_at(uint32_t number, uint64_t address) const;  // hot.h; null: none
  bool pump_locked() FIRN_HELD;
  void wait(Lock& lock, uint64_t ns) FIRN_HELD;
  void await(Lock& lock, Use use) FIRN_HELD;
  bool carry_out_device_wait(Lock& lock) FIRN_HELD;
  void begin_stall() FIRN_HELD;
  void count_stall(uint64_t begin_ns, const Block* waited_for, uint64_t room = 0) FIRN_HELD;
  void trace(const char* event, const Block& block, const char* detail = "") override;
  void trace_sample() FIRN_HELD;
  void say(const std::string& words) const override;
  void trouble(const std::string& words) override FIRN_HELD;
  Result<void> can_use(const Driver::ContextGuard& context) FIRN_NOT_HELD;
  bool settle_all(Lock& lock) FIRN_HELD;
  void give_all(Lock& lock) FIRN_HELD;
  void reach_watch() FIRN_NOT_HELD;
  void prove_told(Block& block) FIRN_HELD;
  bool operators_in_way(const Error& error, size_t bytes) const FIRN_HELD;
  bool may_be_in_host(const Error& error, size_t bytes) FIRN_NOT_HELD;
  bool ask_for_host(Lock& lock) FIRN_HELD;
  uint64_t staying_bytes(bool with_held) const FIRN_HELD;

  // allocate.cpp
  int see_stream(CUstream stream, CUcontext context = nullptr) FIRN_HELD;
  ReadyBlocks& ready(unsigned stream) const;  // hot.h
  void* hand_out(Block& block, size_t bytes, size_t requested, unsigned cell);
  template <class Attempt>
  Result<void*> with_watching(size_t bytes, Attempt&& attempt) FIRN_NOT_HELD;  // hot.h
  Result<Block*> large_block(Lock& lock, unsigned stream, size_t bytes) FIRN_HELD;
  Block* ready_block(unsigned stream, unsigned size_class) FIRN_HELD;
  uint32_t pages_of(size_t bytes) const {
    return size_class::pages(bytes, span_granules_ * granule_pages);
  }
  Shape shape_of(uint32_t pages) const FIRN_HELD;
  Result<Mapping> begin_block(unsigned stream, size_t bytes, Reservation room, const Shape& shape)
      FIRN_HELD;
  Result<Mapping> begin_block(unsigned stream, size_t bytes, std::vector<Frame> frames,
                              const Shape& shape) FIRN_HELD;
  Result<Block*> finish_block(Lock& lock, Mapping& mapping) FIRN_HELD;
  void enlist(Block& block) FIRN_HELD;
  void forget_block(Block& block) FIRN_HELD;
  Result<Block*> make_host_block(Lock& lock, unsigned stream, size_t bytes, const Error& no_room)
      FIRN_HELD;
  Result<void*> allocate_small(Lock& lock, unsigned stream, size_t bytes, size_t requested,
                               Told told) FIRN_HELD;
  Result<void> add_segment(Lock& lock, unsigned stream) FIRN_HELD;
  Block* take_parked(unsigned stream, uint32_t pages) FIRN_HELD;

  // free.cpp
  // (It takes the lock, but in a callback of the driver's: that is more than the analysis follows.)
  Result<void> free_slow(Block& block) FIRN_NOT_HELD FIRN_NO_ANALYSIS;
  void count_free(Block& block, unsigned cell);
  void finish_free(Block& block) FIRN_HELD;
  void settle_later(Block& block) FIRN_NOT_HELD;
  void settle_freed() FIRN_HELD;
  void end_recipe(Block& block) FIRN_HELD;
  void release_kept(std::span<Block* const> inputs) FIRN_HELD;
  void lets_inputs_go(Recipe& recipe) FIRN_HELD;
  void end_readers(const Block& block, bool freed = false) FIRN_HELD;
  bool keep_for_readers(Block& block) FIRN_HELD;
  void make_ready(Block& block, unsigned cell) FIRN_NOT_HELD;
  void route_freed(Block& block) FIRN_HELD;
  void look_at_deferred() FIRN_NOT_HELD;
  void settle_deferred() FIRN_HELD;
  bool fenced_wait() const FIRN_HELD;
  static uint64_t export_key(const Block& block) FIRN_HELD {
    return block.place_bytes != 0 ? block.address : block.base();
  }
  const Use* fence_of(const Block& block) const FIRN_HELD;
  void drop_descriptor(Block& block) FIRN_HELD;

  // small.cpp, segments.cpp: the engine's part around SmallBlocks, which has the segments;
  // parts.cpp, stats.cpp
  bool release_segments() FIRN_HELD;
  /// The segment of a small block, or of the block that stands for the segment.
  Segment& segment_of(const Block& block) const {
    return small_blocks_.segment(arena_->at(block.address));
  }
  Block* whole_at(uint32_t number, uint64_t address, Seen seen) const;  // hot.h
  Result<Hold> touch_small(uint32_t number, uint64_t address, CUstream stream, Access access,
                           Seen seen) FIRN_NOT_HELD;
  void begin_watching() FIRN_HELD;
  void make_whole(uint32_t index) FIRN_HELD;
  Block* moved_with(Block* block) const;
  State state_of(const Block& block) const;
  void use_with_segment(const Block& small) FIRN_HELD;
  bool put_aside(Block& whole) override FIRN_HELD;
  void take_back(Block& whole) override FIRN_HELD;
  void take_back_later() FIRN_HELD;
  void retire_small(Block& block) FIRN_HELD;
  void end_segment(Block& whole) FIRN_HELD;
  void drop_segment(Block& whole) FIRN_HELD;
  uint64_t staying_segments(bool look_inside) const FIRN_HELD;
  void uncount_segment(Block& block);
  void add_inactive(PoolTallies& tallies) const FIRN_HELD;
  void count_segment(bool made, bool large, uint64_t address, uint64_t bytes, unsigned stream)
      FIRN_HELD;
  void tell(const MemoryEvent& event) FIRN_HELD;

  // map.cpp: what the engine has to do around Mapper, which maps
  bool claim_ahead(Block& block, uint64_t pages, uint32_t first = 0) FIRN_HELD;
  Result<void> carry_out(Lock& lock, Mapping& mapping) FIRN_HELD;
  bool carry_out_mappings(Lock& lock) FIRN_HELD;
  void drop_births() FIRN_HELD;
  void unmap_spans(Block& block) FIRN_HELD;
  bool carry_out_unmappings(Lock& lock, uint64_t granules = UINT64_MAX) FIRN_HELD;
  bool carry_out_unmappings(Lock& lock, const Block& block) FIRN_HELD;
  void end_dropped(Block& block) FIRN_HELD;
  uint64_t pages_soon() const FIRN_HELD;

  void wipe(Block& block) FIRN_HELD;  // export.cpp

  // touch.cpp
  template <class Mark>
  Result<void> pin_with(Block& block, Mark&& mark) FIRN_NOT_HELD;
  static bool proves(Seen seen, uint64_t w);  // of a block with this word
  /// For whom a block is touched.
  enum class For : uint8_t {
    program,
    program_anyway,  // touch_anyway()
    recipe,          // read to make another again, or made again: also when it was freed
    recipe_anyway,
  };
  Result<Hold> touch_slow(Block& block, uint64_t address, CUstream stream, Access access, Seen seen,
                          For whom) FIRN_NOT_HELD;
  Error unreadable(const Block& block, std::optional<uint64_t> stall_begin) FIRN_HELD;
  int index_of(CUstream stream) FIRN_NOT_HELD;                 // hot.h, as the next three
  void set_use(Block& block, Use use) FIRN_NOT_HELD;
  void drop_hold(Block& block) FIRN_NOT_HELD;
  int& thread_holds() const;  // the calling thread's on this device's blocks
  int find_index(CUstream stream) FIRN_NOT_HELD;
  void wait_for_stream(CUstream stream) FIRN_NOT_HELD;
  void change_use(Block& block, Use use) FIRN_NOT_HELD;
  void last_hold_dropped(Block& block, uint64_t word_before) FIRN_NOT_HELD;
  void drop_last_hold(Block& block, uint64_t word_before) FIRN_HELD;
  Block* named_by(Block& block, uint64_t address) const FIRN_HELD;
  Result<void> order_behind(unsigned index, Use use) FIRN_HELD;
  Result<bool> written(Lock& lock, Block& block, uint64_t address, CUstream stream, int index,
                       bool anyway) FIRN_HELD;
  static int& shared_cell_holds(int device);
  Result<void> await_host_use(Lock& lock, Block& block) FIRN_HELD;

  // hints.cpp
  Result<void> hint(Hint::Kind kind, std::span<const Addresses> ranges,
                    std::optional<CUstream> stream) FIRN_NOT_HELD;
  std::optional<Use> place_in(CUstream stream) FIRN_HELD;
  uint64_t next_block(uint64_t address) const FIRN_HELD;
  template <class Act>
  bool each_in(const Addresses& range, Act&& act) FIRN_HELD;
  void begin_early(const Hint& hint) FIRN_HELD;

  // control.cpp
  void shrink_to_budget(Lock& lock, uint64_t until_ns) FIRN_HELD;
  // make_room.cpp
  class RoomSearch;
  struct RoomWanted {
    uint64_t granules;
    const Block* block = nullptr;      // needs the room; null: an allocation does
    uint64_t patience_ns = still_ns;   // how long only work on the device may hold it up
    bool gives_up = true;              // the caller can go on without room, in host memory
  };
  Result<Reservation> make_room(Lock& lock, const RoomWanted& wanted) FIRN_HELD;
  // room.cpp
  bool still(uint64_t patience_ns) FIRN_HELD;
  void park_ready(bool small_too) FIRN_HELD;
  void reclaim_parked(uint64_t granules, bool spare_claimed = false) FIRN_HELD;
  uint64_t evict(uint64_t pages, const Block* except) FIRN_HELD;
  uint64_t evict_clean(uint64_t pages, const Block* except) FIRN_HELD;
  bool clean_ahead() FIRN_HELD;
  bool evict_block(Block& block, uint64_t pages, uint64_t& started) FIRN_HELD;
  int64_t all_holds() const FIRN_HELD;
  bool something_moves() FIRN_HELD;
  Error no_room(uint64_t granules, const Block* wanted) const FIRN_HELD;
  std::string advice(uint64_t bytes, uint64_t budget, const std::vector<PinnedBytes>& pinned,
                     bool wanted) const FIRN_HELD;
  Error short_device(uint64_t granules, const Block* wanted, const Error& error) const FIRN_HELD;
  std::vector<PinnedBytes> pinned_bytes() const FIRN_HELD;

  // movement_owner.cpp: as Movement::Owner, beside trace(), say(), trouble(), put_aside() and
  // take_back()
  void work_begins() override FIRN_HELD;
  void leaves(Block& block) override FIRN_HELD;
  void dropped(const Block& block) override FIRN_HELD;
  void make_young(Block& block) override FIRN_HELD;
  void lost(Block& block) override FIRN_HELD;
  bool came_out(const PieceRef& ref) override FIRN_HELD;
  /// (Before watching begins, uses go untold: a kernel may have any block.)
  bool keeps_all() const override FIRN_HELD {
    return spilling_stopped_ || (observer_.load(std::memory_order_relaxed) &&
                                 !watching_.load(std::memory_order_relaxed));
  }
  std::optional<uint64_t> window() const override FIRN_HELD;
  std::optional<PieceRef> next_write() override FIRN_HELD;
  std::vector<PieceRef> give_up_writes() override FIRN_HELD;
  bool leaves_host(const Block& block) const override FIRN_HELD;
  std::string last_events(const Block& block) const override FIRN_HELD;

  // lifetimes.cpp
  uint64_t tick() const;                       // hot.h, as the next three
  uint64_t next_tick();
  bool noting() const;
  uint64_t note(EventKind kind, const Block& block);  // its time
  void learn(Lock& lock) FIRN_HELD;
  bool take_events() FIRN_HELD;
  void replan(Lock& lock) FIRN_HELD;
  void adopt(const Outlook& outlook, const lifetimes::Decision& decision,
             const lifetimes::Decision& uses, uint64_t now) FIRN_HELD;
  bool carry_out() FIRN_HELD;
  bool fetch_in_reverse() FIRN_HELD;
  void note_needed(const Block& block) FIRN_HELD;
  uint64_t movable_capacity() const FIRN_HELD;
  uint64_t clean_pages(Block& block) const FIRN_HELD;   // tiers.cpp, as the next two
  bool may_arrive(const Block& block) const FIRN_HELD;
  bool prefetch_span(Block& block) FIRN_HELD;
  void lay_out_period(Outlook& outlook) FIRN_HELD;
  uint64_t pages_to_come(const History::Upcoming& coming) FIRN_HELD;

  // host.cpp
  uint64_t spare_bytes() const FIRN_HELD;
  bool host_is_passage() const FIRN_HELD;
  void lay_out_in_memory(const Outlook& outlook, std::vector<lifetimes::Item>& items) const
      FIRN_HELD;
  uint64_t in_flight_most() const FIRN_HELD;

  // on_host.cpp
  Result<void> leave_for_host(Lock& lock, Block& block, Access access) FIRN_HELD;
  Result<void> end_recipes_for_host(Lock& lock, Block& block) FIRN_HELD;
  Result<OnHost> gather_at_host(Lock& lock, Block& block, Access access) FIRN_HELD;
  void finish_host_use(uint64_t name) FIRN_HELD;

  // choose.cpp
  void consider_choice() FIRN_HELD;
  std::optional<lifetimes::RehearsalMachine> machine() const FIRN_HELD;
  bool take_stock() FIRN_HELD;
  bool ponder_choice() FIRN_NOT_HELD;
  bool ponder_remake() FIRN_NOT_HELD;

  // births.cpp: what the engine has to do around Births, which foresees allocations
  bool allocate_ahead() FIRN_HELD;
  bool make_ready_ahead(unsigned stream, size_t bytes) FIRN_HELD;
  void make_ready_now(Block& block) FIRN_HELD;
  bool room_for_birth(uint64_t granules) FIRN_HELD;

  // places.cpp, plan_places.cpp, regions.cpp: what the engine has to do around PlacePlanner, which
  // tells when places are planned, and PlacedBlocks, which has them
  PlacedBlocks::Place* next_place(unsigned stream, size_t bytes) FIRN_HELD;
  Block* placed_block(Lock& lock, unsigned stream, size_t bytes) FIRN_HELD;
  void collect_places(Region& region) FIRN_HELD;
  void drop_placed(Block& block) FIRN_HELD;
  void stop_placing() FIRN_HELD;
  PlacePlanner::Figures places_figures() const FIRN_HELD;
  void consider_places() FIRN_HELD;
  void take_places_stock() FIRN_HELD;
  bool ponder_places() FIRN_NOT_HELD;
  void adopt_places(const lifetimes::Places& planned, uint64_t period) FIRN_HELD;
  bool fill_region(Region& region, uint64_t begin, uint64_t end) FIRN_HELD;
  void count_region_bytes(bool made, uint64_t address, uint64_t bytes, unsigned stream) FIRN_HELD;
  void count_region_runs(size_t before, const Region& region) FIRN_HELD;
  uint64_t reclaim_regions(uint64_t granules) FIRN_HELD;
  Region* make_region(unsigned stream) FIRN_HELD;
  void add_regions(std::vector<BlockInfo>& blocks) const FIRN_HELD;
  bool places_in_way(uint64_t granules) const FIRN_HELD;

  // report.cpp
  void report(const std::vector<Stalled>& stalls) FIRN_NOT_HELD;
  void report_events() FIRN_NOT_HELD;
  // notices.cpp: the engine's part around ThrashNotices, which has the words
  std::optional<bool> look_for_thrash(const Stalled& stalled) FIRN_HELD;
  uint64_t working_bytes(uint64_t since) const FIRN_HELD;
  void notice(const std::string& words) FIRN_HELD;

  // fault.cpp
  Result<void> begin_fault(Lock& lock, Block& block, bool anyway) FIRN_HELD;
  uint64_t prefetchable_pages(const Block& block, uint64_t most = UINT64_MAX,
                              SpanRange spans = {}) const FIRN_HELD;
  uint64_t pages_to_fetch(const Hint& hint) const FIRN_HELD;
  void take_hint(const Hint& hint) FIRN_HELD;
  bool take_hints() FIRN_HELD;
  bool run_prefetches() FIRN_HELD;
  void finish_drain(Block& block) FIRN_HELD;
  uint64_t granules_for(const Block& block, uint64_t pages) const FIRN_HELD;
  Result<void> map_host_fault(Lock& lock, Block& block, const Error& no_room) FIRN_HELD;
  void count_zero_copy(uint64_t bytes, const Error& no_room) FIRN_HELD;
  Result<void> make_again(Lock& lock, Block& block, CUstream stream, unsigned index, bool anyway)
      FIRN_HELD;
  Result<void> remake(Lock& lock, Block& block, CUstream stream, unsigned index) FIRN_HELD;
  void undo_remake(Lock& lock, Block& block) FIRN_HELD;
  void note_remake_reads(const std::vector<Block*>& inputs, Use read) FIRN_HELD;
  Result<void> bring_back_reader(Lock& lock, Block& reader, CUstream stream, bool anyway)
      FIRN_HELD;
  void hold_as_it_is(Block& block) FIRN_HELD;
  void drop_hold_held(Block& block) FIRN_HELD;

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
  std::vector<std::unique_ptr<ReadyBlocks>> ready_owner_ FIRN_GUARDED;
  SmallBlocks small_blocks_;
  PlacedBlocks placed_{table_, streams_, uses_};
  Recipes recipes_ FIRN_GUARDED;
  std::unordered_map<uint64_t, std::unique_ptr<HostUse>> host_uses_ FIRN_GUARDED;  // by name
  uint64_t host_use_names_ FIRN_GUARDED = 0;  // given, ever
  bool host_use_over_ FIRN_GUARDED = false;   // one, since the last decision
  std::atomic<Remaker*> remaker_{nullptr};
  // By base; of blocks in planned places, by address.
  std::unordered_map<uint64_t, std::shared_ptr<const ExportedMemory>> exported_ FIRN_GUARDED;
  AgeOrder ages_ FIRN_GUARDED;   // of evict(), from call to call
  AgeOrder ahead_ FIRN_GUARDED;  // of walks that rank by themselves
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
  Outlook outlook_ FIRN_GUARDED;
  bool planning_ FIRN_GUARDED = false;       // a thread decides, without the lock
  CUcontext device_waited_ FIRN_GUARDED = nullptr;  // a thread waits for it, without the lock
  SpareChoice choice_{options_.spare_fraction};
  lifetimes::Plan<Block*> plan_ FIRN_GUARDED;
  ReverseOrder reverse_ FIRN_GUARDED;
  struct RemakeQuestion {
    lifetimes::Operators operators;
    lifetimes::RehearsalMachine machine;
    uint64_t iteration_ns;
    std::function<void(RemakeChoice)> answer;
  };
  std::optional<RemakeQuestion> remake_question_ FIRN_GUARDED;
  std::atomic<uint64_t> short_period_{0};    // events of an iteration that does not fit; 0: none
  Births births_ FIRN_GUARDED;
  PlacePlanner planner_ FIRN_GUARDED{options_.places && !options_.adversarial,
                                     options_.no_wall_clock};
  std::atomic<bool> ponder_due_{false}, host_due_{false};
  lifetimes::Load reading_ FIRN_GUARDED;  // of the store
  lifetimes::Fullest fullest_ FIRN_GUARDED;
  uint64_t reading_since_ FIRN_GUARDED = 0;  // event number at which reading_'s period began
  std::atomic<EngineObserver*> observer_{nullptr};
  bool watch_told_ FIRN_GUARDED = false;         // to the observer
  std::vector<MemoryEvent> events_ FIRN_GUARDED;  // that the observer does not know yet
  std::thread::id reporting_ FIRN_GUARDED;       // the thread that reports them; default: none
  std::thread::id watch_begins_ FIRN_GUARDED;    // the thread that is about to begin; default: none
  std::atomic<bool> watch_due_{false}, streams_told_{false};
  bool told_early_ FIRN_GUARDED = false;    // tensors are marked Told::always from the first one on
  uint64_t asleep_at_ FIRN_GUARDED = UINT64_MAX;  // event number at spill_away()
  HotCounters hot_;
  mutable std::array<ThreadCount, cells_own> thread_holds_{};  // by thread_cell()
  AtomicTally segment_tally_[2], reserved_tally_[2];
  Peak segment_peak_;
  mutable PartTallies parts_;
  ThrashNotices thrash_notices_ FIRN_GUARDED;
  std::unique_ptr<Net> net_;                  // firn_verify
  mutable EngineStats counted_ FIRN_GUARDED;  // the part counted under the lock
  // Of the trace's last such rows.
  uint64_t sample_ns_ FIRN_GUARDED = 0, pinned_ns_ FIRN_GUARDED = 0;
  bool abandoned_ = false;
};

}  // namespace firn
