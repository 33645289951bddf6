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

/// What is to be done once a copy's call has returned.
struct Noted {
  bool ours = false;      // blocks are to be held for it
  bool captured = false;  // it went into a graph
};
struct Uses;
/// What it is within a graph.
Uses uses_of(const Copy& copy);
/// Of a copy within a graph that is launched: what its destination held, and holds then.
void collect_overwritten(const Copy& copy, std::vector<uint64_t>& words);
void tell_tables_again(const Copy& copy);
/// Which blocks it uses, into `work`. An error: the call must not be made.
CUresult note_copy(const Copy& copy, Work& work, Noted& noted);
/// The copy is enqueued: which addresses are where from now on. Not before: what is enqueued while
/// memory was never short is looked at when it is (inspections.h), and need not be told.
void tell_tables(const Copy& copy);
void end_copies(Work& work, CUresult result);
/// Is one side of it, surely or perhaps, memory of the host's, which the program may use for
/// something else once a free has waited for it?
bool beside_host(const Copy& copy);

/// Its blocks are on the device: is it between two of which the copying context may use one only?
/// So that `result` says how the copy between contexts went that was made instead.
bool copied_apart(const Copy& copy, const Work& work, CUresult& result);

template <class Call>
CUresult around(const Copy& copy, Call&& call) {
  if (views().count() == 0) return call();
  Enqueues enqueues(copy.stream);
  Work work(where(copy.stream));
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

/// Where streams wait for values or write them, memory stays on the device.
void stay_for(const CUstreamBatchMemOpParams* operations, unsigned count);
/// What these write, the tables learn.
void tell_tables(const CUstreamBatchMemOpParams* operations, unsigned count);

/// What a structure of cuMemcpy2D or 3D says; false where it says nothing that a driver would take.
bool read_copy(const CUDA_MEMCPY2D* from, Copy& copy);
bool read_copy(const CUDA_MEMCPY3D* from, Copy& copy);

}  // namespace firn::preload
