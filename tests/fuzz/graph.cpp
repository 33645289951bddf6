// Graphs of `firn order`: below "== storages" and "== ops" the two CSV files.
//
// Beyond no crash: an error names the file and one of its lines; the order has each operator once,
// and each after what it needs, as it is counted here; its peak is the one that is counted here, no
// higher than the given order's and no lower than the bound; no two storages alive at once overlap.
#include "allocator/command/graph_file.h"

#include <numeric>
#include <vector>

#include "tests/fuzz/fuzz.h"

using namespace firn;
using order::Life;

namespace {

constexpr size_t ops_solved = 40;  // more: only read

fuzz::Folder& folder() {
  static fuzz::Folder made;
  return made;
}

struct Use {
  uint32_t op;
  bool writes;
};

/// Of each storage: who names it, in the program's order.
std::vector<std::vector<Use>> uses_of(const command::GraphFile& graph) {
  std::vector<std::vector<Use>> uses(graph.storages().size());
  for (uint32_t op = 0; op < graph.ops().size(); ++op) {
    for (const uint32_t storage : graph.ops()[op].reads) uses[storage].push_back({op, false});
    for (const uint32_t storage : graph.ops()[op].makes) uses[storage].push_back({op, true});
    for (const uint32_t storage : graph.ops()[op].writes) uses[storage].push_back({op, true});
  }
  return uses;
}

struct Lifetime {
  size_t first = 1, last = 0;  // positions in an order; none: never alive
};

std::vector<Lifetime> lifetimes(const command::GraphFile& graph,
                                const std::vector<std::vector<Use>>& uses,
                                const std::vector<size_t>& position) {
  std::vector<Lifetime> all(uses.size());
  const size_t end = position.size() - 1;
  for (size_t i = 0; i < uses.size(); ++i) {
    const Life life = graph.storages()[i].life;
    size_t first = position.size(), last = 0;
    for (const Use& use : uses[i]) {
      first = std::min(first, position[use.op]);
      last = std::max(last, position[use.op]);
    }
    if (life == Life::throughout || (life == Life::from_start && uses[i].empty()))
      all[i] = {0, end};
    else if (!uses[i].empty())
      all[i] = {life == Life::from_start ? 0 : first, last};
  }
  return all;
}

fuzz::Wide peak_of(const command::GraphFile& graph, const std::vector<Lifetime>& lives,
                   size_t ops) {
  fuzz::Wide most = 0;
  for (size_t at = 0; at < ops; ++at) {
    fuzz::Wide alive = 0;
    for (size_t i = 0; i < lives.size(); ++i)
      if (lives[i].first <= at && at <= lives[i].last) alive += graph.storages()[i].bytes;
    most = std::max(most, alive);
  }
  return most;
}

void check_needs(const std::vector<std::vector<Use>>& uses, const std::vector<size_t>& position) {
  for (const auto& of_one : uses)
    for (size_t j = 0; j < of_one.size(); ++j)
      for (size_t i = 0; i < j; ++i) {
        const auto &a = of_one[i], &b = of_one[j];
        if (a.op == b.op || (!a.writes && !b.writes)) continue;
        FUZZ_CHECK(position[a.op] < position[b.op], "operator %u before %u", b.op, a.op);
      }
}

void check_places(const command::GraphFile& graph, const std::vector<Lifetime>& lives,
                  const order::Plan& plan) {
  FUZZ_CHECK(plan.offsets.size() == lives.size(), "offsets");
  fuzz::Wide height = 0;
  for (size_t i = 0; i < lives.size(); ++i) {
    if (lives[i].first > lives[i].last || graph.storages()[i].bytes == 0) continue;
    const fuzz::Wide begin = plan.offsets[i], end = begin + graph.storages()[i].bytes;
    height = std::max(height, end);
    for (size_t j = 0; j < i; ++j) {
      const uint64_t bytes = graph.storages()[j].bytes;
      if (bytes == 0 || lives[j].first > lives[i].last || lives[i].first > lives[j].last) continue;
      if (lives[j].first > lives[j].last) continue;
      const fuzz::Wide there = plan.offsets[j];
      FUZZ_CHECK(end <= there || there + bytes <= begin, "storages %zu and %zu overlap", j, i);
    }
  }
  FUZZ_CHECK(height <= plan.height, "the height");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto texts = fuzz::texts_of(data, size);
  const std::string storages = folder().write("g.storages.csv", texts["storages"]);
  const std::string ops = folder().write("g.ops.csv", texts["ops"]);
  Result<command::GraphFile> graph = command::GraphFile::read(folder().path() + "/g");
  if (!graph) {
    fuzz::check_file_error(graph.error().text,
                           {{storages, texts["storages"]}, {ops, texts["ops"]}});
    return 0;
  }
  if (graph->ops().size() > ops_solved || graph->storages().size() > 2 * ops_solved) return 0;
  const order::Plan plan =
      order::solve(graph->storages(), graph->ops(),
                   {.deadline = std::chrono::milliseconds(10), .seed = size, .threads = 1});
  const size_t count = graph->ops().size();
  FUZZ_CHECK(plan.order.size() == count, "%zu of %zu operators", plan.order.size(), count);
  std::vector<size_t> position(count, SIZE_MAX), given(count);
  for (size_t at = 0; at < count; ++at) {
    FUZZ_CHECK(plan.order[at] < count && position[plan.order[at]] == SIZE_MAX, "operator twice");
    position[plan.order[at]] = at;
  }
  std::iota(given.begin(), given.end(), size_t{0});
  const auto uses = uses_of(*graph);
  check_needs(uses, position);
  const auto lives = lifetimes(*graph, uses, position);
  const auto peak_given = peak_of(*graph, lifetimes(*graph, uses, given), count);
  FUZZ_CHECK(peak_given == plan.peak_given, "the given order's peak");
  FUZZ_CHECK(peak_of(*graph, lives, count) == plan.peak, "the peak");
  FUZZ_CHECK(plan.peak <= plan.peak_given && plan.peak >= plan.bound, "peak and bound");
  FUZZ_CHECK(plan.height >= plan.peak, "the height");
  check_places(*graph, lives, plan);
  (void)graph->order_text(plan.order);
  (void)graph->layout_text(plan.offsets);
  return 0;
}
