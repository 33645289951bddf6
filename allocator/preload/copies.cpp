#include "allocator/preload/copies.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "allocator/preload/captures.h"
#include "allocator/preload/engines.h"
#include "allocator/preload/globals.h"
#include "allocator/preload/graphs.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/inspections.h"
#include "firn/saturating.h"

namespace firn::preload {

namespace {
/// Does the driver know it as device memory? Unknown memory is the host's.
bool on_device(uint64_t address) {
  constexpr int memory_type = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
  unsigned type = 0;
  return views().at(address) ||
         (real().cuPointerGetAttribute(&type, memory_type, address) == CUDA_SUCCESS &&
          type == memory_device);
}

/// Calls each(to, from, bytes) for every row, or once where rows lie end to end.
template <class Each>
void each_row(const Copy& copy, Each&& each) {
  const bool dense = copy.rows == 1 ||
                     (copy.to_pitch == copy.bytes && (!copy.from || copy.from_pitch == copy.bytes));
  for (size_t z = 0; z < copy.slices; ++z) {
    const uint64_t to = copy.to + z * copy.to_slice;
    const uint64_t from = copy.from ? copy.from + z * copy.from_slice : 0;
    if (dense) {
      each(to, from, copy.bytes * copy.rows);
      continue;
    }
    for (size_t y = 0; y < copy.rows; ++y)
      each(to + y * copy.to_pitch, from ? from + y * copy.from_pitch : 0, copy.bytes);
  }
}

/// Does it stay within one live block? A range that begins in an arena and leaves its block is
/// invalid, as for the driver.
bool within_block(uint64_t at, size_t span) {
  View* view = views().at(at);
  Reached block;
  return !view || (block_around(*view, at, block) && span <= block.base + block.bytes - at);
}
bool within_blocks(const Copy& copy) {
  const auto span = [&](size_t pitch, size_t slice) {
    return strided_span(copy.bytes, copy.rows, pitch, copy.slices, slice);
  };
  return within_block(copy.to, span(copy.to_pitch, copy.to_slice)) &&
         within_block(copy.from, span(copy.from_pitch, copy.from_slice));
}

bool no_bytes(const Copy& copy) {
  return copy.bytes == 0 || copy.rows == 0 || copy.slices == 0;
}

Copy::Source source_of(const Copy& copy) {
  if (copy.source != Copy::Source::unknown || !copy.from) return copy.source;
  return on_device(copy.from) ? Copy::Source::device : Copy::Source::host;
}

/// Reads host memory that the program may have freed since. Where process_vm_readv is not allowed,
/// reads it directly.
bool read_host(uint64_t from, size_t bytes, std::vector<char>& into) {
  into.resize(bytes);
  iovec mine{into.data(), bytes}, theirs{reinterpret_cast<void*>(from), bytes};
  const ssize_t got = ::process_vm_readv(::getpid(), &mine, 1, &theirs, 1, 0);
  if (got == static_cast<ssize_t>(bytes)) return true;
  if (got >= 0 || errno == EFAULT) return false;
  std::memcpy(into.data(), reinterpret_cast<const void*>(from), bytes);
  return true;
}
/// Where another front end hands out the memory and announces most uses of it, scanning larger
/// copies is not worth the time. (So a kernel outside any operator must not follow addresses from
/// such a copy.)
bool too_large(const Copy& copy) {
  constexpr size_t bytes_most = 256u << 10;
  return !serving() && saturating_multiply(saturating_multiply(copy.bytes, copy.rows), copy.slices) >
             bytes_most;
}
}  // namespace

void tell_tables(const Copy& copy) {
  if (!copy.to || copy.to_host || no_bytes(copy)) return;
  const bool inside = views().at(copy.to) != nullptr;
  if (inside && !inspections().begun()) return;
  if (!inside && copy.source != Copy::Source::host && !on_device(copy.to)) return;
  const Copy::Source source = source_of(copy);
  if (source == Copy::Source::host && too_large(copy)) return;
  each_row(copy, [&](uint64_t to, uint64_t from, size_t bytes) {
    if (source == Copy::Source::host)
      counters().table_words.fetch_add(
          tables().write(to, reinterpret_cast<const void*>(from), bytes),
          std::memory_order_relaxed);
    else if (source == Copy::Source::device && from)
      tables().copy(to, from, bytes);
    else
      tables().forget(to, bytes);
    // A block's contents are unknown before begin(): the destination is inspected then, too.
    if (!inside && views().at(from) && !inspections().begun()) add_global(nullptr, {to, bytes});
  });
}

Uses uses_of(const Copy& copy) {
  Uses uses;
  uses.add(copy.to);
  uses.add(copy.from);
  uses.beside_host = beside_host(copy);
  if (!copy.to || copy.to_host || no_bytes(copy) || copy.source == Copy::Source::none) return uses;
  uses.copies.push_back(copy);
  uses.copies.back().source = source_of(copy);
  return uses;
}

void collect_overwritten(const Copy& copy, std::vector<uint64_t>& words) {
  each_row(copy, [&](uint64_t to, uint64_t, size_t bytes) { tables().collect(to, bytes, words); });
}

void tell_tables_again(const Copy& copy) {
  std::vector<char> host;
  each_row(copy, [&](uint64_t to, uint64_t from, size_t bytes) {
    if (copy.source != Copy::Source::host)
      tables().copy(to, from, bytes, true);
    else if (read_host(from, bytes, host))
      (void)tables().write(to, host.data(), bytes, true);
  });
}

CUresult note_copy(const Copy& copy, Work& work, Noted& noted) {
  if (no_bytes(copy)) return CUDA_SUCCESS;
  // Tables are kept in any case: work outside operators may follow them.
  const bool told = launch_covered();
  if (!told && !within_blocks(copy)) return CUDA_ERROR_INVALID_VALUE;
  // see() would follow the addresses in host memory, which a copy does not.
  if (!copy.to_host && views().at(copy.to)) work.see(copy.to);
  if (copy.from && copy.source != Copy::Source::host) work.see_read(copy.from);
  if (captures_under_way())
    if (CUgraph graph = captured_into(copy.stream)) {
      noted.captured = true;
      if (!work.empty()) note_captured(graph, uses_of(copy));
    }
  note_enqueued(copy.stream);
  if (told || work.empty()) return CUDA_SUCCESS;
  counters().copies.fetch_add(1, std::memory_order_relaxed);
  noted.ours = true;
  return CUDA_SUCCESS;
}

bool beside_host(const Copy& copy) {
  const auto others = [](uint64_t address) { return address != 0 && !views().at(address); };
  return copy.to_host || copy.source == Copy::Source::host || others(copy.to) ||
         others(copy.from);
}

void end_copies(Work& work, CUresult result) {
  // A synchronous copy may report an earlier error: the copy itself was enqueued then.
  work.release(result != CUDA_ERROR_INVALID_VALUE && result != CUDA_ERROR_INVALID_HANDLE &&
               result != CUDA_ERROR_INVALID_CONTEXT);
}

bool read_copy(const CUDA_MEMCPY2D* from, Copy& copy) {
  if (!from) return false;
  copy.bytes = from->WidthInBytes;
  copy.rows = from->Height;
  copy.to_pitch = from->dstPitch;
  copy.from_pitch = from->srcPitch;
  copy.to_host = from->dstMemoryType == memory_host;
  if (from->dstMemoryType != memory_array)
    copy.to = (copy.to_host ? number(from->dstHost) : from->dstDevice) +
              from->dstY * from->dstPitch + from->dstXInBytes;
  copy.source = from->srcMemoryType == memory_host     ? Copy::Source::host
                : from->srcMemoryType == memory_device ? Copy::Source::device
                                                       : Copy::Source::unknown;
  if (from->srcMemoryType != memory_array)
    copy.from = (from->srcMemoryType == memory_host ? number(from->srcHost) : from->srcDevice) +
                from->srcY * from->srcPitch + from->srcXInBytes;
  return true;
}

bool read_copy(const CUDA_MEMCPY3D* from, Copy& copy) {
  if (!from) return false;
  copy.bytes = from->WidthInBytes;
  copy.rows = from->Height;
  copy.slices = from->Depth;
  copy.to_pitch = from->dstPitch;
  copy.from_pitch = from->srcPitch;
  copy.to_slice = saturating_multiply(from->dstPitch, from->dstHeight);
  copy.from_slice = saturating_multiply(from->srcPitch, from->srcHeight);
  copy.to_context = static_cast<CUcontext>(from->reserved1);
  copy.from_context = static_cast<CUcontext>(from->reserved0);
  copy.to_host = from->dstMemoryType == memory_host;
  if (from->dstMemoryType != memory_array)
    copy.to = (copy.to_host ? number(from->dstHost) : from->dstDevice) +
              from->dstZ * copy.to_slice + from->dstY * from->dstPitch + from->dstXInBytes;
  copy.source = from->srcMemoryType == memory_host     ? Copy::Source::host
                : from->srcMemoryType == memory_device ? Copy::Source::device
                                                       : Copy::Source::unknown;
  if (from->srcMemoryType != memory_array)
    copy.from = (from->srcMemoryType == memory_host ? number(from->srcHost) : from->srcDevice) +
                from->srcZ * copy.from_slice + from->srcY * from->srcPitch + from->srcXInBytes;
  return true;
}

}  // namespace firn::preload
