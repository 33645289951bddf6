// Frees that do not wait for the device.
//
// The driver's cuMemFree returns when the device has done all that was enqueued, whoever enqueued
// it. What a program needs of that is that its memory is nobody else's before: so a free here
// returns at once, and the block is reused, or unmapped, only behind all work that any stream of
// the context was given before the free. Who used the block does not matter: also work that found
// its address in memory is on one of these streams.
//
// Each view has a stream of its own, the fence, on which nothing runs. A free has the fence wait
// for every stream that was given work since the fence last waited for it; the engine frees the
// block behind the fence (Engine::free_behind). A thread's own default stream is behind the legacy
// default stream, which counts for both.
//
// Where that is not enough a free waits as the driver's does: where a copy from or to memory of the
// host was enqueued since it last did (a program may read its bytes behind the free, or write
// others, though nothing but the driver's habit tells it to); while another context is current; where work went to streams that cannot be told (a device's contexts without a view, launches on
// many streams, more streams than there is room for); where the driver refuses an event; and at a
// view's first free, for what was enqueued before there was a view.
//
// Owns the streams that were given work. Lock: that of the captures, since an event must not be
// recorded on a stream under capture; enqueued() takes it for a stream's first work only.
#pragma once

#include <span>

#include "allocator/preload/views.h"

namespace firn::preload {

/// The call that gave the stream work, or tried to, has returned: not before, for the next free
/// must find either the mark or the work.
void enqueued(CUstream stream);
/// The same, of streams that cannot be told.
void enqueued_somewhere();
/// enqueued() at the end of a handler; and enqueued_somewhere() where it said wait().
class Enqueues {
 public:
  explicit Enqueues(CUstream stream) : stream_(stream) {}
  ~Enqueues() {
    enqueued(stream_);
    if (waits_) enqueued_somewhere();
  }
  /// The next free waits for the work.
  void wait() { waits_ = true; }
  Enqueues(const Enqueues&) = delete;
  Enqueues& operator=(const Enqueues&) = delete;

 private:
  const CUstream stream_;
  bool waits_ = false;
};

/// The stream is about to be destroyed, which does not end its work.
void enqueued_stream_ends(CUstream stream);
/// A stream was made: an ended one, unseen, may have had its handle.
void enqueued_stream_begins(CUstream stream);
/// The context was destroyed, and its streams with it.
void enqueued_context_ends(CUcontext context);

/// A block of the view's is about to be freed: nothing where all work so far is over (it was waited
/// for, or there is none), else what to free the block behind. An error is the free's own.
CUresult before_free(View& view, Behind& behind);

}  // namespace firn::preload
