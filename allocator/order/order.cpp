// Locks: none of its own (improve.h, layout.h).
#include "allocator/order/order.h"

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "allocator/layout/layout.h"
#include "allocator/order/graph.h"
#include "allocator/order/improve.h"
#include "allocator/order/sequence.h"
#include "allocator/order/stop.h"

namespace firn::order {
namespace {

using Clock = Stop::Clock;

/// The buffers to lay out: the storages that come and go, by positions in the order.
std::vector<layout::Buffer> buffers_of(const Graph& graph, const Sequence& sequence) {
  std::vector<layout::Buffer> buffers(graph.storages());
  for (uint32_t i = 0; i < graph.storages(); ++i) {
    const uint32_t begin = graph.maker[i] == nothing ? 0 : sequence.position(graph.maker[i]);
    buffers[i] = {begin, uint64_t{sequence.last(i)} + 1, graph.bytes[i]};
  }
  return buffers;
}

/// Those alive throughout lie below all others, one on the other.
void place(std::span<const Storage> storages, const Graph& graph, const layout::Layout& layout,
           Plan& plan) {
  plan.offsets.assign(storages.size(), 0);
  std::vector<uint8_t> comes_and_goes(storages.size(), 0);
  for (uint32_t i = 0; i < graph.storages(); ++i) {
    comes_and_goes[graph.given[i]] = 1;
    plan.offsets[graph.given[i]] = graph.base + layout.offsets[i];
  }
  uint64_t end = 0;
  for (size_t i = 0; i < storages.size(); ++i) {
    if (comes_and_goes[i] || storages[i].life == Life::made) continue;
    plan.offsets[i] = end;
    end += storages[i].bytes;
  }
  plan.height = graph.base + layout.height;
}

/// Finds a layout as high as the peak; if there is none, tries other orders of the same peak.
Sequence lay_out(const Graph& graph, Improver& improver, const Options& options,
                 Clock::time_point end, layout::Layout& best) {
  // Large graphs: the greedy layouts, and that is all. Small ones: some hundred searches.
  constexpr uint64_t steps_least = 16, placed_most = 100'000;
  constexpr int orders_most = 4;
  constexpr uint64_t near_enough = 10'000;  // of the peak, one part in
  Sequence chosen = improver.best();
  const uint64_t steps = steps_least + placed_most / (1 + graph.storages());
  for (int number = 0; number < orders_most; ++number) {
    const Sequence sequence = number == 0 ? chosen : improver.another(number, end);
    if (sequence.peak() > chosen.peak()) continue;
    const Clock::duration left = std::max(end - Clock::now(), Clock::duration(0));
    const layout::Layout found = layout::solve(
        buffers_of(graph, sequence),
        {.capacity = sequence.peak(),
         .deadline = left,
         .seed = options.seed,
         .steps = steps,
         .threads = options.threads});
    if (number == 0 || found.height < best.height) {
      best = found;
      chosen = sequence;
    }
    const uint64_t peak = chosen.peak();
    if (best.height <= peak + peak / near_enough || Clock::now() >= end) break;
  }
  return chosen;
}

}  // namespace

Plan solve(std::span<const Storage> storages, std::span<const Op> ops, const Options& options) {
  const Clock::time_point begin = Clock::now();
  const Clock::time_point end =
      begin + std::min<Clock::duration>(options.deadline, Clock::time_point::max() - begin);
  // The rest is for the layout.
  const Clock::time_point order_end = begin + (end - begin) / 10 * 7;
  const Graph graph = make_graph(storages, ops);
  std::vector<uint32_t> given(ops.size());
  std::iota(given.begin(), given.end(), 0u);
  Improver improver(graph, Sequence(graph, std::move(given)), options.seed);
  Plan plan;
  plan.peak_given = graph.base + improver.best().peak();
  const unsigned threads =
      options.threads ? options.threads : std::max(1u, std::thread::hardware_concurrency());
  improver.improve(threads, order_end);
  layout::Layout layout;
  const Sequence sequence = lay_out(graph, improver, options, end, layout);
  plan.order = sequence.ops();
  plan.peak = graph.base + sequence.peak();
  plan.bound = graph.base + improver.bound();
  place(storages, graph, layout, plan);
  return plan;
}

}  // namespace firn::order
