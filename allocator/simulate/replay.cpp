#include "allocator/simulate/replay.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "allocator/base/sizes.h"
#include "allocator/blocks/block.h"
#include "allocator/memory/frames.h"
#include "allocator/simulate/host_work.h"
#include "allocator/simulate/replay_totals.h"
#include "firn/check.h"

namespace firn::simulate {

using lifetimes::EventKind;

namespace {

constexpr unsigned pumps_most = 1000;  // in a row without time going on

class ReplayRun {
 public:
  ReplayRun(Machine& machine, const ProgramTrace& trace, const ReplayOptions& options)
      : machine_(machine), engine_(machine.engine()), trace_(trace), options_(options),
        pointers_(trace.tensors.size(), nullptr), marks_(trace.tensors.size(), 0) {
    index_lives();
    // Everything that fits on the GPU, out and in again over the slowest channel, ten times.
    const MachineOptions& m = machine.options();
    const double slowest = std::min({m.link_bytes_s, m.ssd_read_bytes_s, m.ssd_write_bytes_s});
    patience_ns_ = 60e9 + 20e9 * static_cast<double>(m.gpu_bytes) / slowest;
    for (uint32_t i = 0; i < trace.kernels.size(); ++i)
      if (!trace.kernels[i].host)
        on_device_.push_back(i);
      else
        patience_ns_ += static_cast<double>(trace.kernels[i].duration_ns);
  }
  ~ReplayRun() {
    host_.reset();
    machine_.observe(nullptr, nullptr);
    machine_.disks().on_transfer(nullptr);
    machine_.clock().explain(nullptr);
  }

  Result<ReplayResult> run();

 private:
  void index_lives();
  Result<void> set_up();
  template <class Exists>
  void lay_out(uint32_t index, Exists&& exists);
  void foresee();
  Result<void> run_kernel(uint32_t index);
  Result<void> run_at_host(uint32_t index);
  Result<void> free_dead(uint32_t index);
  Result<void> wait_for_host(uint64_t rows);
  Result<void> allocate(uint32_t tensor, Told told = Told::unknown);
  Result<void> touch(uint32_t tensor, Access access);
  Result<void> make_births();
  template <class Over>
  void wait_until(Over&& over);
  void wait_until_running(uint64_t most);
  void progress();
  Error in_kernel(const Error& error) const { return in_row(error, iteration_, kernel_); }
  Error in_row(const Error& error, uint64_t iteration, uint32_t row) const;
  Totals totals();
  ReplayResult result(const Totals& begin, const Totals& end);

  static void observed(void* self, const char* entry, void* stream, uint64_t begin, uint64_t end,
                       uint64_t bytes) {
    static_cast<ReplayRun*>(self)->observe(entry, stream, begin, end, bytes);
  }
  void observe(const char* entry, void* stream, uint64_t begin, uint64_t end, uint64_t bytes);
  void kernel_ended(uint64_t begin, uint64_t end);
  void sample();

  Machine& machine_;
  Engine& engine_;
  const ProgramTrace& trace_;
  const ReplayOptions& options_;
  double patience_ns_ = 0;
  std::vector<uint32_t> on_device_;      // kernels' rows
  std::vector<uint64_t> ends_ns_;        // of kernels in all iterations; for rows at the host
  uint64_t freed_behind_ = 0;            // so many rows at the host: their dead are freed
  std::optional<HostWork> host_;         // none: no row runs at the host
  std::vector<void*> pointers_;          // per tensor: its block, while it lives
  std::vector<uint64_t> marks_;          // per tensor: the last kernel laid out that writes it
  uint64_t marks_used_ = 0;
  std::vector<uint32_t> deaths_;         // transient tensors by last kernel
  std::vector<uint64_t> deaths_at_;      // per kernel: where its part of deaths_ begins
  std::vector<Hold> holds_;              // of the kernel being prepared
  // The accesses of the kernel laid out last.
  std::vector<std::pair<uint32_t, Access>> touches_there_, births_;

  unsigned iteration_ = 0;               // being enqueued
  uint32_t kernel_ = no_kernel;          // being enqueued
  uint64_t launched_ = 0, ended_ = 0;    // kernels, in all iterations
  uint64_t begin_ns_ = 0, last_end_ns_ = 0, stall_ns_ = 0, stall_for_host_ns_ = 0;
  std::vector<uint64_t> iteration_ends_ns_;
  std::vector<uint64_t> stall_ns_at_;    // sums, at the ends of iterations
  uint64_t sampled_ns_ = 0, sample_step_ns_ = 0, peak_host_bytes_ = 0;
  std::optional<unsigned> period_found_;
};

void ReplayRun::index_lives() {
  deaths_at_.assign(trace_.kernels.size() + 1, 0);
  for (const TraceTensor& tensor : trace_.tensors)
    if (!tensor.persistent && tensor.last != no_kernel) ++deaths_at_[tensor.last + 1];
  std::partial_sum(deaths_at_.begin(), deaths_at_.end(), deaths_at_.begin());
  deaths_.resize(deaths_at_.back());
  std::vector<uint64_t> at(deaths_at_.begin(), deaths_at_.end() - 1);
  for (uint32_t i = 0; i < trace_.tensors.size(); ++i)
    if (const TraceTensor& tensor = trace_.tensors[i];
        !tensor.persistent && tensor.last != no_kernel)
      deaths_[at[tensor.last]++] = i;
}

void ReplayRun::progress() { machine_.clock().progress(static_cast<uint64_t>(patience_ns_)); }

Error ReplayRun::in_row(const Error& error, uint64_t iteration, uint32_t row) const {
  Error told = error;
  told.text = row == no_kernel
                  ? "before the first iteration: " + error.text
                  : fmt::format("iteration {}, kernel {} ({}:{}): {}", iteration,
                                quote_word(trace_.name(trace_.kernels[row])),
                                trace_.kernels_path, trace_.kernels[row].line, error.text);
  return told;
}

Result<void> ReplayRun::allocate(uint32_t tensor, Told told) {
  Result<void*> pointer =
      engine_.allocate(trace_.tensors[tensor].bytes, machine_.stream(), 0, told);
  if (!pointer) return pointer.error();
  pointers_[tensor] = *pointer;
  return {};
}

Result<void> ReplayRun::touch(uint32_t tensor, Access access) {
  Result<Hold> hold = engine_.touch(pointers_[tensor], machine_.stream(), access);
  if (!hold && hold.error().code == Code::out_of_memory)
    hold = engine_.touch_anyway(pointers_[tensor], machine_.stream(), access);
  if (!hold) return hold.error();
  holds_.push_back(*hold);
  return {};
}

/// Makes the kernel's new tensors. If they do not fit beside what it holds, the rest is made in
/// host memory, as an operator's results are, each held as soon as it exists.
Result<void> ReplayRun::make_births() {
  size_t made = 0, held = 0;
  Result<void> done;
  while (made < births_.size() && (done = allocate(births_[made].first))) ++made;
  const bool tight = !done && done.error().code == Code::out_of_memory;
  while (done || tight) {
    for (; held < made; ++held)
      if (done = touch(births_[held].first, births_[held].second); !done) return done;
    if (made == births_.size()) return {};
    if (done = allocate(births_[made].first, Told::always); !done) return done;
    ++made;
  }
  return done;
}

/// Makes the persistent tensors and writes each once.
Result<void> ReplayRun::set_up() {
  progress();
  for (uint32_t i = 0; i < trace_.tensors.size(); ++i) {
    if (!trace_.tensors[i].persistent) continue;
    Result<void> done = allocate(i);
    if (done) done = touch(i, Access::write);
    for (Hold hold : holds_) engine_.release(hold, machine_.stream());
    holds_.clear();
    if (!done) return done;
    (void)engine_.pump();
    progress();
  }
  return {};
}

/// Advances time, and the engine's service with it.
template <class Over>
void ReplayRun::wait_until(Over&& over) {
  for (unsigned pumps = 0; !over();) {
    const uint64_t now = machine_.clock().now_ns();
    if (options_.timeline && now >= sampled_ns_ + sample_step_ns_) sample();
    if (engine_.pump() && ++pumps < pumps_most) continue;
    pumps = 0;
    if (over()) break;  // ended while the service was in the driver
    machine_.clock().wait(UINT64_MAX);
  }
}

/// Until at most `most` enqueued kernels are not over.
void ReplayRun::wait_until_running(uint64_t most) {
  wait_until([&] { return launched_ - ended_ <= most; });
}

/// Until so many rows at the host are over, of all iterations; frees what nothing uses behind them.
Result<void> ReplayRun::wait_for_host(uint64_t rows) {
  const uint64_t begin = machine_.clock().now_ns();
  wait_until([&] { return host_->over() >= rows || host_->failure(); });
  if (launched_ == ended_)
    stall_for_host_ns_ += machine_.clock().now_ns() - std::max(begin, last_end_ns_);
  if (host_->failure()) {
    const HostWork::Failure& failure = *host_->failure();
    return in_row(failure.error, failure.number / trace_.host_rows, failure.row);
  }
  for (; freed_behind_ < rows; ++freed_behind_)
    if (Result<void> done = free_dead(host_->row(freed_behind_)); !done)
      return in_kernel(done.error());
  return {};
}

/// A kernel's memory accesses: existing tensors are held first; then its new tensors are allocated,
/// and held too.
template <class Exists>
void ReplayRun::lay_out(uint32_t index, Exists&& exists) {
  const TraceKernel& kernel = trace_.kernels[index];
  touches_there_.clear();
  births_.clear();
  const uint64_t mark = ++marks_used_;
  for (uint32_t tensor : trace_.outputs(kernel)) marks_[tensor] = mark;
  for (uint32_t tensor : trace_.inputs(kernel)) {
    const Access access = marks_[tensor] == mark ? Access::write : Access::read;
    if (!exists(tensor))
      births_.push_back({tensor, access});
    else if (access == Access::read)
      touches_there_.push_back({tensor, access});
  }
  for (uint32_t tensor : trace_.outputs(kernel)) {
    const std::pair<uint32_t, Access> write{tensor, Access::write};
    if (exists(tensor))
      touches_there_.push_back(write);
    else if (std::find(births_.begin(), births_.end(), write) == births_.end())
      births_.push_back(write);
  }
}

/// ComparedPolicy::oracle: announces the whole iteration in advance.
void ReplayRun::foresee() {
  std::vector<Coming> coming;
  std::vector<bool> there(trace_.tensors.size());
  const auto add = [&](EventKind kind, uint32_t tensor) {
    const uint64_t bytes = trace_.tensors[tensor].bytes;
    if (bytes > size_class::small_most)
      coming.push_back({kind, pointers_[tensor], tensor, bytes});
  };
  const auto add_touch = [&](std::pair<uint32_t, Access> touch) {
    add(touch.second == Access::write ? EventKind::touch_write : EventKind::touch_read,
        touch.first);
  };
  for (uint32_t i = 0; i < trace_.kernels.size(); ++i) {
    lay_out(i, [&](uint32_t tensor) { return pointers_[tensor] || there[tensor]; });
    for (auto touch : touches_there_) add_touch(touch);
    for (auto birth : births_) {
      add(EventKind::allocate, birth.first);
      there[birth.first] = true;
    }
    for (auto birth : births_) add_touch(birth);
    for (uint64_t d = deaths_at_[i]; d < deaths_at_[i + 1]; ++d) {
      add(EventKind::free, deaths_[d]);
      there[deaths_[d]] = false;
    }
  }
  machine_.oracle().foresee(std::move(coming));
  (void)engine_.pump();
}

Result<void> ReplayRun::run_kernel(uint32_t index) {
  const TraceKernel& kernel = trace_.kernels[index];
  kernel_ = index;
  wait_until_running(options_.run_ahead);
  progress();
  if (host_)
    if (Result<void> done = wait_for_host(host_->needed_by(index)); !done) return done;
  lay_out(index, [this](uint32_t tensor) { return pointers_[tensor] != nullptr; });
  const uint64_t in_host = engine_.zero_copy_bytes();
  Result<void> done;
  for (auto [tensor, access] : touches_there_)
    if (done) done = touch(tensor, access);
  if (done) done = make_births();
  if (done) {
    const auto over_link = static_cast<uint64_t>(
        static_cast<double>(engine_.zero_copy_bytes() - in_host) /
        machine_.options().link_bytes_s * 1e9);
    machine_.launch(std::max(kernel.duration_ns, over_link));
    ++launched_;
    if (host_) host_->launched(index, launched_);
  }
  for (Hold hold : holds_) engine_.release(hold, machine_.stream());
  holds_.clear();
  if (done) done = free_dead(index);
  if (!done) return in_kernel(done.error());
  return {};
}

Result<void> ReplayRun::run_at_host(uint32_t index) {
  kernel_ = index;
  progress();
  host_->submit(index);
  return wait_for_host(host_->submitted() - std::min(host_->submitted(), ahead_most));
}

Result<void> ReplayRun::free_dead(uint32_t index) {
  for (uint64_t i = deaths_at_[index]; i < deaths_at_[index + 1]; ++i) {
    if (Result<void> freed = engine_.free(pointers_[deaths_[i]]); !freed) return freed;
    pointers_[deaths_[i]] = nullptr;
  }
  return {};
}

// Called from inside the driver: must not call back into it.
void ReplayRun::observe(const char* entry, void* stream, uint64_t begin, uint64_t end,
                      uint64_t bytes) {
  if (stream == machine_.stream() && std::strcmp(entry, "firnGpuBusy") == 0)
    kernel_ended(begin, end);
  else if (options_.timeline && bytes > 0)
    options_.timeline->spans.push_back(
        {std::strcmp(entry, "cuMemcpyDtoHAsync") == 0 ? Track::copy_out : Track::copy_in,
         no_kernel, begin, end, bytes});
}

void ReplayRun::kernel_ended(uint64_t begin, uint64_t end) {
  const uint32_t kernel = on_device_[ended_ % on_device_.size()];
  stall_ns_ += begin - last_end_ns_;
  if (Timeline* timeline = options_.timeline) {
    if (begin > last_end_ns_)
      timeline->spans.push_back({Track::stall, kernel, last_end_ns_, begin, 0});
    timeline->spans.push_back({Track::kernel, kernel, begin, end, 0});
  }
  last_end_ns_ = end;
  if (host_) ends_ns_.push_back(end);
  if (++ended_ % on_device_.size() == 0) {
    iteration_ends_ns_.push_back(end);
    stall_ns_at_.push_back(stall_ns_);
  }
}

void ReplayRun::sample() {
  sampled_ns_ = machine_.clock().now_ns();
  const EngineStats stats = engine_.stats();
  options_.timeline->samples.push_back(
      {sampled_ns_, stats.resident_bytes, stats.hosted_bytes, stats.nvme_bytes});
}

Totals ReplayRun::totals() {
  Totals now;
  now.engine = engine_.stats();
  if (host_) now.host = host_->totals();
  now.stall_for_host_ns = stall_for_host_ns_;
  const StoreStats store = machine_.disks().stats();
  now.written_bytes = store.written_bytes;
  now.read_bytes = store.read_bytes;
  now.written_by_ssd = machine_.disks().written_bytes();
  peak_host_bytes_ = std::max(peak_host_bytes_, now.engine.host_used_bytes);
  if (now.engine.period_found && !period_found_) period_found_ = iteration_;
  return now;
}

Result<ReplayResult> ReplayRun::run() {
  machine_.clock().explain([this] {
    return kernel_ == no_kernel
               ? std::string("while the persistent tensors were made")
               : fmt::format("iteration {}, kernel {} ({}:{}) could not start", iteration_,
                             quote_word(trace_.name(trace_.kernels[kernel_])), trace_.kernels_path,
                             trace_.kernels[kernel_].line);
  });
  if (Result<void> done = set_up(); !done) return in_kernel(done.error());
  if (machine_.options().policy == ComparedPolicy::oracle) foresee();
  begin_ns_ = last_end_ns_ = machine_.clock().now_ns();
  machine_.observe(observed, this);
  if (Timeline* timeline = options_.timeline) {
    timeline->begin_ns = begin_ns_;
    timeline->budget_bytes = machine_.options().gpu_bytes;
    sample_step_ns_ = trace_.duration_ns / 500;
    machine_.disks().on_transfer([timeline](const DiskTransfer& transfer) {
      timeline->spans.push_back({transfer.kind == StoreCompletion::Kind::write ? Track::store_write
                                                                               : Track::store_read,
                                 no_kernel, transfer.begin_ns, transfer.end_ns, transfer.bytes});
    });
    sample();
  }
  if (trace_.host_rows > 0)
    host_.emplace(machine_,
                  HostWork::Program{trace_, pointers_, ends_ns_,
                                    static_cast<uint64_t>(patience_ns_)},
                  options_.timeline);
  Totals before = totals(), now = before;
  for (iteration_ = 0; iteration_ < options_.iterations; ++iteration_) {
    // Only the last half counts; it begins and ends when an iteration's last kernel is enqueued.
    if (iteration_ == options_.iterations / 2) before = now;
    for (uint32_t k = 0; k < trace_.kernels.size(); ++k) {
      if (options_.progress && k % 64 == 0) options_.progress(iteration_, k);
      if (Result<void> done = trace_.kernels[k].host ? run_at_host(k) : run_kernel(k); !done)
        return done.error();
    }
    now = totals();
  }
  wait_until_running(0);
  if (host_)
    if (Result<void> done = wait_for_host(host_->submitted()); !done) return done.error();
  if (Timeline* timeline = options_.timeline) {
    sample();
    timeline->iteration_ends_ns = iteration_ends_ns_;
  }
  return result(before, now);
}

ReplayResult ReplayRun::result(const Totals& begin, const Totals& end) {
  ReplayResult r;
  r.ideal_s = static_cast<double>(trace_.duration_ns - trace_.again_ns) * 1e-9;
  uint64_t last = begin_ns_;
  for (uint64_t at : iteration_ends_ns_) {
    r.iteration_s.push_back(static_cast<double>(at - last) * 1e-9);
    last = at;
  }
  const size_t first = options_.iterations / 2;  // the last half
  const auto count = static_cast<double>(options_.iterations - first);
  const auto since = [&](const std::vector<uint64_t>& ends, uint64_t start) {
    return static_cast<double>(ends.back() - (first ? ends[first - 1] : start)) * 1e-9 / count;
  };
  r.steady_s = since(iteration_ends_ns_, begin_ns_);
  r.stall_s = since(stall_ns_at_, 0);
  add_means(r, begin, end, count);
  r.host_rows = trace_.host_rows;
  r.peak_device_bytes = machine_.check_peak_frame_bytes();
  r.peak_allocated_bytes = end.engine.peak_allocated_bytes;
  r.peak_host_bytes = peak_host_bytes_;
  r.spare_fraction = engine_.stats().spare_fraction;
  r.period_found_at_iteration = period_found_;
  r.measured_host_out_bytes_s = end.engine.measured_host_out_bytes_s;
  r.measured_host_in_bytes_s = end.engine.measured_host_in_bytes_s;
  r.measured_store_write_bytes_s = end.engine.measured_store_write_bytes_s;
  r.measured_store_read_bytes_s = end.engine.measured_store_read_bytes_s;
  r.trouble = end.engine.trouble;
  return r;
}

}  // namespace

Result<ReplayResult> replay(Machine& machine, const ProgramTrace& trace,
                            const ReplayOptions& options) {
  FIRN_CHECK(options.iterations > 0 && !trace.kernels.empty(), "nothing to run");
  return ReplayRun(machine, trace, options).run();
}

}  // namespace firn::simulate
