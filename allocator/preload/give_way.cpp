#include "allocator/preload/give_way.h"

#include <algorithm>

#include "allocator/memory/shared_frames.h"
#include "allocator/preload/engines.h"
#include "allocator/preload/frees.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/inspections.h"
#include "allocator/runtime/config.h"
#include "firn/said.h"

namespace firn::preload {

namespace {
constexpr uint64_t step_bytes = 256u << 20;
// At most 1/part_most of the budget at once: small devices have small needs. Where the need is
// known to be larger, at most 1/known_part_most.
constexpr uint64_t part_most = 8, known_part_most = 4;
constexpr uint64_t patience_ns = 5'000'000'000;

Engine* engine_of(int device) {
  Runtime* runtime = runtime_here();
  CUdevice current = 0;
  if (!runtime) return nullptr;
  if (device < 0 && real().cuCtxGetDevice(&current) == CUDA_SUCCESS) device = current;
  if (device >= 0) return runtime->opened(device);
  // Libraries may be loaded without a context.
  return views().count() == 1 ? views()[0].engine : nullptr;
}

/// The bytes to give; 0: more than is worth giving.
uint64_t wanted_bytes(uint64_t needed, uint64_t budget) {
  const uint64_t step = std::min(step_bytes, std::max(budget / part_most, 2 * granule_bytes));
  size_t free_bytes = 0, total_bytes = 0;
  if (needed == 0 || real().cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS)
    return step;
  const uint64_t lacking = needed - std::min<uint64_t>(needed, free_bytes) + granule_bytes;
  return lacking > std::max(budget / known_part_most, step) ? 0 : std::max(step, lacking);
}
}  // namespace

GaveWay::GaveWay(const char* what, uint64_t bytes, int device) : what_(what) {
  engine_ = engine_of(device);
  if (!engine_) return;
  // Nothing could leave so far: memory was never short for a block. (During a capture begin() does
  // nothing, and only cached memory is given.)
  if (serving() && !inspections().ready()) inspections().begin();
  before_ = engine_->budget_bytes();
  if (const uint64_t wanted = wanted_bytes(bytes, before_))
    given_ = engine_->give_way(wanted, patience_ns);
}

void GaveWay::end(CUresult result) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    (void)engine_->set_budget(before_);
    return;
  }
  say_now(std::string("firn: the driver had no memory left for ") + what_ + ": device " +
          std::to_string(engine_->stats().device) + " gave it " + format_size(given_) +
          " of the blocks' memory, so that the budget is now " +
          format_size(engine_->budget_bytes()) + " (a smaller firn_budget avoids this)");
}

namespace {
template <class Call>
CUresult made(const CUstream* stream, Call&& call) {
  const CUresult result = or_give_way("a stream", call);
  if (result == CUDA_SUCCESS) enqueued_stream_begins(*stream);
  return result;
}
}  // namespace

// Handled because the driver takes memory for these, too.
CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return made(stream, [&] { return real().cuStreamCreate(stream, flags); });
}
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  return made(stream,
              [&] { return real().cuStreamCreateWithPriority(stream, flags, priority); });
}
CUresult cuEventCreate(CUevent* event, unsigned flags) {
  return or_give_way("an event", [&] { return real().cuEventCreate(event, flags); });
}
CUresult cuCtxSetLimit(int limit, size_t value) {
  return or_give_way("a limit (cuCtxSetLimit)", [&] { return real().cuCtxSetLimit(limit, value); });
}
CUresult cuFuncLoad(CUfunction function) {
  return or_give_way("a function", [&] { return real().cuFuncLoad(function); });
}
CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  return or_give_way("a module", [&] { return real().cuLibraryGetModule(module, library); });
}
CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
  return or_give_way("a graph", [&] { return real().cuGraphUpload(exec, stream); });
}
CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
  return or_give_way("a graph", [&] { return real().cuGraphUpload_ptsz(exec, stream); });
}

}  // namespace firn::preload
