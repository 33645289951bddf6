// Entries about events. An event is the mark (a piece of work) last recorded into it.
#include <chrono>
#include <thread>

#include "graph.h"
#include "gpu.h"
#include "shared_mark.h"

namespace firn::software {

namespace {
constexpr unsigned event_flags_all = 7;  // blocking sync, disable timing, event_interprocess
constexpr unsigned event_external = 1;   // of record and wait: a node of its own in a graph

CUresult with_event(const char* entry, CUevent handle, const auto& body) {
  return enter(entry, Need::initialised, [&](Gate& gate) -> CUresult {
    auto event = gpu().events.find(entry, handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (CUresult dead = gate.uses(event->context.lock())) return dead;
    return body(gate, event);
  });
}

CUresult record_event(const char* entry, CUevent handle, CUstream on, unsigned flags) {
  return with_event(entry, handle, [&](Gate& gate, const auto& event) -> CUresult {
    if (flags & ~event_external) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Stream> stream;
    if (CUresult result = find_stream(gate, on, &stream)) return result;
    if (stream->context.lock() != event->context.lock()) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture && !stream->capture->invalidated && !(flags & event_external)) {
      event->captured = stream->capture;
      event->captured_nodes = stream->capture_tail;
      return CUDA_SUCCESS;
    }
    Body body{.entry = entry, .type = node_event_record};
    if (event->shared) {
      if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
      body.settle = [mark = event->shared, number = event->shared->record()] {
        mark->complete(number);
      };
      return submit(gate, stream, std::move(body));
    }
    if (stream->capture) body.record = event;
    std::shared_ptr<Work> mark;
    if (CUresult result = submit(gate, stream, std::move(body), &mark)) return result;
    if (!stream->capture) {
      event->captured.reset();
      event->captured_nodes.clear();
      event->mark = mark;
    }
    return CUDA_SUCCESS;
  });
}

// Adds the event's nodes to those that the captured stream's next node comes after.
void join(Stream& stream, const Event& event) {
  for (const auto& node : event.captured_nodes)
    if (std::find(stream.capture_tail.begin(), stream.capture_tail.end(), node) ==
        stream.capture_tail.end())
      stream.capture_tail.push_back(node);
}

CUresult wait_captured(const std::shared_ptr<Stream>& stream, const Event& event) {
  const auto& capture = event.captured;
  if (capture->ended) return CUDA_ERROR_CAPTURED_EVENT;
  if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream->legacy) {
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (stream->capture && stream->capture != capture) {
    stream->capture->invalidated = capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (!stream->capture) {
    stream->capture = capture;
    capture->streams.push_back(stream);
  }
  join(*stream, event);
  return CUDA_SUCCESS;
}

/// Polls: another process may complete it, without a notification.
void wait_for_shared(Lock& lock, const SharedMark& mark) {
  const uint64_t number = mark.recorded();
  while (!mark.complete_to(number)) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    lock.lock();
  }
}
}  // namespace

FIRN_GPU_API CUresult cuEventCreate(CUevent* handle, unsigned flags) {
  return enter("cuEventCreate", Need::context, [&](Gate& gate) -> CUresult {
    if (!handle || flags & ~event_flags_all) return CUDA_ERROR_INVALID_VALUE;
    auto event = std::make_shared<Event>();
    event->context = gate.context();
    event->device = gate.context()->device;
    event->flags = flags;
    if (flags & event_interprocess) {
      if (!(flags & CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_VALUE;
      event->shared = make_shared_mark();
      if (!event->shared) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    event->handle = gpu().events.add(event);
    *handle = as_handle<CUevent>(event->handle);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuEventDestroy_v2(CUevent handle) {
  return with_event("cuEventDestroy", handle, [](Gate&, const auto& event) {
    gpu().events.remove(event->handle);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_ENTRY_PTSZ(cuEventRecord, (CUevent event, CUstream stream), (event, stream)) {
  return record_event("cuEventRecord", event, stream, 0);
}
FIRN_GPU_ENTRY_PTSZ(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags),
                    (event, stream, flags)) {
  return record_event("cuEventRecordWithFlags", event, stream, flags);
}

FIRN_GPU_API CUresult cuEventQuery(CUevent handle) {
  return with_event("cuEventQuery", handle, [](Gate& gate, const auto& event) -> CUresult {
    if (CUresult result = forbid_in_capture(gate)) return result;
    if (event->captured) {
      event->captured->invalidated = true;
      return CUDA_ERROR_CAPTURED_EVENT;
    }
    if (event->shared)
      return event->shared->complete_to(event->shared->recorded()) ? CUDA_SUCCESS
                                                                   : CUDA_ERROR_NOT_READY;
    return !event->mark || event->mark->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

FIRN_GPU_API CUresult cuEventSynchronize(CUevent handle) {
  return with_event("cuEventSynchronize", handle, [](Gate& gate, const auto& event) -> CUresult {
    if (CUresult result = forbid_in_capture(gate)) return result;
    if (event->captured) {
      event->captured->invalidated = true;
      return CUDA_ERROR_CAPTURED_EVENT;
    }
    if (event->shared) {
      wait_for_shared(gate.lock(), *event->shared);
      return CUDA_SUCCESS;
    }
    const std::shared_ptr<Work> mark = event->mark;  // a later record changes the event
    gpu().scheduler.wait_for(gate.lock(), gate.entry(), mark);
    return CUDA_SUCCESS;
  });
}

namespace {
CUresult elapsed(float* ms, CUevent begin, CUevent end) {
  return with_event("cuEventElapsedTime", begin, [&](Gate& gate, const auto& from) -> CUresult {
    auto to = gpu().events.find(gate.entry(), end);
    if (!to || !from->mark || !to->mark || (from->flags | to->flags) & CU_EVENT_DISABLE_TIMING)
      return CUDA_ERROR_INVALID_HANDLE;
    if (!ms) return CUDA_ERROR_INVALID_VALUE;
    if (!from->mark->done || !to->mark->done) return CUDA_ERROR_NOT_READY;
    *ms = static_cast<float>(
        (static_cast<double>(to->mark->done_ns) - static_cast<double>(from->mark->done_ns)) * 1e-6);
    return CUDA_SUCCESS;
  });
}
}  // namespace

FIRN_GPU_API CUresult cuEventElapsedTime(float* ms, CUevent begin, CUevent end) {
  return elapsed(ms, begin, end);
}
FIRN_GPU_API CUresult cuEventElapsedTime_v2(float* ms, CUevent begin, CUevent end) {
  return elapsed(ms, begin, end);
}

FIRN_GPU_ENTRY_PTSZ(cuStreamWaitEvent, (CUstream on, CUevent handle, unsigned flags),
                    (on, handle, flags)) {
  return with_event("cuStreamWaitEvent", handle, [&](Gate& gate, const auto& event) -> CUresult {
    if (flags & ~event_external) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Stream> stream;
    if (CUresult result = find_stream(gate, on, &stream)) return result;
    if (event->captured) return wait_captured(stream, *event);
    if (event->shared) {
      if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
      gpu().scheduler.enqueue(
          stream, Body{.entry = gate.entry(),
                       .ready = [mark = event->shared, number = event->shared->recorded()] {
                         return mark->complete_to(number);
                       }});
      return CUDA_SUCCESS;
    }
    if (stream->capture) {
      if (!event->mark) return CUDA_SUCCESS;
      // A graph does not know work outside itself, unless event_external has it wait for the event.
      if (flags & event_external) {
        const std::weak_ptr<Event> weak = event;
        return submit(gate, stream, Body{.entry = gate.entry(), .type = node_wait_event,
                                         .ready = [weak] {
                                           auto alive = weak.lock();
                                           return !alive || !alive->mark || alive->mark->done;
                                         }});
      }
      stream->capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (!event->mark || event->mark->done) return CUDA_SUCCESS;
    gpu().scheduler.enqueue(stream, Body{.entry = gate.entry()}, {event->mark});
    return CUDA_SUCCESS;
  });
}

}  // namespace firn::software
