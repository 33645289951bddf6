// Segments that their owners cut into parts (private pools), and the statistics of parts.
#include <algorithm>

#include <fmt/format.h>

#include "allocator/engine/hot.h"
#include "allocator/record/recorder.h"
#include "firn/check.h"

namespace firn {

Result<void*> EngineImpl::allocate_segment(size_t bytes, CUstream stream, bool small,
                                           const char* reason) {
  FIRN_CHECK(bytes > size_class::small_most, "a segment of %zu bytes", bytes);
  stream = Streams::plain(stream);
  return with_watching(bytes, [&](Lock& lock) FIRN_HELD -> Result<void*> {
    const int index = see_stream(stream);
    if (index < 0)
      return make_error(Code::invalid_argument, 0,
                        fmt::format("the program uses more than {} streams, the most that Firn "
                                    "tracks", Streams::capacity));
    const unsigned size_class = size_class::of_pages(pages_of(bytes));
    Block* ready = ready_block(index, size_class);
    Result<Block*> found = ready ? Result<Block*>(ready) : large_block(lock, index, bytes);
    if (!found) return found.error();
    Block& block = **found;
    block.requested = block.bytes = block.mapped_bytes();
    block.pin_reason = reason;
    block.pin_count = 1;
    block.small_segment = small;
    block.word.set(word::pinned | word::segment);
    if (small) {
      parts_.small_segments.add(1);
      parts_.small_bytes.add(static_cast<int64_t>(block.bytes));
    }
    return reinterpret_cast<void*>(block.address);
  });
}

void EngineImpl::uncount_segment(Block& block) {
  if (!block.small_segment) return;
  parts_.small_segments.remove(1);
  parts_.small_bytes.remove(static_cast<int64_t>(block.bytes));
  block.small_segment = false;
}

void EngineImpl::count(const PartEvent& event) {
  using Kind = PartEvent::Kind;
  Lock lock(mutex_);
  const auto address = reinterpret_cast<uint64_t>(event.address);
  const auto bytes = static_cast<size_t>(event.bytes);
  const auto requested = static_cast<size_t>(event.requested);
  auto active = [&](int by) {
    if (event.large) return;
    parts_.active_small += by;
    parts_.active_small_bytes += by * event.bytes;
  };
  auto change = [&](PooledTally& tally, int64_t by) {
    if (by > 0) tally.add(event.large, by);
    if (by < 0) tally.remove(event.large, -by);
  };
  switch (event.kind) {
    case Kind::allocated:
      active(1);
      hot_.allocated(thread_cell(), event.large, bytes, requested);
      if (options_.recorder) options_.recorder->allocated(address, requested);
      break;
    case Kind::freed:
      active(-1);
      hot_.freed(thread_cell(), event.large, bytes, requested);
      if (options_.recorder) options_.recorder->freed(address);
      break;
    case Kind::waits:
      active(1);
      hot_.waits(event.large, bytes);
      break;
    case Kind::waited:
      active(-1);
      hot_.waited(event.large, bytes);
      break;
    case Kind::inactive:
      change(parts_.inactive, event.pieces);
      change(parts_.inactive_bytes, event.bytes);
      break;
    case Kind::foreign_made:
      parts_.foreign_segments.add(event.large, 1);
      parts_.foreign_bytes.add(event.large, event.bytes);
      break;
    case Kind::foreign_given:
      parts_.foreign_segments.remove(event.large, 1);
      parts_.foreign_bytes.remove(event.large, event.bytes);
      break;
  }
}

/// Free memory in the segments that small blocks share, cached blocks included, and in the
/// stretches that blocks in planned places share, as long as any is in use. Counted on demand: a
/// peak is the most that was seen then.
void EngineImpl::add_inactive(PoolTallies& t) const {
  int64_t pieces = 0, bytes = 0;
  const int64_t active = t.active[1].current - parts_.active_small;
  if (active > 0) {
    const SmallBlocks::Gaps gaps = small_blocks_.gaps();
    pieces = small_blocks_.blocks() - active + gaps.pieces;
    bytes = reserved_tally_[0].current() -
            (t.active_bytes[1].current - parts_.active_small_bytes) - gaps.whole_bytes;
  }
  parts_.shared.add_to(t.inactive_split, 1, pieces, t.active[1].allocated);
  parts_.shared_bytes.add_to(t.inactive_split_bytes, 1, bytes, t.active_bytes[1].allocated);
  if (placed_.regions().empty()) return;
  const auto [gaps, gap_bytes] = placed_.gaps([this](const Block& block) FIRN_HELD {
    return std::find(deferred_.begin(), deferred_.end(), &block) != deferred_.end();
  });
  parts_.regions.add_to(t.inactive_split, 2, gaps, t.active[2].allocated);
  parts_.regions_bytes.add_to(t.inactive_split_bytes, 2, gap_bytes, t.active_bytes[2].allocated);
}

}  // namespace firn
