#include "allocator/preload/graphs.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "allocator/preload/captures.h"
#include "allocator/preload/copies.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/inspections.h"

namespace firn::preload {

namespace {
/// An executable: its set, and what is known of its launches as of a kernel's.
struct Executable {
  GraphSet set;
  std::shared_ptr<Kernel> kernel = std::make_shared<Kernel>();
};
struct Graphs {
  std::mutex mutex;
  std::map<CUgraph, GraphSet> graphs;
  std::map<CUgraphExec, Executable> executables;
};
Graphs& graphs() {
  static Graphs& all = *new Graphs;
  return all;
}
/// In no arena: kept out, so that a set is as long as it must be.
void add_word(GraphSet& set, uint64_t word) {
  if (!views().at(word)) return;
  set.words.push_back(word);
  // Long captures touch the same blocks again and again.
  if (set.words.size() > 2 * set.tidied + 1024) set.tidy();
}

/// What copies in the graph will have done once it has run.
void tell_tables(const GraphSet& set) {
  for (const GraphCopy& copy : set.copies) {
    if (copy.from_host)
      (void)tables().write(copy.to, reinterpret_cast<const void*>(copy.from), copy.bytes, true);
    else
      tables().copy(copy.to, copy.from, copy.bytes, true);
  }
}

GraphSet set_of(CUgraph graph) {
  std::lock_guard lock(graphs().mutex);
  const auto found = graphs().graphs.find(graph);
  if (found == graphs().graphs.end()) return {};
  found->second.tidy();
  return found->second;
}

/// A driver may look at the addresses of a graph's nodes when it makes or changes an executable:
/// they are on the device then.
template <class Call>
CUresult with_set(const GraphSet& set, Call&& call) {
  Work work(where(nullptr));
  for (uint64_t word : set.words) work.see(word);
  if (CUresult result = work.hold(false)) return result;
  return call();
}

template <class Call>
CUresult instantiate(CUgraphExec* exec, CUgraph graph, Call&& call) {
  GraphSet set = set_of(graph);
  const CUresult result = with_set(set, call);
  if (result != CUDA_SUCCESS) return result;
  std::lock_guard lock(graphs().mutex);
  Executable& executable = graphs().executables[*exec];
  executable = {};
  executable.set = std::move(set);
  return result;
}

template <class Call>
CUresult launch_graph(CUgraphExec exec, CUstream stream, Call&& call) {
  if (views().count() == 0) return call();
  GraphSet set;
  std::shared_ptr<Kernel> kernel;
  {
    std::lock_guard lock(graphs().mutex);
    const auto found = graphs().executables.find(exec);
    if (found == graphs().executables.end()) return call();
    set = found->second.set;
    kernel = found->second.kernel;
  }
  counters().graph_launches.fetch_add(1, std::memory_order_relaxed);
  if (captures_under_way())
    if (CUgraph into = captured_into(stream)) {
      note_captured(into, set.words, set.copies);
      return call();
    }
  Work work(where(stream));
  for (uint64_t word : set.words) work.see(word);
  std::vector<uint64_t> overwritten;
  for (const GraphCopy& copy : set.copies) tables().collect(copy.to, copy.bytes, overwritten);
  for (uint64_t word : overwritten) work.see(word);
  tell_tables(set);
  if (work.empty() && !tables().foreign()) return call();
  if (CUresult result = work.hold(true)) return result;
  const CUresult result = call();
  if (result == CUDA_SUCCESS && inspections().wanted(*kernel, work.followed()))
    inspections().add(*kernel, work.followed(), stream, work.reached(), kernel);
  work.release(result == CUDA_SUCCESS);
  return result;
}
}  // namespace

void GraphSet::add(const GraphSet& other) {
  words.insert(words.end(), other.words.begin(), other.words.end());
  copies.insert(copies.end(), other.copies.begin(), other.copies.end());
  tidy();
}

void GraphSet::tidy() {
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  tidied = words.size();
}

void note_captured(CUgraph graph, std::span<const uint64_t> words,
                   std::span<const GraphCopy> copies) {
  std::lock_guard lock(graphs().mutex);
  GraphSet& set = graphs().graphs[graph];
  for (uint64_t word : words) add_word(set, word);
  set.copies.insert(set.copies.end(), copies.begin(), copies.end());
}

void note_executable(CUgraphExec exec, std::span<const uint64_t> words) {
  std::lock_guard lock(graphs().mutex);
  Executable& executable = graphs().executables[exec];
  for (uint64_t word : words) add_word(executable.set, word);
}

void join_graphs(CUgraph into, CUgraph from) {
  std::lock_guard lock(graphs().mutex);
  const auto found = graphs().graphs.find(from);
  if (found == graphs().graphs.end()) return;
  const GraphSet set = found->second;
  graphs().graphs[into].add(set);
}

void join_executable(CUgraphExec into, CUgraph from) {
  std::lock_guard lock(graphs().mutex);
  const auto found = graphs().graphs.find(from);
  if (found != graphs().graphs.end()) graphs().executables[into].set.add(found->second);
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
  const CUresult result = with_set(
      set_of(graph), [&] { return real().cuGraphExecUpdate(exec, graph, node, how); });
  if (result == CUDA_SUCCESS) join_executable(exec, graph);
  return result;
}
CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, void* how) {
  const CUresult result =
      with_set(set_of(graph), [&] { return real().cuGraphExecUpdate_v2(exec, graph, how); });
  if (result == CUDA_SUCCESS) join_executable(exec, graph);
  return result;
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
    graphs().graphs.erase(graph);
  }
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
