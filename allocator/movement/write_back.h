// When writes to the store may begin, and what follows when they fail. A failed write is tried
// again after pauses that double (io_pause.h). A store counts as full when it lacks room, or has
// failed for all of firn_io_patience: threads stop waiting for it, and it is asked again when a
// slot has come free or a longer pause is over. The caller decides which piece is written next.
//
// Owns: the store's state as its answers tell it, and the end of the pause. Lock: the engine's,
// around every call. It reads no clock: its functions are told the time. It calls no other part:
// by what they return, the caller knows what is to be said.
#pragma once

#include <cstdint>

#include "firn/result.h"
#include "firn/thread_safety.h"

namespace firn {

class WriteBack {
 public:
  /// A full store is asked again after so long.
  static constexpr uint64_t full_pause_ns = 1'000'000'000;

  /// `patience_ns`: how long writes that fail are waited for.
  explicit WriteBack(uint64_t patience_ns) : patience_ns_(patience_ns) {}

  // Questions.
  /// May a write begin now?
  bool may_begin(uint64_t now_ns) const FIRN_HELD { return !full_ && now_ns >= again_ns_; }
  /// Is the store full? Writes begin again when a slot comes free, or after a pause.
  bool full() const FIRN_HELD { return full_; }
  /// Do its files grow?
  bool grows() const FIRN_HELD { return grows_; }
  /// Is room being made there, or do writes fail, not yet for so long that threads stop waiting for
  /// them?
  bool pauses(uint64_t now_ns) const FIRN_HELD;

  // Events.
  /// A round of writes begins; whether files grow is to be told anew. True: the store was full
  /// until now, and is asked again.
  bool begin_round(uint64_t now_ns) FIRN_HELD;
  /// The store has no slot yet: its files grow.
  void store_grows() FIRN_HELD { grows_ = true; }
  /// A slot of the store came free.
  void slot_came_free() FIRN_HELD;
  void succeeded() FIRN_HELD;
  /// The store did not take a piece. `begun_ns`: when it was tried. True: writes succeeded until
  /// now, and the user is to be told.
  bool failed(const Error& error, uint64_t begun_ns, uint64_t now_ns) FIRN_HELD;

 private:
  const uint64_t patience_ns_;
  bool full_ FIRN_GUARDED = false;         // no more writes until a slot comes free, or for a pause
  bool grows_ FIRN_GUARDED = false;        // the store's files, as this round has seen
  uint64_t again_ns_ FIRN_GUARDED = 0;     // the end of that pause, or of one after a failed write
  unsigned failures_ FIRN_GUARDED = 0;     // in a row, of any kind
  uint64_t unwritten_ns_ FIRN_GUARDED = 0;  // since when no write succeeds; 0: the last one did
  // Since when every write fails; 0: none does, or a full store.
  uint64_t failing_ns_ FIRN_GUARDED = 0;
};

}  // namespace firn
