// The net under accesses that were not reported, for tests. An unreported use is loud where memory
// is unmapped. It is silent where a block is resident and a copy of it is kept (a write is lost
// when the block leaves without I/O), where it is being copied out (the same), and where its bytes
// are arriving (a read finds other bytes, a write is overwritten).
//   firn_verify  copies out once more what leaves and compares it with the copy that is kept
//   firn_test_guard   opens what has a copy for reading only, so that such a write is a fault
//                     at once
//   firn_test_poison  fills what arrives with 0xFF first, so that such a read finds NaN
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "allocator/movement/movement.h"

namespace firn {

namespace {
// The first difference, and the number of bytes that differ.
std::pair<size_t, size_t> differences(const std::byte* one, const std::byte* other, size_t bytes) {
  if (std::memcmp(one, other, bytes) == 0) return {bytes, 0};
  size_t first = bytes, count = 0;
  for (size_t i = 0; i < bytes; ++i) {
    if (one[i] == other[i]) continue;
    first = std::min(first, i);
    ++count;
  }
  return {first, count};
}
}  // namespace

/// All reported uses of the span are over, and its pieces are valid elsewhere: are they still the
/// same on the device? One that differs is reported and copied out again: nothing is lost. False:
/// it may not leave yet.
bool Movement::left_unwritten(Block& block, Span& span) {
  bool all = true;
  for (Piece& piece : pieces_of(block, span)) {
    if (piece.request) {  // being written: what it writes is to be compared as a whole
      all = false;
      continue;
    }
    compared_.resize(std::max(compared_.size(), piece.bytes));
    std::byte* device = compared_.data();
    CUresult result = driver_.memcpy_dtoh_async(device, block.address + piece.offset, piece.bytes,
                                                transfers_.out_stream());
    if (result == CUDA_SUCCESS) result = driver_.stream_synchronize(transfers_.out_stream());
    if (result != CUDA_SUCCESS) {
      trouble("firn_verify could not check a block: " +
              driver_.error("cuMemcpyDtoHAsync", result).text);
      continue;
    }
    moved_.verified_bytes += piece.bytes;
    std::string where;
    if (piece.host_valid) {
      const auto [first, count] = differences(device, piece.host->data, piece.bytes);
      if (count == 0) continue;
      where = fmt::format("from offset {} on, {} bytes of the {}", piece.offset + first, count,
                          piece.bytes);
    } else {
      if (store_->holds(piece.slot, {device, piece.bytes}).value_or(true)) continue;
      where = fmt::format("between the offsets {} and {}", piece.offset,
                          piece.offset + piece.bytes);
    }
    ++failed_.unseen_writes;
    const Use last{block.use.load(std::memory_order_acquire)};
    say(fmt::format("block {:#x} ({} bytes) was written UNSEEN while Firn kept a copy of it: its "
                    "span at offset {} ({} bytes) differs from the copy {}. Last known use: stream "
                    "{}. Events before Firn found this:{}",
                    block.address, size_t{block.requested}, span.begin * page_bytes,
                    span.pages * page_bytes, where,
                    last ? static_cast<const void*>(streams_.handle(last.stream())) : nullptr,
                    owner_.last_events(block)));
    drop_piece(piece);
    all = false;
  }
  return all;
}

/// Makes read-only what is on the device and has a copy elsewhere. (No write is under way: a touch
/// that writes drops the copies first, and a copy waits for earlier writes.)
void Movement::guard(Block& block) {
  const uint64_t w = block.word.load();
  if ((w & word::zero_copy) || block.place_bytes != 0) return;
  for (const CopyInFlight& copy : transfers_.copies_in())
    if (copy.ref.block == &block && copy.ref.generation == block.generation) return;  // it writes
  for (Span& span : block.spans) {
    const std::span<Piece> pieces = pieces_of(block, span);
    if (!span.mapped() || span.guarded || pieces.empty() ||
        !std::all_of(pieces.begin(), pieces.end(), [](const Piece& piece) {
          return piece.on_device && !piece.copying_out && piece.elsewhere();
        }))
      continue;
    Result<void> closed = mapper_.set_access(block, span, CU_MEM_ACCESS_FLAGS_PROT_READ);
    span.guarded = bool(closed);
    if (!closed)
      trouble("firn_test_guard: a block could not be made read-only: " + closed.error().text);
  }
}

bool Movement::open_guarded(Block& block) {
  for (Span& span : block.spans) {
    if (!span.guarded) continue;
    // The use that is about to write cannot go on without it.
    Result<void> opened;
    do {
      opened = mapper_.set_access(block, span, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
      health_.answered("cuMemSetAccess", opened ? CUDA_SUCCESS
                                                : static_cast<CUresult>(opened.error().detail));
    } while (!opened && !health_.dead());
    if (!opened) {
      trouble("firn_test_guard: a block could not be made writable again: " + opened.error().text);
      return false;
    }
    span.guarded = false;
  }
  return true;
}

bool Movement::closed(const Block& block) const {
  return options_.guard && std::any_of(block.spans.begin(), block.spans.end(),
                                       [](const Span& span) { return span.guarded; });
}

/// Fills what is mapped and has no bytes on their way in yet.
void Movement::poison(Block& block) {
  constexpr unsigned char poisoned = 0xFF;
  for (const Piece& piece : block.pieces) {
    if (piece.on_device || !block.span_of(piece).mapped()) continue;
    const CUresult result = driver_.memset_d8_async(block.address + piece.offset, poisoned,
                                                    piece.bytes, transfers_.in_stream());
    if (result != CUDA_SUCCESS)
      trouble("firn_test_poison: " + driver_.error("cuMemsetD8Async", result).text);
  }
  uses_.add(block, streams_.now(transfers_.in()));
}

}  // namespace firn
