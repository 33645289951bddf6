// Locks: none.
#include "allocator/order/graph.h"

#include <algorithm>
#include <utility>

namespace firn::order {
namespace {

using Pair = std::pair<uint32_t, uint32_t>;

void sort_unique(std::vector<Pair>& pairs) {
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
}

/// Storages alive before the start have no maker: an operator that claims one only writes it.
std::vector<uint32_t> makers(std::span<const Storage> storages, std::span<const Op> ops) {
  std::vector<uint32_t> maker(storages.size(), nothing);
  for (uint32_t op = 0; op < ops.size(); ++op)
    for (const uint32_t storage : ops[op].makes)
      if (maker[storage] == nothing && storages[storage].life == Life::made) maker[storage] = op;
  return maker;
}

template <typename Visit>
void each_named(const Op& op, const Visit& visit) {
  for (const auto* list : {&op.reads, &op.makes, &op.writes})
    for (const uint32_t storage : *list) visit(storage);
}

/// Operators that follow one another in a ring; empty where there is none.
std::vector<uint32_t> find_cycle(size_t ops, std::span<const Pair> edges) {
  const Lists after(ops, edges);
  std::vector<uint32_t> open(ops, 0);
  for (const auto& [from, to] : edges) ++open[to];
  std::vector<uint32_t> ready;
  for (uint32_t op = 0; op < ops; ++op)
    if (open[op] == 0) ready.push_back(op);
  for (size_t at = 0; at < ready.size(); ++at)
    for (const uint32_t next : after[ready[at]])
      if (--open[next] == 0) ready.push_back(next);
  if (ready.size() == ops) return {};
  // Each remaining operator has a remaining predecessor: walking back ends in a ring.
  std::vector<uint32_t> previous(ops, nothing), seen(ops, nothing), walk;
  for (const auto& [from, to] : edges)
    if (open[from] > 0 && open[to] > 0) previous[to] = from;
  uint32_t at = 0;
  while (open[at] == 0) ++at;
  for (; seen[at] == nothing; at = previous[at]) {
    seen[at] = static_cast<uint32_t>(walk.size());
    walk.push_back(at);
  }
  std::vector<uint32_t> cycle(walk.begin() + seen[at], walk.end());
  std::reverse(cycle.begin(), cycle.end());
  return cycle;
}

std::optional<Trouble> examine_storages(std::span<const Storage> storages,
                                        std::span<const Op> ops) {
  uint64_t all = 0;
  for (size_t i = 0; i < storages.size(); ++i) {
    if (storages[i].bytes > bytes_max - all)
      return Trouble{.kind = Trouble::Kind::bytes, .op = 0, .storage = i, .cycle = {}};
    all += storages[i].bytes;
  }
  const std::vector<uint32_t> maker = makers(storages, ops);
  for (size_t op = 0; op < ops.size(); ++op) {
    for (const uint32_t storage : ops[op].makes)
      if (maker[storage] != op && storages[storage].life == Life::made)
        return Trouble{Trouble::Kind::made_twice, op, storage, {}};
    std::optional<Trouble> trouble;
    each_named(ops[op], [&](uint32_t storage) {
      if (!trouble && maker[storage] == nothing && storages[storage].life == Life::made)
        trouble = Trouble{Trouble::Kind::not_made, op, storage, {}};
    });
    if (trouble) return trouble;
  }
  return {};
}

}  // namespace

Lists::Lists(size_t lists, std::span<const Pair> pairs)
    : begins_(lists + 1, 0), numbers_(pairs.size()) {
  for (const auto& [list, number] : pairs) ++begins_[list + 1];
  for (size_t i = 0; i < lists; ++i) begins_[i + 1] += begins_[i];
  std::vector<uint32_t> at(begins_.begin(), begins_.end() - 1);
  for (const auto& [list, number] : pairs) numbers_[at[list]++] = number;
}

std::vector<Pair> dependencies(std::span<const Storage> storages, std::span<const Op> ops) {
  std::vector<Pair> edges;
  const std::vector<uint32_t> maker = makers(storages, ops);
  std::vector<uint32_t> writer(storages.size(), nothing);
  std::vector<std::vector<uint32_t>> readers(storages.size());
  for (uint32_t op = 0; op < ops.size(); ++op) {
    each_named(ops[op], [&](uint32_t storage) {
      if (maker[storage] != nothing) edges.emplace_back(maker[storage], op);
    });
    for (const uint32_t storage : ops[op].reads)
      if (writer[storage] != nothing) edges.emplace_back(writer[storage], op);
    for (const auto* list : {&ops[op].writes, &ops[op].makes})
      for (const uint32_t storage : *list) {
        // Nothing precedes the maker: operators that name its storage earlier still come after it.
        if (maker[storage] != op) {
          for (const uint32_t reader : readers[storage]) edges.emplace_back(reader, op);
          if (writer[storage] != nothing) edges.emplace_back(writer[storage], op);
        }
        readers[storage].clear();
        writer[storage] = op;
      }
    for (const uint32_t storage : ops[op].reads)
      if (writer[storage] != op) readers[storage].push_back(op);
  }
  std::erase_if(edges, [](const Pair& edge) { return edge.first == edge.second; });
  sort_unique(edges);
  return edges;
}

std::optional<Trouble> examine(std::span<const Storage> storages, std::span<const Op> ops) {
  if (std::optional<Trouble> trouble = examine_storages(storages, ops)) return trouble;
  const std::vector<Pair> edges = dependencies(storages, ops);
  std::vector<uint32_t> cycle = find_cycle(ops.size(), edges);
  if (!cycle.empty()) return Trouble{Trouble::Kind::cycle, cycle[0], 0, std::move(cycle)};
  const std::vector<uint32_t> maker = makers(storages, ops);
  std::optional<Trouble> trouble;
  for (size_t op = 0; op < ops.size() && !trouble; ++op)
    each_named(ops[op], [&](uint32_t storage) {
      if (!trouble && maker[storage] != nothing && maker[storage] > op)
        trouble = Trouble{Trouble::Kind::too_early, op, storage, {}};
    });
  return trouble;
}

Graph make_graph(std::span<const Storage> storages, std::span<const Op> ops) {
  Graph graph;
  const std::vector<Pair> edges = dependencies(storages, ops);
  graph.after = Lists(ops.size(), edges);
  std::vector<Pair> pairs;
  for (const auto& [from, to] : edges) pairs.emplace_back(to, from);
  graph.before = Lists(ops.size(), pairs);
  const std::vector<uint32_t> maker = makers(storages, ops);

  std::vector<Pair> uses;  // (storage, op)
  for (uint32_t op = 0; op < ops.size(); ++op)
    each_named(ops[op], [&](uint32_t storage) { uses.emplace_back(storage, op); });
  sort_unique(uses);
  std::vector<uint32_t> number(storages.size(), nothing);
  std::vector<Pair> named_by, names, makes;
  graph.made_bytes.assign(ops.size(), 0);
  for (const auto& [storage, op] : uses) {
    const Storage& given = storages[storage];
    if (given.life == Life::throughout || given.bytes == 0) continue;
    if (number[storage] == nothing) {
      number[storage] = graph.storages();
      graph.given.push_back(storage);
      graph.bytes.push_back(given.bytes);
      const bool made = given.life == Life::made;
      graph.maker.push_back(made ? maker[storage] : nothing);
      if (made) {
        makes.emplace_back(maker[storage], number[storage]);
        graph.made_bytes[maker[storage]] += given.bytes;
      } else {
        graph.at_start += given.bytes;
      }
    }
    named_by.emplace_back(number[storage], op);
    names.emplace_back(op, number[storage]);
  }
  for (size_t i = 0; i < storages.size(); ++i)
    if (storages[i].life == Life::throughout ||
        (storages[i].life == Life::from_start && number[i] == nothing))
      graph.base += storages[i].bytes;
  graph.makes = Lists(ops.size(), makes);
  graph.names = Lists(ops.size(), names);
  graph.named_by = Lists(graph.bytes.size(), named_by);
  return graph;
}

}  // namespace firn::order
