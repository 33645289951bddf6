// The calling thread's holds: the blocks used by the operator that it is running.
//
// Rule of holds: a block touched or newly allocated inside an observed operator stays on the device
// until the outermost operator with a kernel of its own ends; such a kernel may use raw addresses
// after inner calls have returned. Operators that only call others (CompositeImplicitAutograd) hold
// nothing, so blocks of their inner operators may leave as soon as those have ended.
//
// Owns: thread-local state only. Locks: none.
#pragma once

#include <c10/core/TensorImpl.h>

#include <array>
#include <atomic>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "allocator/base/thread_cells.h"
#include "allocator/engine/engine.h"
#include "allocator/record/recorder.h"
#include "allocator/runtime/runtime.h"
#include "pytorch_plugin/operators.h"

namespace firn::pytorch {

class Pools;

/// Further notes: when tracing, the device's recorder gets the outermost operators; in a fault
/// storm, the engine gets the lines that allocate.
inline constexpr unsigned noting_operators = 1, noting_makers = 2;
inline std::atomic<unsigned> noting{0};
inline bool recording() { return noting.load(std::memory_order_relaxed) & noting_operators; }
inline void note(unsigned what, bool wanted) {
  wanted ? noting.fetch_or(what) : noting.fetch_and(~what);
}
/// Called by an engine when its program begins to wait most of the time, and when that ends.
void look_at_storm(bool asked);

class ThreadScopes {
 public:
  ThreadScopes() = default;
  ~ThreadScopes();
  ThreadScopes(const ThreadScopes&) = delete;
  ThreadScopes& operator=(const ThreadScopes&) = delete;

  /// The calling thread's.
  static ThreadScopes& mine() {
    const unsigned cell = thread_cell();
    ThreadScopes* known = cell < cells_own ? of_cell_[cell] : nullptr;
    return known ? *known : find(cell);
  }

  /// `key` names the operator's scope: the address of its RecordFunction, or of a slice.
  void enter(const void* key, const OperatorInfo* info) {
    if (scopes_.empty() && recording()) [[unlikely]]
      recorded_.name = info->name;
    scopes_.push_back({key, info, info->kind == OperatorInfo::Kind::uses, enqueued_});
  }
  /// Whether `key` is the innermost scope, of an operator whose results are tensors to be seen.
  bool gives_results(const void* key) const {
    return !scopes_.empty() && scopes_.back().key == key && scopes_.back().gives_results;
  }
  /// Whether `key` is this thread's only scope, and no operator is under way around it.
  bool alone(const void* key) const {
    return scopes_.size() == 1 && scopes_.back().key == key && !unseen_;
  }
  /// Where the last touch had Firn's allocator's private pools; null before the first.
  const Pools* pools() const { return pools_; }
  /// The device of the last touch, and its engine; null: Firn has none there.
  int touched_device() const { return touched_device_; }
  Engine* touched_engine() const { return engine_; }
  /// torch's number of the device's current stream, as of the last touch; -1: not known.
  c10::StreamId touched_stream(int device) const {
    return device == known_device_ ? known_id_ : -1;
  }
  /// Whether that innermost scope is a collective's, and nothing was enqueued in it.
  bool enqueued_nothing() const {
    return scopes_.back().info->collective && scopes_.back().enqueued_before == enqueued_;
  }
  /// Leaves `key`'s scope and whatever was left open above it; a key that was not entered has no
  /// effect. After the outermost one everything is released.
  void leave(const void* key) {
    if (!scopes_.empty() && scopes_.back().key == key) [[likely]]
      scopes_.pop_back();
    else
      leave_open(key);
    if (scopes_.empty()) left_outermost();
  }
  bool inside() const { return !scopes_.empty(); }
  /// Whether the innermost scope's operator has announced all that its launches use.
  bool launch_covered() const { return !scopes_.empty() && scopes_.back().info->trusted; }
  /// The operator that this thread is running, or null.
  const char* doing() const {
    return scopes_.empty() ? nullptr : scopes_.back().info->name.c_str();
  }

  /// An operator may be under way in this thread that was not seen to begin. Until Python calls the
  /// next one, or none is under way, what this thread's operators use stays on the device.
  void begin_unseen();
  void end_unseen();
  /// This thread's operator enqueues on `stream`. If its blocks are held for another stream, they
  /// are used on this one, too.
  void enqueues_on(CUstream stream, Runtime::ContextOf context) {
    ++enqueued_;
    if (!groups_.empty() && groups_.back().stream == stream) [[likely]]
      return;
    note_stream(stream, context);
  }

  /// Before touches during which no current stream changes.
  void begin_touches() {
    touched_device_ = -1;
    engine_ = nullptr;  // a storage without a device number is of none
  }
  /// Holds the blocks of the tensor's storages (dense, sparse, nested) that are Firn's. An error is
  /// kept for throw_trouble(), or put into the storage, which then throws when it is accessed.
  /// `uses`: the running operator uses them (else they are its results).
  void touch(c10::TensorImpl* tensor, Access access, bool uses = true);
  /// As touch(), of the Firn block around `pointer`, which is read and written.
  void touch_address(const void* pointer);
  /// Something unseen keeps the blocks that are held now: they stay on the device for life.
  void keep_held(const char* reason);
  /// Notes an error from outside of a touch, as if a touch had failed.
  void note_trouble(std::string words) { trouble_ = std::move(words); }
  /// The running operator can be done in parts: if memory is short, that is an error at once,
  /// instead of a use in host memory.
  void set_may_be_cut(bool may) { may_be_cut_ = may; }
  bool may_be_cut() const { return may_be_cut_; }
  /// All that the operator was given has been touched: its kernel is next.
  void arguments_touched();

  /// This thread is about to allocate, and may have to wait for room.
  void before_allocation();
  /// A block just allocated by this thread: held as the rule says.
  void hold_new(Engine& engine, int device, void* pointer, CUstream stream);
  /// This thread is about to free `pointer`: lets go of it first, so that it can be reused at once.
  void forget(const void* pointer);

  /// This thread has waited for memory (called without the engine's lock). Answers the operator's
  /// name, or null.
  const char* stalled(Engine& engine, const Wait& wait);

  /// The error of a touch in the running operator; empty when all is well.
  std::string take_trouble();
  /// The same as an exception: torch.OutOfMemoryError where memory is short.
  void throw_trouble();

 private:
  /// A storage that throws when its address is asked for, and the words it had before.
  struct Refused {
    c10::intrusive_ptr<c10::StorageImpl> storage;
    std::optional<std::string> words;
  };
  /// Holds from `begin` on, to the next group's: of one engine, for work on one stream.
  struct Group {
    Engine* engine;
    CUstream stream;
    size_t begin;
  };

  struct Scope {
    const void* key;
    const OperatorInfo* info;
    bool gives_results;
    uint64_t enqueued_before;
  };

  static ThreadScopes& find(unsigned cell);
  void leave_open(const void* key);
  void left_outermost();
  bool in_unseen();
  CUstream current_stream(Engine& engine, int device);
  void touch_parts(c10::TensorImpl* tensor, Access access, bool uses);
  void touch_storage(c10::StorageImpl* storage, Access access, bool uses);
  void refuse(c10::StorageImpl* storage, Code code);
  void grant_again();
  void see_device(int device);
  Code touch_memory(const void* base, Access access);
  void keep_used(Hold hold, const void* base);
  Code touch_failed(const void* base, Access access, const Error& error);
  void keep(Engine& engine, Hold hold, CUstream stream, const void* base) {
    if (groups_.empty() || groups_.back().stream != stream || groups_.back().engine != &engine)
      groups_.push_back({&engine, stream, holds_.size()});
    holds_.push_back(hold);
    bases_.push_back(base);
  }
  size_t end_of(size_t group) const {
    return group + 1 < groups_.size() ? groups_[group + 1].begin : holds_.size();
  }
  void note_stream(CUstream stream, Runtime::ContextOf context);
  void use_on_others(Engine& engine, std::span<const Hold> holds, CUstream held_for);
  void release_all();
  void note_new(Engine& engine, int device, void* pointer, CUstream stream);
  void tell_lines();

  // By the thread's number, where it has one of its own. Only that thread reads its entry.
  static inline constinit std::array<ThreadScopes*, cells_own> of_cell_{};
  static const bool told_of_forks;

  unsigned cell_ = cells_own;
  std::vector<Scope> scopes_;
  std::vector<Hold> holds_;
  std::vector<const void*> bases_;  // where the holds' blocks begin
  std::vector<Group> groups_;
  struct Other {
    CUstream stream;
    CUcontext context;              // null: that of any device's that is not told apart
  };
  std::vector<Other> others_;       // streams that were enqueued on besides
  uint64_t enqueued_ = 0;           // launches and copies, ever
  std::string trouble_;
  bool short_ = false;              // it is one of memory
  bool may_be_cut_ = false;         // see set_may_be_cut()
  std::vector<Refused> refused_;    // by the running operator
  struct Waits {
    uint64_t times = 0, ns = 0;
    Engine* engine = nullptr;      // of the longest
    const OperatorInfo* in = nullptr;
    Wait longest;
  } waits_;                        // since the last call site
  struct Made {
    Engine* engine;
    const void* block;
  };
  std::vector<Made> made_;         // while their makers are noted
  bool unseen_ = false;            // see begin_unseen()
  bool unseen_by_python_ = false;  // then: Python says when it is over
  unsigned unseen_left_ = 0;        // operators that may end before that does
  bool lines_due_ = false;         // waits_ or made_ is to be reported
  record::Operator recorded_;       // the outermost one, when recording
  CUstream recorded_stream_ = nullptr;
  int touched_device_ = -1;         // what follows is of this device; -1: of none yet
  Engine* engine_ = nullptr;        // null: Firn has none there
  CUstream stream_ = nullptr;       // its current one
  Pools* pools_ = nullptr;
  int known_device_ = -1;            // of a stream that keeps its handle; -1: none is known
  c10::StreamId known_id_ = 0;       // its number
  CUstream known_stream_ = nullptr;  // and its handle
};

}  // namespace firn::pytorch
