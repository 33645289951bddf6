#include "allocator/blocks/block.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>

#include "allocator/base/huge_pages.h"
#include "firn/canary.h"

namespace firn {

bool hold_live(Block& block) {
  uint64_t w = block.word.load();
  const uint64_t barred = FIRN_CANARY(15) ? word::small : word::small | word::freed;
  while (!(w & barred) && word::state(w) == State::resident)
    if (block.word.try_hold(w)) return true;
  return false;
}

void make_spans(Block& block, uint32_t span_granules) {
  block.spans.clear();
  block.mapped = block.device = 0;
  const uint32_t each = block.shape.shared() ? block.pages : span_granules * granule_pages;
  for (uint32_t begin = 0; begin < block.pages; begin += each) {
    Span span;
    span.begin = begin;
    span.pages = std::min(each, block.pages - begin);
    block.spans.push_back(std::move(span));
  }
}

bool clean(std::span<const Piece> pieces) {
  return std::all_of(pieces.begin(), pieces.end(),
                     [](const Piece& piece) { return piece.elsewhere(); });
}

SpanRange spans_in(const Block& block, uint64_t begin, uint64_t end) {
  const uint64_t first = block.address, last = first + block.mapped_bytes();
  begin = std::max(begin, first);
  end = std::min(end, last);
  if (begin >= end || block.spans.empty()) return {0, 0};
  if (block.spans.size() == 1) return {0, 1};
  const uint64_t each = block.spans.front().pages * page_bytes;  // all but the last are alike
  return {static_cast<uint32_t>((begin - first) / each),
          static_cast<uint32_t>((end - first + each - 1) / each)};
}

std::span<Piece> pieces_of(Block& block, const Span& span) {
  // All pieces but the last are alike; a piece that is alone lies in the first span.
  const size_t each = block.pieces.size() > 1 ? block.pieces[1].offset
                                              : block.spans.front().pages * page_bytes;
  const size_t first = std::min(span.begin * page_bytes / each, block.pieces.size());
  const size_t last = std::min(((span.begin + span.pages) * page_bytes + each - 1) / each,
                               block.pieces.size());
  return {block.pieces.data() + first, last - first};
}

BlockTable::~BlockTable() {
  for (uint32_t i = 0; i < size_; ++i) std::destroy_at(&(*this)[i]);
  for (auto& slot : chunks_)
    if (Block* blocks = slot.load(std::memory_order_relaxed))
      give_huge(blocks, chunk * sizeof(Block));
}

Block* BlockTable::make() {
  if (!spare_.empty()) {
    Block* block = &(*this)[spare_.back()];
    spare_.pop_back();
    return block;
  }
  if (size_ == chunk * chunks) return nullptr;
  std::atomic<Block*>& slot = chunks_[size_ / chunk];
  if (!slot.load(std::memory_order_relaxed)) {
    void* memory = take_huge(chunk * sizeof(Block));
    if (!memory) return nullptr;
    slot.store(static_cast<Block*>(memory), std::memory_order_release);
  }
  Block* block = std::construct_at(&(*this)[size_]);
  block->index = size_++;
  return block;
}

namespace size_class {

// Up to 4 KiB in steps of 512 B (classes 0..7), from there eight classes to a doubling: 4.5 KiB,
// 5 KiB, ... 1 MiB. Waste is at most one step: 512 B, or an eighth.
unsigned of_small(size_t bytes) {
  if (bytes <= 4096) return bytes <= 512 ? 0 : static_cast<unsigned>((bytes - 1) / 512);
  unsigned doubling = std::bit_width(bytes - 1) - 13;  // 0 for (4096, 8192]
  size_t step = size_t{512} << doubling;
  return 8 + doubling * 8 +
         static_cast<unsigned>((bytes - (size_t{4096} << doubling) + step - 1) / step) - 1;
}

size_t small_bytes(unsigned size_class) {
  if (size_class < 8) return (size_class + 1) * 512;
  unsigned doubling = (size_class - 8) / 8;
  return (size_t{4096} << doubling) + ((size_class - 8) % 8 + 1) * (size_t{512} << doubling);
}

static_assert(small_most <= (1u << 20));

namespace {
constexpr uint32_t least = 16;  // pages of the smallest large block
constexpr uint32_t sharing_most = least << 5;

/// Log2 of the pages between classes: a sixteenth of the doubling's lower end (exclusive).
constexpr unsigned step_bits(uint32_t pages) {
  return pages <= 2 * least ? 0 : std::bit_width(pages - 1) - 5;
}
}  // namespace

uint32_t pages(size_t bytes, uint32_t shared_most) {
  const uint64_t exact = (bytes + page_bytes - 1) / page_bytes;
  const auto whole = static_cast<uint32_t>((exact + granule_pages - 1) / granule_pages *
                                           granule_pages);
  if (exact >= sharing_most) return whole;
  const unsigned bits = step_bits(static_cast<uint32_t>(exact));
  const auto rounded = static_cast<uint32_t>((((exact - 1) >> bits) + 1) << bits);
  return rounded <= shared_most ? rounded : whole;
}

unsigned of_pages(uint32_t pages) {
  if (pages % granule_pages == 0) {
    const uint32_t granules = pages / granule_pages;
    return granules <= whole_count ? small_count + granules - 1 : count;
  }
  const unsigned bits = step_bits(pages);
  return small_count + whole_count + bits * 16 + (pages >> bits) - least;
}

}  // namespace size_class

}  // namespace firn
