// Locks: none.
#include "allocator/layout/problem.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace firn::layout {
namespace {

/// A buffer's begin or end.
struct Edge {
  uint64_t time = 0;
  uint32_t buffer = 0;
  bool begins = false;
};

constexpr size_t radix_sort_least = size_t{1} << 14;
constexpr unsigned digit_bits = 11;

/// Stable, by digits of the time from the lowest; digits that are the same everywhere cost nothing.
void sort_by_time(std::vector<Edge>& edges) {
  if (edges.size() < radix_sort_least) {
    std::stable_sort(edges.begin(), edges.end(),
                     [](const Edge& a, const Edge& b) { return a.time < b.time; });
    return;
  }
  uint64_t different = 0;
  for (const Edge& edge : edges) different |= edge.time ^ edges[0].time;
  std::vector<Edge> other(edges.size());
  for (unsigned shift = 0; shift < 64; shift += digit_bits) {
    constexpr uint64_t mask = (1u << digit_bits) - 1;
    if ((different >> shift & mask) == 0) continue;
    std::array<size_t, mask + 2> begins{};
    for (const Edge& edge : edges) ++begins[(edge.time >> shift & mask) + 1];
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    for (const Edge& edge : edges) other[begins[edge.time >> shift & mask]++] = edge;
    edges.swap(other);
  }
}

/// In order of time. Ends come before begins at the same time: such buffers do not live together.
std::vector<Edge> edges_of(std::span<const Buffer> buffers) {
  std::vector<Edge> edges;
  edges.reserve(2 * buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i)
    edges.push_back({buffers[i].upper, static_cast<uint32_t>(i), false});
  for (size_t i = 0; i < buffers.size(); ++i)
    edges.push_back({buffers[i].lower, static_cast<uint32_t>(i), true});
  sort_by_time(edges);
  return edges;
}

/// Sections end where something ends after something began.
Problem problem_of(std::span<const Buffer> buffers) {
  Problem problem;
  problem.items.resize(buffers.size());
  uint32_t section = 0;
  uint64_t alive = 0;
  bool grown = false;
  for (const Edge& edge : edges_of(buffers)) {
    Item& item = problem.items[edge.buffer];
    if (edge.begins) {
      item.first = section;
      item.size = buffers[edge.buffer].size;
      alive += item.size;
    } else {
      if (grown) {
        problem.loads.push_back(alive);
        ++section;
      }
      item.last = section;
      alive -= item.size;
    }
    grown = edge.begins;
  }
  if (!problem.loads.empty())
    problem.load = *std::max_element(problem.loads.begin(), problem.loads.end());
  return problem;
}

}  // namespace

Examined examine(std::span<const Buffer> buffers) {
  const auto wrong = [](Trouble::Kind kind, size_t buffer) {
    return Examined{Trouble{kind, buffer}, {}};
  };
  if (buffers.size() > buffers_max) return wrong(Trouble::Kind::count, buffers_max);
  uint64_t sum = 0;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const auto [lower, upper, size] = buffers[i];
    if (lower >= upper) return wrong(Trouble::Kind::lifetime, i);
    if (size == 0 || size > size_max) return wrong(Trouble::Kind::size, i);
    sum = sum > size_max - size ? size_max + 1 : sum + size;
  }
  // In any order, needless stacking stays below 2^64.
  const uint64_t load_max = sum <= size_max ? size_max : load_max_of_many;
  Examined examined;
  uint64_t alive = 0;
  for (const Edge& edge : edges_of(buffers)) {
    const uint64_t size = buffers[edge.buffer].size;
    alive = edge.begins ? alive + size : alive - size;
    if (alive > load_max) return wrong(Trouble::Kind::load, edge.buffer);
    if (alive > examined.load.bytes) examined.load = {alive, edge.time, edge.buffer};
  }
  return examined;
}

Sections::Sections(const Problem& problem)
    : alive_begin_(problem.sections() + 1), begins_begin_(problem.sections() + 1) {
  for (const Item& item : problem.items) {
    ++begins_begin_[item.first + 1];
    for (uint32_t s = item.first; s < item.last; ++s) ++alive_begin_[s + 1];
  }
  std::partial_sum(alive_begin_.begin(), alive_begin_.end(), alive_begin_.begin());
  std::partial_sum(begins_begin_.begin(), begins_begin_.end(), begins_begin_.begin());
  alive_.resize(alive_begin_.back());
  begins_.resize(begins_begin_.back());
  std::vector<uint32_t> alive_end(alive_begin_), begins_end(begins_begin_);
  for (uint32_t i = 0; i < problem.items.size(); ++i) {
    const Item& item = problem.items[i];
    begins_[begins_end[item.first]++] = i;
    for (uint32_t s = item.first; s < item.last; ++s) alive_[alive_end[s]++] = i;
  }
}

Problem make_problem(std::span<const Buffer> buffers) { return problem_of(buffers); }

std::vector<std::vector<uint32_t>> independent_parts(const Problem& problem) {
  std::vector<uint32_t> reach(problem.sections(), 0);  // the last end of the items that begin there
  for (const Item& item : problem.items)
    reach[item.first] = std::max(reach[item.first], item.last);
  std::vector<uint32_t> part_of(problem.sections(), 0);
  uint32_t parts = 0, end = 0;
  for (uint32_t s = 0; s < problem.sections(); ++s) {
    if (s == end) ++parts;
    end = std::max(end, reach[s]);
    part_of[s] = parts - 1;
  }
  std::vector<std::vector<uint32_t>> items(parts);
  for (uint32_t i = 0; i < problem.items.size(); ++i)
    items[part_of[problem.items[i].first]].push_back(i);
  return items;
}

Problem make_part(const Problem& whole, std::span<const uint32_t> chosen) {
  std::vector<Buffer> buffers;
  buffers.reserve(chosen.size());
  for (uint32_t index : chosen) {
    const Item& item = whole.items[index];
    buffers.push_back({item.first, item.last, item.size});
  }
  return problem_of(buffers);
}

uint64_t height_of(const Problem& problem, std::span<const uint64_t> offsets) {
  uint64_t height = 0;
  for (size_t i = 0; i < offsets.size(); ++i)
    height = std::max(height, offsets[i] + problem.items[i].size);
  return height;
}

}  // namespace firn::layout
