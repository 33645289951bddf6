#include "allocator/simulate/cut_lists.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "allocator/blocks/block.h"

namespace firn::simulate {

namespace {

constexpr uint64_t whole_part = 2;  // as in list_operators.cpp, of what can be had
constexpr uint64_t slice_part = 8;
constexpr uint32_t single_most = 3;  // tensors beside the lists: learning rate, scale, found_inf

/// An operator's lists: their length, and how many are among its inputs and outputs.
struct Lists {
  uint32_t length = 0;  // 0: not known
  uint32_t inputs = 0, outputs = 0;
};

/// A kind of operator over lists: how many lists its outputs and inputs are, at least and at most.
struct Kind {
  std::string_view name;
  uint32_t outputs_least, outputs_most, more_inputs_least, more_inputs_most;
};
// _fused_adamw_(self!, grads!, exp_avgs!, exp_avg_sqs!, max_exp_avg_sqs!, state_steps) and so on.
constexpr std::array kinds = {
    Kind{"aten::_fused_adam", 4, 5, 1, 1},
    Kind{"aten::_fused_sgd", 2, 3, 0, 0},
    Kind{"aten::_fused_adagrad", 4, 4, 0, 0},
};

class Cutter {
 public:
  Cutter(const ProgramTrace& from, uint64_t gpu_bytes) : from_(from), gpu_bytes_(gpu_bytes) {}

  ProgramTrace cut() {
    out_.tensors = from_.tensors;
    for (TraceTensor& tensor : out_.tensors) tensor.first = tensor.last = no_kernel;
    out_.duration_ns = from_.duration_ns;
    out_.host_ns = from_.host_ns;
    out_.host_rows = from_.host_rows;
    out_.names = from_.names;
    out_.tensors_path = from_.tensors_path;
    out_.kernels_path = from_.kernels_path;
    seen_.assign(from_.tensors.size(), 0);
    for (const TraceKernel& kernel : from_.kernels) {
      const Lists lists = lists_of(kernel);
      if (lists.length > 1 && !kernel.host && bytes_of(kernel) > gpu_bytes_ / whole_part)
        add_slices(kernel, lists);
      else
        add(kernel, from_.inputs(kernel), from_.outputs(kernel), kernel.duration_ns);
    }
    return std::move(out_);
  }

 private:
  uint64_t bytes_of(uint32_t tensor) const {
    const uint64_t bytes = from_.tensors[tensor].bytes;
    return bytes <= size_class::small_most ? bytes
                                           : (bytes + granule_bytes - 1) / granule_bytes *
                                                 granule_bytes;
  }

  /// Counts each tensor once.
  uint64_t bytes_of(const TraceKernel& kernel) {
    ++mark_;
    uint64_t bytes = 0;
    for (uint32_t tensor : std::span(from_.uses).subspan(kernel.uses_at,
                                                         size_t{kernel.inputs} + kernel.outputs))
      if (std::exchange(seen_[tensor], mark_) != mark_) bytes += bytes_of(tensor);
    return bytes;
  }

  /// Whether `tensors` are lists one after the other whose elements have the same sizes.
  bool alike(std::span<const uint32_t> tensors, uint32_t length, uint32_t lists) const {
    for (uint32_t i = length; i < length * lists; ++i)
      if (from_.tensors[tensors[i]].bytes != from_.tensors[tensors[i - length]].bytes) return false;
    return true;
  }

  bool reads(const TraceKernel& kernel, uint32_t tensor) const {
    const std::span<const uint32_t> inputs = from_.inputs(kernel);
    return std::find(inputs.begin(), inputs.end(), tensor) != inputs.end();
  }

  Lists lists_of(const TraceKernel& kernel) const {
    const std::string_view name = from_.name(kernel);
    if (name.starts_with("aten::_foreach_")) {
      // One list is written, or made. In place it is the first of the outputs, before temporaries
      // that are made and freed on the way.
      uint32_t length = 0;
      while (length < kernel.outputs && reads(kernel, from_.outputs(kernel)[length])) ++length;
      if (length == 0) length = kernel.outputs;
      if (length == 0 || kernel.inputs % length > single_most || kernel.outputs % length != 0)
        return {};
      return {length, kernel.inputs / length, kernel.outputs / length};
    }
    if (name.starts_with("aten::_amp_foreach_non_finite_check_and_unscale_"))
      return kernel.outputs < 2 ? Lists{} : Lists{kernel.outputs - 1, 1, 1};
    for (const Kind& kind : kinds) {
      if (!name.starts_with(kind.name)) continue;
      for (uint32_t outputs = kind.outputs_most; outputs >= kind.outputs_least; --outputs) {
        if (kernel.outputs == 0 || kernel.outputs % outputs != 0) continue;
        const uint32_t length = kernel.outputs / outputs;
        for (uint32_t more = kind.more_inputs_least; more <= kind.more_inputs_most; ++more) {
          const uint32_t inputs = outputs + more;
          if (kernel.inputs >= length * inputs &&
              kernel.inputs - length * inputs <= single_most &&
              alike(from_.outputs(kernel), length, std::min(outputs, 3u)))
            return {length, inputs, outputs};
        }
      }
    }
    return {};
  }

  /// Elements `begin` to `end` of each list, and in the last slice the tensors after the lists.
  static std::vector<uint32_t> part(std::span<const uint32_t> tensors, uint32_t length,
                                    uint32_t lists, uint32_t begin, uint32_t end) {
    std::vector<uint32_t> out;
    for (uint32_t list = 0; list < lists; ++list)
      for (uint32_t i = begin; i < end; ++i) out.push_back(tensors[list * length + i]);
    if (end == length)
      out.insert(out.end(), tensors.begin() + length * lists, tensors.end());
    return out;
  }

  uint64_t element_bytes(const TraceKernel& kernel, const Lists& lists, uint32_t i) {
    uint64_t bytes = 0;
    for (uint32_t list = 0; list < lists.inputs; ++list)
      add_bytes(from_.inputs(kernel)[list * lists.length + i], bytes);
    for (uint32_t list = 0; list < lists.outputs; ++list)
      add_bytes(from_.outputs(kernel)[list * lists.length + i], bytes);
    return bytes;
  }
  void add_bytes(uint32_t tensor, uint64_t& bytes) {
    if (std::exchange(seen_[tensor], mark_) != mark_) bytes += bytes_of(tensor);
  }

  void add_slices(const TraceKernel& kernel, const Lists& lists) {
    ++mark_;
    std::vector<uint64_t> bytes(lists.length);
    uint64_t all = 0, done = 0, spent_ns = 0;
    for (uint32_t i = 0; i < lists.length; ++i)
      all += bytes[i] = element_bytes(kernel, lists, i);
    for (uint32_t begin = 0, end = 0; begin < lists.length; begin = end) {
      uint64_t slice = 0;
      for (end = begin; end < lists.length; ++end) {
        if (end > begin && slice + bytes[end] > gpu_bytes_ / slice_part) break;
        slice += bytes[end];
      }
      done += slice;
      const uint64_t until_ns =
          end == lists.length
              ? kernel.duration_ns
              : static_cast<uint64_t>(static_cast<double>(kernel.duration_ns) *
                                      (static_cast<double>(done) / static_cast<double>(all)));
      add(kernel, part(from_.inputs(kernel), lists.length, lists.inputs, begin, end),
          part(from_.outputs(kernel), lists.length, lists.outputs, begin, end),
          until_ns - spent_ns);
      spent_ns = until_ns;
    }
  }

  void add(const TraceKernel& kernel, std::span<const uint32_t> inputs,
           std::span<const uint32_t> outputs, uint64_t duration_ns) {
    const auto index = static_cast<uint32_t>(out_.kernels.size());
    TraceKernel made = kernel;
    made.duration_ns = duration_ns;
    made.uses_at = out_.uses.size();
    made.inputs = static_cast<uint32_t>(inputs.size());
    made.outputs = static_cast<uint32_t>(outputs.size());
    out_.uses.insert(out_.uses.end(), inputs.begin(), inputs.end());
    out_.uses.insert(out_.uses.end(), outputs.begin(), outputs.end());
    for (uint32_t tensor : std::span(out_.uses).subspan(made.uses_at)) {
      TraceTensor& named = out_.tensors[tensor];
      if (named.first == no_kernel) named.first = index;
      named.last = index;
    }
    out_.kernels.push_back(made);
  }

  const ProgramTrace& from_;
  const uint64_t gpu_bytes_;
  ProgramTrace out_;
  std::vector<uint64_t> seen_;  // per tensor: the last count that it was part of
  uint64_t mark_ = 0;
};

}  // namespace

ProgramTrace cut_lists(const ProgramTrace& trace, uint64_t gpu_bytes) {
  return Cutter(trace, gpu_bytes).cut();
}

}  // namespace firn::simulate
