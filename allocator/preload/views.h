// The engines as launches and copies see them: one view per opened device, found by address without
// a lock; and the process's knowledge of memory that all of them share.
//
// Owns the views, which live as long as the process (so do engines). Lock: one, for adding.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "allocator/engine/engine.h"
#include "allocator/preload/parameters.h"
#include "allocator/preload/tables.h"
#include "firn/cuda_abi.h"

namespace firn::preload {

struct GivenWork;  // frees.cpp

struct View {
  Engine* engine = nullptr;
  Range arena;
  CUcontext context = nullptr;         // the device's primary one
  int device = 0;                      // its ordinal
  CUstream plain = nullptr;  // cuMemAlloc allocates for it: it never has work
  // Frees wait for these (frees.h). Null: they wait themselves.
  CUstream fence = nullptr;
  CUevent fence_event = nullptr;
  uint64_t fence_given = 0;  // times it was given work to wait for; under the captures' lock
  std::atomic<GivenWork*> marked{nullptr};         // streams that the fence has to wait for
  std::atomic<uint64_t> untold{1}, waited{0};      // times work went to unidentified streams
};

/// The fence to free a block behind, and what it was given (Engine::free_behind()); or nothing.
struct Behind {
  CUstream fence = nullptr;
  uint64_t given = 0;
};

/// Counts for the coverage report.
struct Counters {
  // Not exact: an increment of these two may be lost between threads.
  std::atomic<uint64_t> launches{0}, parameters{0};
  std::atomic<uint64_t> unknown_kernels{0}, tables_followed{0};
  std::atomic<uint64_t> table_words{0};      // addresses seen in copies from the host
  std::atomic<uint64_t> looked_bytes{0};     // of memory that kernels wrote
  std::atomic<uint64_t> stored_addresses{0}; // found there
  std::atomic<uint64_t> passed_on_bytes{0};  // memory that the driver keeps: not Firn's
  std::atomic<uint64_t> host_mapped_launches{0};  // touched in host memory: no room for all
  std::atomic<uint64_t> copies{0}, graph_launches{0};
  std::atomic<uint64_t> frees_waited{0}, frees_deferred{0};  // by cuMemFree; others: at once
};

class Views {
 public:
  static constexpr unsigned most = 16;

  /// The view of an engine, made at first sight: before any of its addresses is handed out.
  View& of(Engine& engine);
  /// Makes views of all engines opened so far, by whichever front end.
  void refresh();
  View* at(uint64_t address) {
    for (unsigned i = 0, n = count(); i < n; ++i)
      if (views_[i].arena.contains(address)) return &views_[i];
    return nullptr;
  }
  unsigned count() const { return count_.load(std::memory_order_acquire); }
  View& operator[](unsigned index) { return views_[index]; }

 private:
  std::array<View, most> views_;
  std::atomic<unsigned> count_{0};
};

// One of each, found without a call and never destroyed: calls come until the process has ended.
inline Views& views() {
  static Views& all = *new Views;
  return all;
}
inline Tables& tables() {
  static Tables& all = *new Tables;
  return all;
}
inline Counters& counters() {
  static Counters& all = *new Counters;
  return all;
}
/// Opens the arena to devices that were granted access before the engine was there.
void open_to_peers(View& view);
Kernels& kernels();

/// The calling thread's; null when it has none.
CUcontext current_context();
/// The stream's, which need not be the calling thread's.
CUcontext context_of(CUstream stream);
/// Set once contexts other than the devices' primary ones may exist.
inline std::atomic<bool> other_contexts{false};
inline void contexts_differ() { other_contexts.store(true, std::memory_order_release); }

/// Work that a call is about to enqueue: its stream by the engines' name, and its context where
/// that can make a difference (else null).
struct Where {
  CUstream stream = nullptr;
  CUcontext context = nullptr;
};
/// The engines take a thread's own default stream as the legacy default stream: an event there is
/// behind the work of all blocking streams, and a wait there holds up theirs.
inline Where where_on(CUstream stream) {
  Where w{stream, nullptr};
  if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) w.stream = nullptr;
  if (other_contexts.load(std::memory_order_acquire))
    w.context = w.stream ? context_of(w.stream) : current_context();
  return w;
}
/// Reports once, in the statistics' "unseen" list, something that Firn does not follow.
void note_unseen(const char* words);

}  // namespace firn::preload
