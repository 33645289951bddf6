// A layout instance with its times reduced to sections: the moments at which locally the most
// buffers live, in order of time. Two buffers live at once exactly if they share a section; a
// buffer's sections are consecutive. Every solver here works on this.
// Owns: its arrays. Locks: none (immutable once built).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "allocator/layout/layout.h"

namespace firn::layout {

/// A buffer by sections: alive in [first, last). size > 0, first < last.
struct Item {
  uint32_t first = 0, last = 0;
  uint64_t size = 0;
  bool operator==(const Item&) const = default;
};

struct Problem {
  std::vector<Item> items;
  std::vector<uint64_t> loads;  // of each section: the sum of the sizes alive in it
  uint64_t load = 0;            // the largest of them: no layout is lower

  uint32_t sections() const { return static_cast<uint32_t>(loads.size()); }
};

/// Which items live in each section, and which begin there. As large as all lifetimes together.
class Sections {
 public:
  explicit Sections(const Problem& problem);
  std::span<const uint32_t> alive(uint32_t section) const {
    return {alive_.data() + alive_begin_[section], alive_.data() + alive_begin_[section + 1]};
  }
  std::span<const uint32_t> beginning(uint32_t section) const {
    return {begins_.data() + begins_begin_[section], begins_.data() + begins_begin_[section + 1]};
  }

 private:
  std::vector<uint32_t> alive_begin_, alive_, begins_begin_, begins_;
};

/// item i is buffers[i]. Needs examine(buffers) to have found no trouble. O(n log n).
Problem make_problem(std::span<const Buffer> buffers);

/// The items of ranges of sections that no item crosses into or out of, in order of time.
std::vector<std::vector<uint32_t>> independent_parts(const Problem& problem);

/// The items `chosen` of `whole` alone, with the sections that they still need; item i is
/// whole.items[chosen[i]].
Problem make_part(const Problem& whole, std::span<const uint32_t> chosen);

/// The largest offset + size.
uint64_t height_of(const Problem& problem, std::span<const uint64_t> offsets);

}  // namespace firn::layout
