#include "allocator/simulate/host_work.h"

#include <algorithm>
#include <utility>

#include "allocator/base/sizes.h"
#include "allocator/blocks/block.h"

namespace firn::simulate {

HostWork::HostWork(Machine& machine, const Program& program, Timeline* timeline)
    : machine_(machine), engine_(machine.engine()), program_(program), timeline_(timeline),
      latest_(program.trace.tensors.size()), in_use_(program.trace.tensors.size()) {
  for (unsigned i = 0; i < gathered_most; ++i)
    machine_.clock().turns().start([this] { work(); });
}

HostWork::~HostWork() {
  ending_ = true;
  Turns& turns = machine_.clock().turns();
  turns.await([&turns] { return turns.alone(); });
}

/// Smaller ones do not move by themselves: they are used where they are.
bool HostWork::is_large(uint32_t tensor) const {
  return program_.trace.tensors[tensor].bytes > size_class::small_most;
}

void HostWork::submit(uint32_t row) {
  const TraceKernel& of = program_.trace.kernels[row];
  uint64_t behind = 0;
  const uint64_t count = rows_.size() + 1;
  for (const uint32_t tensor : program_.trace.inputs(of)) {
    behind = std::max(behind, latest_[tensor].kernel_that_wrote);
    latest_[tensor].row = count;
  }
  for (const uint32_t tensor : program_.trace.outputs(of)) {
    behind = std::max(behind, latest_[tensor].kernel);
    latest_[tensor].row = latest_[tensor].row_that_wrote = count;
  }
  rows_.push_back({row, behind, machine_.clock().now_ns()});
}

void HostWork::launched(uint32_t row, uint64_t count) {
  const TraceKernel& of = program_.trace.kernels[row];
  for (const uint32_t tensor : program_.trace.inputs(of)) latest_[tensor].kernel = count;
  for (const uint32_t tensor : program_.trace.outputs(of))
    latest_[tensor].kernel = latest_[tensor].kernel_that_wrote = count;
}

uint64_t HostWork::needed_by(uint32_t row) const {
  const ProgramTrace& trace = program_.trace;
  const TraceKernel& of = trace.kernels[row];
  uint64_t needed = 0;
  for (const uint32_t tensor : trace.inputs(of)) {
    const TraceTensor& named = trace.tensors[tensor];
    const bool ends = !named.persistent && (named.first == row || named.last == row);
    needed = std::max(needed, ends ? latest_[tensor].row : latest_[tensor].row_that_wrote);
  }
  for (const uint32_t tensor : trace.outputs(of)) needed = std::max(needed, latest_[tensor].row);
  return needed;
}

/// The next row: one at a time gathers its tensors, and none that another one still uses.
bool HostWork::may_take() const {
  if (taken_ == rows_.size() || taken_ != gathered_ || failure_) return false;
  const TraceKernel& of = program_.trace.kernels[rows_[taken_].row];
  const auto free = [this](uint32_t tensor) { return in_use_[tensor] == 0; };
  return std::ranges::all_of(program_.trace.inputs(of), free) &&
         std::ranges::all_of(program_.trace.outputs(of), free);
}

void HostWork::work() {
  for (;;) {
    machine_.clock().turns().await([this] { return ending_ || failure_ || may_take(); });
    if (ending_ || failure_) return;
    const uint64_t number = taken_++;
    if (Result<void> done = run(number); !done && !failure_)
      failure_ = {rows_[number].row, number, done.error()};
  }
}

Result<void> HostWork::run(uint64_t number) {
  const ProgramTrace& trace = program_.trace;
  const auto [row, behind, at_ns] = rows_[number];
  const TraceKernel& of = trace.kernels[row];
  Turns& turns = machine_.clock().turns();
  machine_.clock().progress(program_.patience_ns);
  const auto count = [&](uint32_t by) {
    for (const uint32_t tensor : trace.inputs(of)) in_use_[tensor] += by;
    for (const uint32_t tensor : trace.outputs(of)) in_use_[tensor] += by;
  };
  count(1);
  std::vector<uint64_t> uses;
  Result<void> done = gather(row, uses);
  const auto my_turn = [this, number] { return over_ == number || failure_; };
  if (!done && done.error().code == Code::host_out_of_memory && over_ != number) {
    release(uses);  // there is no room for several
    turns.await(my_turn);
    done = gather(row, uses);
  }
  ++gathered_;
  turns.await(my_turn);
  if (done) turns.await([this, behind = behind] { return program_.ends_ns.size() >= behind; });
  if (done && !failure_) {
    const uint64_t begin = machine_.clock().now_ns();
    const uint64_t ready =
        std::max({last_end_ns_, at_ns, behind > 0 ? program_.ends_ns[behind - 1] : 0});
    machine_.clock().progress(program_.patience_ns);
    turns.sleep(of.duration_ns);
    last_end_ns_ = machine_.clock().now_ns();
    totals_.waited_ns += begin - ready;
    totals_.busy_ns += of.duration_ns;
    if (timeline_ && begin > ready)
      timeline_->spans.push_back({Track::host_wait, row, ready, begin, 0});
    if (timeline_) timeline_->spans.push_back({Track::host, row, begin, last_end_ns_, 0});
  }
  release(uses);
  count(UINT32_MAX);  // one less
  ++over_;
  machine_.clock().notify();
  return done;
}

Result<void> HostWork::gather(uint32_t row, std::vector<uint64_t>& uses) {
  const ProgramTrace& trace = program_.trace;
  const TraceKernel& of = trace.kernels[row];
  const std::span<const uint32_t> outputs = trace.outputs(of);
  Result<void> done;
  for (const uint32_t tensor : trace.inputs(of))
    if (done && std::find(outputs.begin(), outputs.end(), tensor) == outputs.end())
      done = gather_one(tensor, Access::read, uses);
  for (const uint32_t tensor : outputs)
    if (done) done = gather_one(tensor, Access::write, uses);
  return done;
}

/// A tensor that does not exist yet is made as a program makes it: on the device.
Result<void> HostWork::gather_one(uint32_t tensor, Access access, std::vector<uint64_t>& uses) {
  void*& pointer = program_.pointers[tensor];
  if (!pointer) {
    Result<void*> made =
        engine_.allocate(program_.trace.tensors[tensor].bytes, machine_.stream(), 0);
    if (!made) return made.error();
    pointer = *made;
    Result<Hold> hold = engine_.touch(pointer, machine_.stream(), Access::write);
    if (!hold) return hold.error();
    engine_.release(*hold, machine_.stream());
  }
  if (!is_large(tensor)) return {};
  Result<OnHost> there = engine_.on_host(pointer, access);
  if (!there) return there.error();
  uses.push_back(there->name);
  return {};
}

void HostWork::release(std::vector<uint64_t>& uses) {
  for (const uint64_t name : std::exchange(uses, {})) (void)engine_.end_on_host(name);
}

}  // namespace firn::simulate
