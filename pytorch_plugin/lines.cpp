#include "pytorch_plugin/lines.h"

#include <ATen/record_function.h>
#include <dlfcn.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <array>
#include <memory>
#include <mutex>
#include <optional>

#include "pytorch_plugin/python_state.h"
#include "pytorch_plugin/scopes.h"

namespace firn::pytorch {

namespace {

// The forward operators of the last so many nodes; a power of two.
constexpr size_t remembered_most = 1 << 14;

struct Remembered {
  uint64_t thread = 0;
  int64_t number = -1;
  std::string name;
  std::shared_ptr<torch::CapturedTraceback> line;
};

struct Table {
  std::mutex mutex;
  std::array<Remembered, remembered_most> nodes;
  std::optional<at::CallbackHandle> forward, backward;
};

Table& table() {
  static auto* kept = new Table;  // threads may run until the very end
  return *kept;
}

Remembered& remembered(uint64_t thread, int64_t number) {
  // Neighbours in a thread are neighbours here; threads begin at different indices.
  const uint64_t at = static_cast<uint64_t>(number) + thread * 0x9e3779b97f4a7c15ull;
  return table().nodes[at % remembered_most];
}

/// The node that the calling thread runs; none: `name` is null.
struct Node {
  const char* name = nullptr;
  uint64_t thread = 0;  // that made it
  int64_t number = -1;
};
thread_local Node running;

/// Nodes run within nodes (reentrant backward).
struct Before : at::ObserverContext {
  Node node;
};

std::unique_ptr<at::ObserverContext> node_begins(const at::RecordFunction& record) {
  auto before = std::make_unique<Before>();
  before->node = running;
  running = {record.name(), record.forwardThreadId(), record.seqNr()};
  return before;
}

void node_ends(const at::RecordFunction&, at::ObserverContext* context) {
  if (context) running = static_cast<Before*>(context)->node;
}

/// ".../torch/": the program's own lines are elsewhere.
const std::string& torch_folder() {
  static const std::string folder = [] {
    Dl_info info{};
    if (!dladdr(reinterpret_cast<const void*>(&torch::symbolize), &info) || !info.dli_fname)
      return std::string();
    const std::string path = info.dli_fname;  // .../torch/lib/libtorch_cpu.so
    const size_t end = path.rfind("/lib/");
    return end == std::string::npos ? std::string() : path.substr(0, end + 1);
  }();
  return folder;
}

/// Empty: no frame is the program's own, or Python is out of reach.
std::string line_of(const std::shared_ptr<torch::CapturedTraceback>& captured) {
  const PythonKept kept;
  if (!kept) return {};
  const auto told = std::make_shared<torch::SymbolizedTracebacks>();
  if (!run_python([captured, told] { *told = torch::symbolize({captured.get()}); })) return {};
  for (const uint64_t index : told->tracebacks.at(0)) {
    const torch::unwind::Frame& frame = told->all_frames[index];
    const bool torchs = !torch_folder().empty() && frame.filename.starts_with(torch_folder());
    if (torchs || frame.filename.starts_with("<frozen")) continue;
    return frame.filename + ":" + std::to_string(frame.lineno) + " in " + frame.funcname;
  }
  return {};
}

std::string line_of_node(const Node& node) {
  std::string name;
  std::shared_ptr<torch::CapturedTraceback> line;
  {
    std::lock_guard lock(table().mutex);
    const Remembered& known = remembered(node.thread, node.number);
    if (known.line && known.thread == node.thread && known.number == node.number) {
      name = known.name;
      line = known.line;
    }
  }
  const std::string at = line ? line_of(line) : std::string();
  // Gradient accumulation has no forward operator.
  return at.empty() ? std::string("backward, in ") + node.name
                    : "backward of " + name + " at " + at;
}

std::unique_ptr<at::ObserverContext> operator_begins(const at::RecordFunction&) { return nullptr; }

/// The operator may have made a node. Outermost ones only: within them blocks are held.
void operator_ends(const at::RecordFunction& record, at::ObserverContext*) {
  if (record.seqNr() < 0 || ThreadScopes::mine().inside()) return;
  const PythonKept kept;  // the operator may be unwinding from a Python exception
  if (!kept) return;
  std::shared_ptr<torch::CapturedTraceback> line =
      torch::CapturedTraceback::gather(true, false, false);
  const uint64_t thread = at::RecordFunction::currentThreadId();
  std::lock_guard lock(table().mutex);
  Remembered& at = remembered(thread, record.seqNr());
  // An operator that makes no node has the number of the next one that does, which comes last.
  at.thread = thread;
  at.number = record.seqNr();
  at.name = record.name();
  at.line.swap(line);  // (the older one ends outside the lock)
}

}  // namespace

void observe_lines(bool wanted) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  Table& kept = table();
  for (std::optional<at::CallbackHandle>* callback : {&kept.forward, &kept.backward}) {
    if (*callback) at::removeCallback(**callback);
    callback->reset();
  }
  if (!wanted) return;
  kept.forward = at::addGlobalCallback(at::RecordFunctionCallback(operator_begins, operator_ends)
                                           .scopes({at::RecordScope::FUNCTION}));
  kept.backward = at::addGlobalCallback(at::RecordFunctionCallback(node_begins, node_ends)
                                            .scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

std::string line_of_thread(std::string_view otherwise) {
  if (const PythonKept kept; kept) {
    const std::shared_ptr<torch::CapturedTraceback> captured =
        torch::CapturedTraceback::gather(true, false, false);
    if (std::string line = line_of(captured); !line.empty()) return line;
  }
  if (running.name) return line_of_node(running);
  return "no line of Python's (a thread of autograd's, say), in " + std::string(otherwise);
}

}  // namespace firn::pytorch
