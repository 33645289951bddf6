// One device's memory: blocks at fixed addresses in an arena, frames under a budget, and the engine
// that moves cold blocks to host memory and to the store and brings them back before their use.
//
// Passive: it owns no thread and reads no clock of its own. Application threads enter it by the
// calls below; a service thread (or a simulator) calls pump(). All calls are thread-safe.
// Hot paths without lock and allocation: touch()/release() of a resident block; allocate()/free()
// served by the stream's ready blocks.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/engine/engine_options.h"
#include "allocator/engine/engine_stats.h"
#include "allocator/engine/observer.h"
#include "allocator/lifetimes/events.h"
#include "allocator/memory/exported_memory.h"
#include "firn/clock.h"
#include "firn/driver.h"
#include "firn/remaker.h"
#include "firn/store.h"

namespace firn {

struct Block;
struct RemakeChoice;  // allocator/policy/remake_choice.h
namespace lifetimes {
struct Operators;  // allocator/lifetimes/operators.h
}

enum class Access : uint8_t { read, write };
/// Are all uses of the block seen, as this one is? Only then may it leave between them: an `always`
/// touch proves so; a `this_time` touch does for blocks that were allocated_outside().
enum class Seen : uint8_t { always, this_time };
/// For a block that is allocated before watching begins: will its uses be reported? They will if it
/// is a tensor's storage, which watched operators take and return: such blocks may leave once
/// watching begins. One that is `unknown` may be a workspace that its library keeps.
enum class Told : uint8_t { unknown, always };

/// A touched block, held on the device until release().
struct Hold {
  Block* block = nullptr;
};
/// A block's bytes in pinned host memory, until end_on_host(). Pieces follow each other without a
/// gap, by their offsets in the block; where each lies is of no order.
struct OnHost {
  struct Piece {
    uint64_t offset;
    size_t bytes;
    std::byte* data;
  };
  uint64_t name = 0;
  std::vector<Piece> pieces;
};

class TraceWriter;  // allocator/record/trace.h

class Engine {
 public:
  /// `store` may be null: then host memory is the only tier. `driver`, `store`, `clock` and `trace`
  /// outlive the engine; `queue` is its completion queue in the store.
  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options, const Driver& driver,
                                              Store* store, unsigned queue, Clock& clock,
                                              TraceWriter* trace = nullptr);
  /// Waits for everything in flight, then gives all memory back.
  virtual ~Engine() = default;
  /// Forgets everything without another driver or store call: process exit, fork in the child.
  virtual void abandon() = 0;
  /// The device's primary context.
  virtual CUcontext context() const = 0;

  /// A block of at least `bytes` (0: null), for work on `stream`; resident, contents undefined.
  /// out_of_memory says what is pinned and why, and which knob changes it.
  /// `requested`: what statistics report as asked for, if less.
  /// If memory is short before watching has begun, it begins first.
  virtual Result<void*> allocate(size_t bytes, CUstream stream, size_t requested = 0,
                                 Told told = Told::unknown) = 0;
  /// Frees a block on its allocation stream: reusable there at once, elsewhere after its uses are
  /// over. invalid_argument for foreign, interior and already freed pointers: nothing was changed.
  virtual Result<void> free(void* pointer) = 0;
  /// Frees a block that any work may use: it is reused, on its own stream too, only once all that
  /// `fence` waits for by now is over. Threads that lack room wait for that, up to two minutes.
  /// `fence`: a stream of the caller's for this purpose only, which uses no block itself, the same
  /// at each call. `given` is larger than before if the fence has got something more to wait for
  /// since. Errors: invalid_argument, with nothing changed.
  virtual Result<void> free_behind(void* pointer, CUstream fence, uint64_t given) = 0;
  /// Work on `stream` uses the block: after free() it is reused only once that work is over.
  /// `context`: the stream's; null: this device's.
  virtual Result<void> record_stream(const void* pointer, CUstream stream,
                                     CUcontext context = nullptr) = 0;

  /// The program made `stream` by itself and may destroy it at any time: from here its handle is
  /// only compared. When its work has to be over, this costs a wait for the device. Lock-free once
  /// known.
  virtual void may_end(CUstream stream) = 0;

  /// The stream is about to be destroyed by its owner: its work so far can be waited for without
  /// it, and a later stream may have its handle. Streams that were never seen are ignored.
  virtual void stream_ends(CUstream stream) = 0;
  /// A context other than the device's is about to be destroyed, its work is over: stream_ends()
  /// for all its streams.
  virtual void context_ends(CUcontext context) = 0;
  /// The name that touch(), release() and record_stream() have for another device's stream.
  virtual CUstream stream_of(CUstream stream, CUcontext context) = 0;

  /// Is `pointer` inside this device's arena? Lock-free.
  virtual bool contains(const void* pointer) const = 0;
  struct Addresses {
    uint64_t base = 0, bytes = 0;
  };
  /// The arena's.
  virtual Addresses addresses() const = 0;
  /// The live block around `pointer`.
  virtual std::optional<BlockInfo> find(const void* pointer) const = 0;

  /// Work that uses the block around `pointer` is about to be enqueued on `stream`: makes it
  /// resident (waits for a fault, makes `stream` wait for its copy) and holds it until release().
  /// For a small block its segment is resident and held, once operators are watched; before that
  /// the hold is empty, as for foreign pointers. Errors: out_of_memory, lost.
  virtual Result<Hold> touch(const void* pointer, CUstream stream, Access access,
                             Seen seen = Seen::always) = 0;
  /// As touch(), for callers that cannot stop the work: where the budget has no room, the block is
  /// mapped to host memory at its address, beyond the budget, which kernels reach over the link,
  /// and leaves again after release(). Counted in zero_copy_bytes. Errors: lost, driver.
  virtual Result<Hold> touch_anyway(const void* pointer, CUstream stream, Access access,
                                    Seen seen = Seen::always) = 0;
  /// The program gets an error: memory was refused. Counts in oom_count. (Callers may handle
  /// out_of_memory otherwise; no error counts by itself.)
  virtual void count_refusal() = 0;
  /// The work has been enqueued: from here the block's age and last use count.
  virtual void release(Hold hold, CUstream stream) = 0;
  /// touch() of the blocks around many addresses at once, as far as they are resident with their
  /// bytes: the hot path of launches. Appends a hold for each block to `holds`, which has room for
  /// `addresses.size()` more, and returns how many addresses are done; the next one needs touch().
  /// Lock-free.
  virtual size_t touch_many(std::span<const uint64_t> addresses, Access access, Hold* holds,
                            size_t& held, Seen seen = Seen::always) = 0;
  /// release() of many, none of them empty. Lock-free as release() is.
  virtual void release_many(std::span<const Hold> holds, CUstream stream) = 0;
  /// The holder of these blocks has enqueued work on `stream` as well that may use them: those uses
  /// count too. Before release(). Takes the lock.
  virtual void used_on(std::span<const Hold> holds, CUstream stream) = 0;
  /// Work is enqueued on `stream` whose uses are not watched yet. Lock-free once known.
  virtual void saw_stream(CUstream stream) = 0;
  /// Releases holds without a use: the work was refused, nothing was enqueued. No hold is empty.
  virtual void release_unused(std::span<const Hold> holds) = 0;
  /// Holds the block at `pointer` as it is, without a use, until release_apart() from any thread.
  /// Threads that wait for room wait for that. Empty for a block that is not resident, and for
  /// small ones before operators are watched.
  virtual Hold hold_apart(const void* pointer) = 0;
  virtual void release_apart(Hold hold) = 0;
  /// A block just allocated inside an operator: holds it as touch() would, without proving that its
  /// uses are seen. `maker` (a string that lives on): who allocated it, for notices. Empty for
  /// small ones: those stay until they are touched.
  virtual Hold hold_new(const void* pointer, const char* maker = nullptr) = 0;
  /// A block just allocated in no operator, while operators are observed: the program's own memory,
  /// as torch.compile's code allocates for its kernels, not shared by operators behind the
  /// program's back. A touch that is Seen::this_time proves it too.
  virtual void allocated_outside(const void* pointer) = 0;

  /// The processor is about to use the block around `pointer`: brings all of it to host memory,
  /// from the device if it is there (behind all reported work so far, which is waited for), or from
  /// the store, and holds it there until end_on_host(). No device memory is taken, and nothing
  /// crosses the link that is not on the device. A touch waits for the end, as does a free. For
  /// blocks that leave by themselves: of 1 MiB and more, that an operator was seen to use, not
  /// pinned. One use of a block at a time, by a thread that holds none (touch()). Begins watching.
  /// Written, the block has its bytes in host memory alone then, and goes on to the store from
  /// there; its recipe, and those that read it, end (it comes to the device for that, once).
  /// Errors: invalid_argument (not such a block; in use there already; spilling is stopped),
  /// host_out_of_memory (firn_host cannot hold it beside what is in use there; nobody waits for
  /// uses of others), lost, driver, and out_of_memory of a block that is made again first.
  virtual Result<OnHost> on_host(const void* pointer, Access access) = 0;
  /// The processor is done: the pieces' addresses are void. With the name of an OnHost, once.
  virtual Result<void> end_on_host(uint64_t name) = 0;

  /// Pins a block whose uses touch() does not all see: it is never evicted. (A new block stays,
  /// too, until it was touched once with Seen::always.) `reason` must outlive the engine. The
  /// caller may write, on any stream: copies elsewhere are dropped, and the bytes waited for.
  virtual Result<void> pin(const void* pointer, const char* reason) = 0;
  virtual Result<void> unpin(const void* pointer) = 0;
  /// Memory that its owner cuts into parts: pinned for `reason`, counted as a segment (of the small
  /// blocks' pool when `small`) and not as an allocation. free() gives it back.
  virtual Result<void*> allocate_segment(size_t bytes, CUstream stream, bool small,
                                         const char* reason) = 0;
  /// Reports what its owner does with parts of it, for statistics and recordings.
  virtual void count(const PartEvent& event) = 0;
  /// The block's bare address goes to somebody whose uses are not reported: pinned until it is
  /// freed, however often this is called. unpin() beyond the counted pins undoes it. Lock-free when
  /// called again. Ignores foreign pointers.
  virtual Result<void> give_address(const void* pointer, const char* reason) = 0;
  /// The memory around an address in a live block, for another process to map: pinned for `reason`
  /// until the block is freed. The program keeps it while others use it. Errors: invalid_argument
  /// (no live block), out_of_memory (not on the device, and no room), driver.
  virtual Result<std::shared_ptr<const ExportedMemory>> export_memory(const void* pointer,
                                                                      const char* reason) = 0;
  /// Kernels of `device` may use this device's memory directly: all that is mapped, now and later,
  /// is open to it.
  virtual Result<void> allow_peer(int device) = 0;
  /// The live blocks in these addresses are used soon, by work that will be queued on `stream`. It
  /// acts at its place in the stream: once what was queued there before is over, the blocks are
  /// brought back, room is made for them, and they count as used then. Where there is room for a
  /// block already, so that nothing has to leave, it begins to come at the call. Of a large block
  /// the spans (EngineOptions::span_bytes) that the addresses touch come. Hints of one stream act
  /// in their order; the first that lacks room holds up those that are due after it, and none
  /// begins while a thread waits for memory.
  /// Void for blocks that are freed before its place, and ignored, without an error, while `stream`
  /// is captured, where the driver refuses an event, and while HintQueue::most others wait. What
  /// is to be made again (give_recipe()) is made at its use. On a stream that may_end() it acts at
  /// the call, as it does where nothing is queued. Waits for nothing; takes the lock.
  /// Addresses in the ranges that are not the engine's, or free, are skipped. Errors:
  /// invalid_argument, for a range without a live block, which it names: the others are hinted.
  virtual Result<void> prefetch(std::span<const Addresses> ranges, CUstream stream) = 0;
  /// The live blocks in these addresses are not used again for long: they leave, whole, behind
  /// their uses so far. With a stream, at its place there, as prefetch() acts; a use of the block
  /// after the call makes the hint void (on another stream, once an event is behind that stream's
  /// work before the call), and a later prefetch() of it on that stream brings it back. A
  /// prefetch() of the block that still lacks room ends with it. Void for a block that is held
  /// then, or on its way in, and before watching begins (EngineObserver). Errors as prefetch()'s.
  virtual Result<void> cold(std::span<const Addresses> ranges,
                            std::optional<CUstream> stream = {}) = 0;
  /// Both of one range.
  Result<void> prefetch(const void* pointer, size_t bytes, CUstream stream) {
    const Addresses range{reinterpret_cast<uint64_t>(pointer), bytes};
    return prefetch({&range, 1}, stream);
  }
  Result<void> cold(const void* pointer, size_t bytes, std::optional<CUstream> stream = {}) {
    const Addresses range{reinterpret_cast<uint64_t>(pointer), bytes};
    return cold({&range, 1}, stream);
  }

  /// Makes blocks again from here on; it outlives the engine. Null: nobody does, and no recipe may
  /// stand.
  virtual void remake_with(Remaker* remaker) = 0;
  /// The operator that has just written all of the block around `pointer`, and which holds it and
  /// what it read, can be run again; an earlier recipe of the block ends. It has written nothing
  /// that it read, and nobody holds an input to write it. The recipe stands until the block or an
  /// input is written or freed. While it is the block's only way back, who writes an input makes
  /// the block again first, on its own stream, and an input that is freed is kept. (Those of a
  /// recipe that keeps its inputs before, too.)
  /// Errors, with nothing changed: invalid_argument (no remaker; a block that never leaves, or
  /// whose uses are not all seen, or that others are made from already; an input that is not a
  /// block of this engine's whose uses are all seen, or is the block itself; more recipes in a row
  /// than recipe_depth_most).
  virtual Result<void> give_recipe(const void* pointer, const RecipeOf& recipe) = 0;
  /// Is the block around `pointer` to leave without a copy, if there is none of all of it, and to
  /// be made again at its next use? False: no recipe stands.
  virtual bool choose_remake(const void* pointer, bool chosen) = 0;
  virtual void note_remake(const RemakeInUse& in_use) = 0;  // for the statistics
  /// The program's iteration, for who chooses what is made again. No lock, any thread.
  virtual Iteration iteration() const = 0;
  /// Which results of an iteration are to be made again at the budget and the bandwidths of now:
  /// ponder() answers, in its thread, without the lock; with none where nothing would be faster. The
  /// last question counts. `iteration_ns`: what it took while it only moved. False: bandwidths are
  /// not measured yet, and no answer comes.
  virtual bool ask_what_to_remake(lifetimes::Operators operators, uint64_t iteration_ns,
                                  std::function<void(RemakeChoice)> answer) = 0;
  /// The ids of recipes that ended since the last call: they are not made again any more.
  virtual std::vector<uint64_t> take_ended_recipes() = 0;

  /// Reaps completions, advances blocks, keeps a little memory free ahead of need. True when it
  /// changed anything. Called by the service thread, and by waiting application threads.
  virtual bool pump() = 0;
  /// Long computation that is due: chooses by rehearsals how much is written ahead, plans places.
  /// Takes tens of milliseconds, without the lock: for a thread that nothing waits for. False:
  /// nothing was due.
  virtual bool ponder() = 0;
  virtual bool ponder_due() const = 0;
  /// Where EngineOptions::host_ahead is set: pins host memory ahead of need, which takes a third of
  /// a second for each GiB without holding others up; for a thread that nothing waits for. False:
  /// none was due, or the system has no more.
  virtual bool prepare_host() = 0;
  virtual bool host_due() const = 0;
  /// If host memory is short (`pressed`): writes what it keeps to the store, or drops it if valid
  /// elsewhere, and gives an empty extent back to the system; true: one was. Called now and then;
  /// if not pressed, stops what was begun. May wait for the store.
  virtual bool give_host_back(bool pressed) = 0;
  /// True while something is in flight or a prefetch waits: pump() is due again soon.
  virtual bool busy() const = 0;

  /// Gives cached frames back to the device (empty_cache).
  virtual void trim() = 0;
  /// Lowers or raises the budget; blocks above it are spilled as far as they can be.
  virtual Result<void> set_budget(uint64_t bytes) = 0;
  /// The driver lacks memory of its own (for a module, a stream): gives the device `bytes` back out
  /// of what is held, and lowers the budget to the rest. Returns how much was given: less if blocks
  /// cannot leave, or not within `patience_ns`.
  virtual uint64_t give_way(uint64_t bytes, uint64_t patience_ns) = 0;
  /// Spills every block that may be spilled and waits for it (adversarial mode, `firn spill`).
  virtual void spill_all() = 0;
  /// Spills every block that may be spilled and gives the device what comes free (`firn spill`):
  /// nothing comes back before the program uses or allocates something. If operators are not
  /// watched yet, they are from the next allocation on, so that their blocks may leave then.
  virtual void spill_away() = 0;
  /// Reports to this observer from here on; it outlives the engine. Null: to none.
  virtual void observe(EngineObserver* observer) = 0;
  virtual bool watching() const = 0;
  /// While stopped, blocks on the device stay there: what does not fit is out of memory, or, where
  /// operators use it, is used in host memory (touch_anyway). Blocks on their way out stay, as far
  /// as they are still there. `for_good`: later calls do not undo it.
  virtual void stop_spilling(bool stopped, bool for_good = false) = 0;
  /// While EngineObserver::storm() asks for it: a thread waited; it allocated the block at
  /// `pointer`.
  virtual void waited(const WaitedBy& who) = 0;
  virtual void made_by(const void* pointer, std::string_view maker) = 0;

  virtual EngineStats stats() const = 0;
  /// Takes no lock: at exit another thread may hold it for good.
  virtual Failures failures() const = 0;
  virtual uint64_t zero_copy_bytes() const = 0;  // as stats() says; takes the lock
  virtual uint64_t budget_bytes() const = 0;  // as stats() says, and no more
  /// The most that one operator can have now, of the budget or of the part that the device gives,
  /// once everything has left that may. Takes the lock and visits each live large block.
  virtual uint64_t room_at_most() const = 0;
  virtual PoolTallies tallies() const = 0;
  virtual void reset_peaks() = 0;
  virtual void reset_totals() = 0;
  virtual std::vector<BlockInfo> blocks() const = 0;
  /// Walks every structure and aborts on a broken invariant (tests).
  virtual void check() const = 0;
};

}  // namespace firn
