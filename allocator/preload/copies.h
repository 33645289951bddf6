// Copies and fills: the blocks that they read and write are touched around the driver's call, and
// the pointer tables learn what it does to them.
#pragma once

#include "allocator/preload/frees.h"
#include "allocator/preload/work.h"
#include "firn/cuda_types.h"

namespace firn::preload {

/// One copy or fill: `slices` of `rows` of `bytes`.
struct Copy {
  enum class Source : uint8_t { host, device, unknown, none };  // none: a fill
  uint64_t to = 0, from = 0;  // 0: not linear memory (an array)
  size_t bytes = 0;
  Source source = Source::unknown;
  bool to_host = false;       // surely
  size_t rows = 1, to_pitch = 0, from_pitch = 0;
  size_t slices = 1, to_slice = 0, from_slice = 0;
  CUstream stream = nullptr;
  CUcontext to_context = nullptr, from_context = nullptr;  // that the program gave: of both sides
};

/// The follow-up once a copy's call has returned.
struct Noted {
  bool ours = false;      // blocks are to be held for it
  bool captured = false;  // it went into a graph
};
struct Uses;
/// The uses of a copy inside a graph.
Uses uses_of(const Copy& copy);
/// For a copy in a graph that is launched: collects the addresses that its destination held, then
/// updates the tables.
void collect_overwritten(const Copy& copy, std::vector<uint64_t>& words);
void tell_tables_again(const Copy& copy);
/// Adds the blocks that it uses to `work`. On an error the call must not be made.
CUresult note_copy(const Copy& copy, Work& work, Noted& noted);
/// Updates the tables; call after the copy was enqueued. Skipped for blocks before memory was first
/// short: begin() inspects everything that was enqueued by then (inspections.h).
void tell_tables(const Copy& copy);
void end_copies(Work& work, CUresult result);
/// May one side of it be host memory? The program may reuse that once a free has waited for it.
bool beside_host(const Copy& copy);

/// Its blocks are on the device. True when the copying context lacks access to one side: the copy
/// was made between contexts instead, with `result`.
bool copied_apart(const Copy& copy, const Work& work, CUresult& result);

template <class Call>
CUresult around(const Copy& copy, Call&& call) {
  if (views().count() == 0) return call();
  Enqueues enqueues(copy.stream);
  Work work(where_on(copy.stream));
  Noted noted;
  if (CUresult result = note_copy(copy, work, noted)) return result;
  if (noted.ours)
    if (CUresult result = work.hold(false)) return result;
  CUresult result = CUDA_SUCCESS;
  if (views().count() < 2 || !copied_apart(copy, work, result)) result = call();
  if (result == CUDA_SUCCESS && !noted.captured) tell_tables(copy);
  if (noted.ours) end_copies(work, result);
  if (!noted.captured && beside_host(copy)) enqueues.wait();
  return result;
}

/// Memory that streams wait on, or write values to, stays on the device.
void stay_for(const CUstreamBatchMemOpParams* operations, unsigned count);
/// Records in the tables what these write.
void tell_tables(const CUstreamBatchMemOpParams* operations, unsigned count);

/// Reads a structure of cuMemcpy2D or 3D; false for one that a driver would refuse.
bool read_copy(const CUDA_MEMCPY2D* from, Copy& copy);
bool read_copy(const CUDA_MEMCPY3D* from, Copy& copy);

}  // namespace firn::preload
