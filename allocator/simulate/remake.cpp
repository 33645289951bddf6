#include "allocator/simulate/remake.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "allocator/base/cpu_timer.h"
#include "allocator/memory/units.h"
#include "allocator/policy/remake_choice.h"
#include "allocator/simulate/again.h"

namespace firn::simulate {

namespace {

lifetimes::RehearsalMachine rehearsal_machine(const MachineOptions& machine) {
  lifetimes::RehearsalMachine to;
  to.page_bytes = page_bytes;
  to.capacity = machine.gpu_bytes / page_bytes;
  to.host = machine.host_bytes / page_bytes;
  to.piece = machine.piece() / page_bytes;
  to.span = EngineOptions{}.span_bytes / page_bytes;
  to.bytes_s[0] = to.bytes_s[1] = machine.link_bytes_s;
  to.bytes_s[2] = machine.ssd_write_bytes_s * machine.ssds;
  to.bytes_s[3] = machine.ssd_read_bytes_s * machine.ssds;
  return to;
}

/// Builds the trace of the rewritten operators.
class Writer {
 public:
  Writer(const ProgramTrace& from, const lifetimes::Operators& operators)
      : from_(from), operators_(operators), again_name_(from.kernels.size(), SIZE_MAX),
        ran_(from.kernels.size(), false) {}

  ProgramTrace write() {
    to_.names = from_.names;
    to_.tensors_path = from_.tensors_path;
    to_.kernels_path = from_.kernels_path;
    to_.duration_ns = from_.duration_ns;
    add_tensors();
    for (const lifetimes::Operator& one : operators_.operators) add(one);
    return std::move(to_);
  }

 private:
  void add_tensors() {
    uint64_t id = 0;
    for (const TraceTensor& tensor : from_.tensors) {
      to_.tensors.push_back(tensor);
      id = std::max(id, tensor.id);
    }
    for (size_t v = from_.tensors.size(); v < operators_.values.size(); ++v)
      to_.tensors.push_back({.id = ++id, .bytes = operators_.values[v].bytes});
    for (TraceTensor& tensor : to_.tensors) tensor.first = tensor.last = no_kernel;
  }

  void add(const lifetimes::Operator& one) {
    const auto index = static_cast<uint32_t>(to_.kernels.size());
    TraceKernel kernel = from_.kernels[one.source];
    // The original is the first that has its number: nothing runs again before it has run.
    if (ran_[one.source]) {
      to_.duration_ns += one.ns;
      to_.again_ns += one.ns;
      name_again(one.source, kernel);
    }
    ran_[one.source] = true;
    kernel.uses_at = to_.uses.size();
    kernel.inputs = one.reads;
    kernel.outputs = one.writes;
    for (const uint32_t tensor : operators_.named(one)) {
      to_.uses.push_back(tensor);
      TraceTensor& named = to_.tensors[tensor];
      if (named.first == no_kernel) named.first = index;
      named.last = index;
    }
    to_.kernels.push_back(kernel);
  }

  void name_again(uint32_t source, TraceKernel& kernel) {
    const std::string name = "remake(" + std::string(from_.name(kernel)) + ")";
    if (again_name_[source] == SIZE_MAX) {
      again_name_[source] = to_.names.size();
      to_.names += name;
    }
    kernel.name_at = again_name_[source];
    kernel.name_bytes = static_cast<uint32_t>(name.size());
  }

  const ProgramTrace& from_;
  const lifetimes::Operators& operators_;
  ProgramTrace to_;
  std::vector<size_t> again_name_;  // per original kernel: its name when it runs again
  std::vector<bool> ran_;           // per original kernel
};

}  // namespace

lifetimes::Operators operators_of(const ProgramTrace& trace) {
  lifetimes::Operators operators;
  for (const TraceTensor& tensor : trace.tensors)
    operators.values.push_back({tensor.bytes, tensor.persistent});
  for (uint32_t k = 0; k < trace.kernels.size(); ++k) {
    const TraceKernel& kernel = trace.kernels[k];
    const std::string_view name = trace.name(kernel);
    operators.add({.ns = kernel.duration_ns, .again = may_run_again(name),
                   .leaves_state = runs_again_without_state(name), .source = k},
                  trace.inputs(kernel), trace.outputs(kernel));
  }
  return operators;
}

Remade remake(const ProgramTrace& trace, const MachineOptions& machine) {
  const double map = machine.driver_costs ? map_ns + access_ns + unmap_ns : 0;
  uint64_t choice_ns = 0;
  const RemakeChoice choice = [&] {
    const CpuTimer timer(choice_ns);
    return choose_remake(operators_of(trace), rehearsal_machine(machine), map);
  }();
  Remade remade;
  remade.choice_s = static_cast<double>(choice_ns) * 1e-9;
  remade.values = choice.rewritten.values;
  remade.bytes = choice.rewritten.bytes;
  remade.again_s = static_cast<double>(choice.rewritten.ns) * 1e-9;
  if (remade.values) remade.faster = 1 - choice.chosen_ns / choice.alone_ns;
  remade.trace =
      choice.rewritten.values ? Writer(trace, choice.rewritten.operators).write() : trace;
  return remade;
}

}  // namespace firn::simulate
