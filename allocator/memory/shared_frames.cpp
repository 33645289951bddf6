#include "allocator/memory/shared_frames.h"

#include <bit>

#include "firn/check.h"

namespace firn {

namespace {

constexpr uint32_t all = UINT32_MAX;
static_assert(granule_pages == 32, "a frame's pages are the bits of a word");

constexpr uint32_t at_start(uint32_t pages) { return pages == 0 ? 0 : all >> (32 - pages); }
constexpr uint32_t at_end(uint32_t pages) { return pages == 0 ? 0 : all << (32 - pages); }
uint32_t ones(uint32_t word) { return static_cast<uint32_t>(std::popcount(word)); }

/// First positions of runs of `pages` set bits.
uint32_t runs(uint32_t word, uint32_t pages) {
  for (uint32_t have = 1; have < pages;) {
    const uint32_t step = std::min(have, pages - have);
    word &= word >> step;
    have += step;
  }
  return word;
}

/// Sizes of gaps at one end of the open frames: a bit for each size present.
struct Gaps {
  uint32_t sizes = 0;
  void add(uint32_t size) {
    if (size > 0 && size < granule_pages) sizes |= 1u << size;
  }
  bool exact(uint32_t size) const { return sizes >> size & 1; }
  bool fits(uint32_t size) const { return sizes >> size != 0; }
};

}  // namespace

uint32_t Shape::pages() const { return ones(head) + body * granule_pages + ones(tail); }

uint64_t Shape::offset() const {
  return head == 0 ? 0 : static_cast<uint64_t>(std::countr_zero(head)) * page_bytes;
}

/// Places a block within one open frame that has room: beside the taken pages, so that the free
/// ones stay in one piece. The tightest room first.
Shape SharedFrames::within_one(uint32_t pages) const {
  Shape shape;
  uint32_t tightest = granule_pages;
  for (uint32_t index : open_) {
    const uint32_t free = ~frames_[index].taken;
    const uint32_t starts = runs(free, pages);
    if (starts == 0 || ones(free) >= tightest) continue;
    tightest = ones(free);
    const auto first = static_cast<uint32_t>(std::countr_zero(starts));
    // At the start of the run; at its end if the run begins the frame.
    const uint32_t run = static_cast<uint32_t>(std::countr_one(free >> first));
    shape.head = at_start(pages) << (first == 0 ? run - pages : first);
  }
  return shape;
}

Shape SharedFrames::shape(uint32_t pages) const {
  const uint32_t rest = pages % granule_pages;
  FIRN_CHECK(rest != 0, "%u pages share nothing", pages);
  if (pages < granule_pages)
    if (const Shape within = within_one(pages); within.head != 0) return within;
  Gaps starts, ends;
  for (uint32_t index : open_) {
    const uint32_t free = ~frames_[index].taken;
    starts.add(static_cast<uint32_t>(std::countr_one(free)));
    ends.add(static_cast<uint32_t>(std::countl_one(free)));
  }
  Shape best;
  int best_cost = INT32_MAX;
  for (uint32_t head = 0; head < granule_pages; ++head) {
    const uint32_t tail = (rest + granule_pages - head) % granule_pages;
    if (head + tail > pages) continue;
    const uint32_t body = (pages - head - tail) / granule_pages;
    uint32_t fresh = 0;
    int cost = 0;
    const auto part = [&](uint32_t size, const Gaps& gaps) {
      if (size == 0) return;
      ++cost;  // one more mapping
      if (!gaps.fits(size))
        ++fresh;
      else
        cost += gaps.exact(size) ? -5 : 10;
    };
    part(head, ends);
    part(tail, starts);
    cost += static_cast<int>(body + fresh) * 1000;
    if (cost >= best_cost) continue;
    best_cost = cost;
    best = {at_end(head), body, at_start(tail)};
  }
  return best;
}

uint32_t SharedFrames::new_frames(const Shape& shape) const {
  const bool new_head = shape.head != 0 && find(shape.head) == none;
  if (shape.tail == 0) return shape.body + new_head;
  // The tail may lie beside the head, in a frame made for that.
  if (new_head && (shape.head & shape.tail) == 0) return shape.body + 1;
  const uint32_t head_in = new_head || shape.head == 0 ? none : find(shape.head);
  bool new_tail = true;
  for (uint32_t index : open_)
    if (!(frames_[index].taken & shape.tail) &&
        (index != head_in || !(shape.head & shape.tail)))
      new_tail = false;
  return shape.body + new_head + new_tail;
}

uint32_t SharedFrames::find(uint32_t pages) const {
  uint32_t best = none, most = 0;
  for (uint32_t index : open_) {
    const uint32_t taken = frames_[index].taken;
    if (taken & pages || (best != none && ones(taken) <= most)) continue;
    best = index;
    most = ones(taken);
  }
  return best;
}

uint32_t SharedFrames::take(uint32_t pages) {
  const uint32_t index = find(pages);
  if (index == none) return none;
  going_ -= frames_[index].goes();
  frames_[index].taken |= pages;
  free_pages_ -= ones(pages);
  if (frames_[index].taken == all) close(index);
  return index;
}

uint32_t SharedFrames::add(CUmemGenericAllocationHandle handle, uint32_t pages) {
  uint32_t index;
  if (spare_.empty()) {
    index = static_cast<uint32_t>(frames_.size());
    frames_.emplace_back();
  } else {
    index = spare_.back();
    spare_.pop_back();
  }
  frames_[index] = {handle, pages, 0, 0};
  ++count_;
  free_pages_ += granule_pages - ones(pages);
  open(index);
  return index;
}

bool SharedFrames::give(uint32_t index, uint32_t pages) {
  Shared& frame = frames_[index];
  FIRN_CHECK((frame.taken & pages) == pages, "frame %u: %x of %x", index, pages, frame.taken);
  if (frame.taken == all) open(index);
  going_ -= frame.goes();
  frame.taken &= ~pages;
  frame.going &= ~pages;
  going_ += frame.goes();
  free_pages_ += ones(pages);
  if (frame.taken != 0) return false;
  close(index);
  free_pages_ -= granule_pages;
  --count_;
  spare_.push_back(index);
  return true;
}

void SharedFrames::let_go(uint32_t index, uint32_t pages) {
  Shared& frame = frames_[index];
  going_ -= frame.goes();
  frame.going |= pages;
  going_ += frame.goes();
}

void SharedFrames::open(uint32_t index) {
  frames_[index].open_at = static_cast<uint32_t>(open_.size());
  open_.push_back(index);
}

void SharedFrames::close(uint32_t index) {
  const uint32_t at = frames_[index].open_at;
  open_[at] = open_.back();
  frames_[open_[at]].open_at = at;
  open_.pop_back();
}

}  // namespace firn
