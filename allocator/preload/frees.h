// Frees that do not wait for the device.
//
// The driver's cuMemFree returns when the device has done all enqueued work, whoever enqueued it. A
// program only needs that its memory is not reused before. So a free here returns at once, and the
// block is reused, or unmapped, only behind all work that any stream of the context was given
// before the free. It does not matter which work used the block: work that found its address in
// memory is on one of these streams, too.
//
// Each view has a stream of its own, the fence, on which nothing runs. A free has the fence wait
// for every stream that was given work since the fence last waited for it; the engine frees the
// block behind the fence (Engine::free_behind). A thread's own default stream is behind the legacy
// default stream, which counts for both.
//
// A free waits as the driver's does where that is not enough: after a copy from or to host memory
// since the last such wait (the program may read or write the host's bytes behind the free, though
// it relies on a mere habit of the driver); while another context is current; after work on streams
// that cannot be identified (a device's contexts without a view, launches on many streams, more
// streams than there is room for); where the driver refuses an event; and at a view's first free,
// for work from before there was a view.
//
// Owns the streams that were given work. Lock: that of the captures, since an event must not be
// recorded on a stream under capture; enqueued() takes it for a stream's first work only.
#pragma once

#include <span>

#include "allocator/preload/views.h"

namespace firn::preload {

/// Call after the call that gave the stream work, or tried to, has returned: the next free must
/// find either the mark or the work.
void enqueued(CUstream stream);
/// The same for streams that cannot be identified.
void enqueued_somewhere();
/// Calls enqueued() at the end of a handler, and enqueued_somewhere() after wait().
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
/// A stream was created: one whose end was not seen may have had its handle.
void enqueued_stream_begins(CUstream stream);
/// The context was destroyed, and its streams with it.
void enqueued_context_ends(CUcontext context);

/// A block of the view is about to be freed: `behind` becomes what to free it behind, or nothing
/// where all work so far is over. An error is the free's own result.
CUresult before_free(View& view, Behind& behind);

}  // namespace firn::preload
