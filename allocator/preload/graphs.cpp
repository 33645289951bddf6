#include "allocator/preload/graphs.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "allocator/preload/captures.h"
#include "allocator/preload/copies.h"
#include "allocator/preload/give_way.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/inspections.h"

namespace firn::preload {

namespace {
constexpr const char* a_graph = "a graph";

/// An executable graph: its set, and a Kernel for what is known of its launches. A set that a
/// launch may be reading is never changed.
struct Executable {
  GraphSet set;
  std::shared_ptr<const Uses> uses = std::make_shared<Uses>();
  std::shared_ptr<Kernel> kernel = std::make_shared<Kernel>();
};
struct Graphs {
  std::mutex mutex;
  std::map<CUgraph, GraphSet> graphs;
  std::map<CUgraph, std::vector<CUgraph>> bodies;
  std::map<CUgraphExec, Executable> executables;
};
Graphs& graphs() {
  static Graphs& all = *new Graphs;
  return all;
}

void settle(Executable& executable) {
  executable.uses = std::make_shared<Uses>(executable.set.together());
}

/// With all its conditional nodes' bodies. Under the lock.
GraphSet set_locked(CUgraph graph) {
  GraphSet set;
  if (const auto found = graphs().graphs.find(graph); found != graphs().graphs.end())
    set = found->second;
  if (const auto found = graphs().bodies.find(graph); found != graphs().bodies.end())
    for (CUgraph body : found->second) set.all.add(set_locked(body).together());
  return set;
}
GraphSet set_of(CUgraph graph) {
  std::lock_guard lock(graphs().mutex);
  return set_locked(graph);
}

void forget_locked(CUgraph graph) {
  graphs().graphs.erase(graph);
  const auto found = graphs().bodies.find(graph);
  if (found == graphs().bodies.end()) return;
  const std::vector<CUgraph> bodies = std::move(found->second);
  graphs().bodies.erase(found);
  for (CUgraph body : bodies) forget_locked(body);
}

/// A driver may look at the addresses of a graph's nodes when it makes or changes an executable:
/// they are on the device then.
template <class Call>
CUresult with_set(const Uses& uses, Call&& call) {
  Work work(where_on(nullptr));
  for (uint64_t word : uses.words) work.see(word);
  if (CUresult result = work.hold(false)) return result;
  return or_give_way(a_graph, call, &work);
}

template <class Call>
CUresult instantiate(CUgraphExec* exec, CUgraph graph, Call&& call) {
  GraphSet set = set_of(graph);
  const CUresult result = with_set(set.together(), call);
  if (result != CUDA_SUCCESS) return result;
  std::lock_guard lock(graphs().mutex);
  Executable& executable = graphs().executables[*exec];
  executable.kernel = std::make_shared<Kernel>();  // another one may have had the handle
  executable.set = std::move(set);
  settle(executable);
  return result;
}

/// All nodes have the other graph's parameters from here.
template <class Call>
CUresult update(CUgraphExec exec, CUgraph graph, Call&& call) {
  GraphSet set = set_of(graph);
  const CUresult result = with_set(set.together(), call);
  std::lock_guard lock(graphs().mutex);
  Executable& executable = graphs().executables[exec];
  if (result == CUDA_SUCCESS)
    executable.set = std::move(set);
  else  // how far it came is unknown
    executable.set.all.add(set.together());
  settle(executable);
  return result;
}

template <class Call>
CUresult launch_graph(CUgraphExec exec, CUstream stream, Call&& call) {
  if (views().count() == 0) return call();
  Enqueues enqueues(stream);
  std::shared_ptr<const Uses> uses;
  std::shared_ptr<Kernel> kernel;
  {
    std::lock_guard lock(graphs().mutex);
    const auto found = graphs().executables.find(exec);
    if (found == graphs().executables.end()) return call();
    uses = found->second.uses;
    kernel = found->second.kernel;
  }
  counters().graph_launches.fetch_add(1, std::memory_order_relaxed);
  if (captures_under_way())
    if (CUgraph into = captured_into(stream)) {
      note_captured(into, *uses);
      return call();
    }
  if (uses->beside_host) enqueues.wait();
  Work work(where_on(stream));
  for (uint64_t word : uses->words) work.see(word);
  if (uses->everything) work.see_all();
  std::vector<uint64_t> overwritten;
  for (const Copy& copy : uses->copies) collect_overwritten(copy, overwritten);
  for (uint64_t word : overwritten) work.see(word);
  for (const Copy& copy : uses->copies) tell_tables_again(copy);
  if (work.empty() && !tables().foreign()) return or_give_way(a_graph, call);
  if (CUresult result = work.hold(true)) return result;
  const CUresult result = or_give_way(a_graph, call, &work);
  if (result == CUDA_SUCCESS && inspections().wanted(*kernel, work.followed()))
    inspections().add(*kernel, work.followed(), stream, work.reached(), kernel);
  work.release(result == CUDA_SUCCESS);
  return result;
}
}  // namespace

void Uses::tidy() {
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  tidied = words.size();
}

/// Drops words outside the arenas, which keeps the set short.
void Uses::add(uint64_t word) {
  if (!views().at(word)) return;
  words.push_back(word);
  // Long captures touch the same blocks again and again.
  if (words.size() > 2 * tidied + 1024) tidy();
}

void Uses::add(const Uses& other) {
  for (uint64_t word : other.words) add(word);
  copies.insert(copies.end(), other.copies.begin(), other.copies.end());
  everything |= other.everything;
  beside_host |= other.beside_host;
}

Uses GraphSet::together() const {
  Uses uses = all;
  for (const auto& [node, of] : of_node) uses.add(of);
  uses.tidy();
  return uses;
}

void note_captured(CUgraph graph, const Uses& uses) {
  std::lock_guard lock(graphs().mutex);
  graphs().graphs[graph].all.add(uses);
}

void note_node(CUgraph graph, CUgraphNode node, Uses uses) {
  std::lock_guard lock(graphs().mutex);
  graphs().graphs[graph].of_node[node] = std::move(uses);
}

void note_node(CUgraphExec exec, CUgraphNode node, Uses uses) {
  std::lock_guard lock(graphs().mutex);
  Executable& executable = graphs().executables[exec];
  executable.set.of_node[node] = std::move(uses);
  settle(executable);
}

void join_graphs(CUgraph into, CUgraph from) {
  std::lock_guard lock(graphs().mutex);
  const Uses uses = set_locked(from).together();
  graphs().graphs[into].all.add(uses);
}

void join_executable(CUgraphExec into, CUgraph from) {
  std::lock_guard lock(graphs().mutex);
  Executable& executable = graphs().executables[into];
  executable.set.all.add(set_locked(from).together());
  settle(executable);
}

void add_body(CUgraph graph, CUgraph body) {
  std::lock_guard lock(graphs().mutex);
  graphs().bodies[graph].push_back(body);
}

CUresult cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* node, char* log,
                            size_t log_bytes) {
  return instantiate(exec, graph, [&] {
    return real().cuGraphInstantiate(exec, graph, node, log, log_bytes);
  });
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return instantiate(exec, graph,
                     [&] { return real().cuGraphInstantiateWithFlags(exec, graph, flags); });
}
CUresult cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* node, char* log,
                               size_t log_bytes) {
  return instantiate(exec, graph, [&] {
    return real().cuGraphInstantiate_v2(exec, graph, node, log, log_bytes);
  });
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph, void* parameters) {
  return instantiate(exec, graph, [&] {
    return real().cuGraphInstantiateWithParams(exec, graph, parameters);
  });
}
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* exec, CUgraph graph, void* parameters) {
  return instantiate(exec, graph, [&] {
    return real().cuGraphInstantiateWithParams_ptsz(exec, graph, parameters);
  });
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* node, int* how) {
  return update(exec, graph, [&] { return real().cuGraphExecUpdate(exec, graph, node, how); });
}
CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, void* how) {
  return update(exec, graph, [&] { return real().cuGraphExecUpdate_v2(exec, graph, how); });
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  return launch_graph(exec, stream, [&] { return real().cuGraphLaunch(exec, stream); });
}
CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  return launch_graph(exec, stream ? stream : CU_STREAM_PER_THREAD,
                      [&] { return real().cuGraphLaunch_ptsz(exec, stream); });
}

// A destroyed handle may come again: what it was is forgotten first.
CUresult cuGraphDestroy(CUgraph graph) {
  {
    std::lock_guard lock(graphs().mutex);
    forget_locked(graph);
  }
  forget_nodes(graph);
  return real().cuGraphDestroy(graph);
}
CUresult cuGraphExecDestroy(CUgraphExec exec) {
  {
    std::lock_guard lock(graphs().mutex);
    graphs().executables.erase(exec);
  }
  return real().cuGraphExecDestroy(exec);
}

}  // namespace firn::preload
