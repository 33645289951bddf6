#include "allocator/simulate/activity.h"

#include <algorithm>
#include <span>

namespace firn::simulate {

namespace {

size_t class_of(uint64_t length_ns) {
  const auto at = std::lower_bound(length_bounds_ns.begin(), length_bounds_ns.end(), length_ns);
  return static_cast<size_t>(at - length_bounds_ns.begin());
}

constexpr size_t active_class = length_classes;  // neither idle nor away

/// One pass over the kernels; bytes by kind and class are those at the kernel that is looked at.
class Pass {
 public:
  explicit Pass(const ProgramTrace& trace) : trace_(trace), tensors_(trace.tensors.size()) {
    begins_ns_.push_back(0);
    for (const TraceKernel& kernel : trace.kernels)
      begins_ns_.push_back(begins_ns_.back() + (kernel.host ? 0 : kernel.duration_ns));
    found_.duration_ns = begins_ns_.back();
    found_.over_time.resize(activity_buckets);
  }

  Activity run() {
    find_kinds();
    find_next_uses();
    for (uint32_t i = 0; i < tensors_.size(); ++i)
      if (trace_.tensors[i].persistent) become_idle(i, before_first_ns(i));
    for (uint32_t k = 0; k < trace_.kernels.size(); ++k) look_at(k);
    for (size_t kind = 0; kind < tensor_kinds; ++kind) {
      Activity::Kind& of = found_.kinds[kind];
      of.active_bytes_mean /= duration();
      for (double& bytes : of.inactive_bytes_mean) bytes /= duration();
    }
    found_.active_bytes_mean /= duration();
    found_.footprint_bytes_mean /= duration();
    found_.active_share_mean /= duration();
    const double bucket_ns = duration() / activity_buckets;
    for (auto& bucket : found_.over_time)
      for (double& bytes : bucket) bytes /= bucket_ns;
    return std::move(found_);
  }

 private:
  struct Tensor {
    TensorKind kind = TensorKind::made;
    bool named = false;         // by the kernel that is looked at
    bool idle_long = false;
    size_t idle = active_class;
  };

  double duration() const { return static_cast<double>(found_.duration_ns); }
  uint64_t begin_ns(uint32_t kernel) const { return begins_ns_[kernel]; }
  uint64_t end_ns(uint32_t kernel) const { return begins_ns_[kernel + 1]; }
  std::span<const uint32_t> uses(const TraceKernel& kernel) const {
    return std::span(trace_.uses).subspan(kernel.uses_at, kernel.inputs + kernel.outputs);
  }

  void find_kinds() {
    std::vector<bool> written(tensors_.size());
    for (uint32_t k = 0; k < trace_.kernels.size(); ++k)
      for (uint32_t tensor : trace_.outputs(trace_.kernels[k]))
        if (trace_.tensors[tensor].first == k) written[tensor] = true;
    for (uint32_t i = 0; i < tensors_.size(); ++i) {
      const TraceTensor& tensor = trace_.tensors[i];
      if (tensor.persistent)
        tensors_[i].kind = written[i] ? TensorKind::states : TensorKind::weights;
      else if (tensor.first == no_kernel)
        continue;
      Activity::Kind& of = kind_of(i);
      ++of.tensors;
      of.bytes += tensor.bytes;
    }
  }

  /// Per use, the next kernel that names the tensor.
  void find_next_uses() {
    next_.resize(trace_.uses.size());
    std::vector<uint32_t> later(tensors_.size(), no_kernel);
    for (auto k = static_cast<uint32_t>(trace_.kernels.size()); k-- > 0;) {
      const TraceKernel& kernel = trace_.kernels[k];
      const auto of = uses(kernel);
      for (size_t at = 0; at < of.size(); ++at) next_[kernel.uses_at + at] = later[of[at]];
      for (uint32_t tensor : of) later[tensor] = k;
    }
  }

  Activity::Kind& kind_of(uint32_t tensor) {
    return found_.kinds[static_cast<size_t>(tensors_[tensor].kind)];
  }
  uint64_t& idle_bytes(uint32_t tensor) {
    return idle_[static_cast<size_t>(tensors_[tensor].kind)][tensors_[tensor].idle];
  }

  /// From its last use over the end of the iteration to its first one.
  uint64_t before_first_ns(uint32_t i) const {
    const TraceTensor& tensor = trace_.tensors[i];
    if (tensor.first == no_kernel) return found_.duration_ns;
    return found_.duration_ns - end_ns(tensor.last) + begin_ns(tensor.first);
  }

  /// A period that goes over into the next iteration is counted where it begins this one.
  void become_idle(uint32_t i, uint64_t length_ns, bool counted = true) {
    if (length_ns == 0) return;
    Tensor& tensor = tensors_[i];
    tensor.idle = class_of(length_ns);
    idle_bytes(i) += trace_.tensors[i].bytes;
    if (!counted) return;
    Activity::Kind& of = kind_of(i);
    ++of.periods[tensor.idle];
    if (length_ns > long_period_ns && !tensor.idle_long) {
      tensor.idle_long = true;
      ++of.tensors_inactive_long;
    }
  }

  void look_at(uint32_t k) {
    const TraceKernel& kernel = trace_.kernels[k];
    std::array<uint64_t, tensor_kinds> active{};
    for (uint32_t i : uses(kernel)) {
      Tensor& tensor = tensors_[i];
      if (tensor.named) continue;
      tensor.named = true;
      active[static_cast<size_t>(tensor.kind)] += trace_.tensors[i].bytes;
      if (tensor.idle == active_class) continue;
      idle_bytes(i) -= trace_.tensors[i].bytes;
      tensor.idle = active_class;
    }
    count(k, active);
    const auto of = uses(kernel);
    for (size_t at = 0; at < of.size(); ++at) {
      const uint32_t i = of[at], next = next_[kernel.uses_at + at];
      if (!tensors_[i].named) continue;
      tensors_[i].named = false;
      if (next != no_kernel)
        become_idle(i, begin_ns(next) - end_ns(k));
      else if (trace_.tensors[i].persistent)
        become_idle(i, before_first_ns(i), false);
    }
  }

  void count(uint32_t k, const std::array<uint64_t, tensor_kinds>& active) {
    const auto ns = static_cast<double>(end_ns(k) - begin_ns(k));
    uint64_t all_active = 0, alive = 0;
    std::array<double, 1 + length_classes> level{};
    for (size_t kind = 0; kind < tensor_kinds; ++kind) {
      Activity::Kind& of = found_.kinds[kind];
      all_active += active[kind];
      of.active_bytes_mean += static_cast<double>(active[kind]) * ns;
      for (size_t c = 0; c < length_classes; ++c) {
        const auto bytes = static_cast<double>(idle_[kind][c]);
        alive += idle_[kind][c];
        level[1 + c] += bytes;
        of.inactive_bytes_mean[c] += bytes * ns;
      }
    }
    alive += all_active;
    level[0] = static_cast<double>(all_active);
    const double share = alive ? level[0] / static_cast<double>(alive) : 0;
    found_.active_bytes_mean += level[0] * ns;
    found_.footprint_bytes_mean += static_cast<double>(alive) * ns;
    found_.active_share_mean += share * ns;
    found_.active_share_peak = std::max(found_.active_share_peak, share);
    found_.active_bytes_peak = std::max(found_.active_bytes_peak, all_active);
    found_.footprint_bytes_peak = std::max(found_.footprint_bytes_peak, alive);
    add_to_buckets(static_cast<double>(begin_ns(k)), static_cast<double>(end_ns(k)), level);
  }

  void add_to_buckets(double begin, double end,
                      const std::array<double, 1 + length_classes>& level) {
    const double bucket_ns = duration() / activity_buckets;
    for (auto at = static_cast<size_t>(begin / bucket_ns); at < activity_buckets; ++at) {
      const double from = std::max(begin, static_cast<double>(at) * bucket_ns),
                   to = std::min(end, static_cast<double>(at + 1) * bucket_ns);
      if (static_cast<double>(at) * bucket_ns >= end) break;
      for (size_t i = 0; i < level.size(); ++i)
        found_.over_time[at][i] += level[i] * std::max(0.0, to - from);
    }
  }

  const ProgramTrace& trace_;
  std::vector<Tensor> tensors_;
  std::vector<uint64_t> begins_ns_;
  std::vector<uint32_t> next_;
  std::array<std::array<uint64_t, length_classes + 1>, tensor_kinds> idle_{};
  Activity found_;
};

}  // namespace

Activity activity_of(const ProgramTrace& trace) { return Pass(trace).run(); }

}  // namespace firn::simulate
