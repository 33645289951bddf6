#include "allocator/record/recorder.h"

#include <cstdio>
#include <unordered_map>
#include <utility>

#include "allocator/record/iteration.h"
#include "allocator/record/program_files.h"

namespace firn::record {

Recorder::Recorder(const Driver& driver, CUcontext context, std::string prefix,
                   size_t kernels_most)
    : prefix_(std::move(prefix)), times_(driver, context), recording_(kernels_most) {
  remove_program(prefix_);
}

void Recorder::allocated(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (!room()) return;
  live_[address] = {recording_.allocate(bytes), bytes};
  written_.push_back(false);
}

void Recorder::freed(uint64_t address) {
  std::lock_guard lock(mutex_);
  if (!room()) return;
  const auto found = live_.find(address);
  if (found == live_.end()) return;
  recording_.free(found->second.block);
  live_.erase(found);
}

const Recorder::Live* Recorder::live_at(const void* pointer) const {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  auto found = live_.upper_bound(address);
  if (found == live_.begin()) return nullptr;
  --found;
  return address - found->first < found->second.bytes ? &found->second : nullptr;
}

bool Recorder::mine(Operator& op) {
  if (!op.recorder) op.recorder = this;
  return op.recorder == this && !cut_off_.load(std::memory_order_relaxed);
}

/// Under the lock: is there room for more? Remembers the first time that there is none.
bool Recorder::room() {
  if (recording_.full()) cut_off_ = true;
  return !cut_off_ && !finished_;
}

void Recorder::pause(Operator& op) {
  if (!mine(op) || !op.begin) return;
  const Stretch stretch{std::exchange(op.begin, nullptr), times_.mark(op.stream)};
  if (stretch.end)
    op.stretches.push_back(stretch);
  else
    times_.forget({stretch});
}

void Recorder::uses(Operator& op, const void* pointer, bool write) {
  if (!mine(op)) return;
  std::lock_guard lock(mutex_);
  const Live* live = live_at(pointer);
  if (!live) return;
  op.kernel = true;
  op.uses.push_back({live->block, !write || written_[live->block], write, false});
}

void Recorder::makes(Operator& op, const void* pointer) {
  if (!mine(op)) return;
  std::lock_guard lock(mutex_);
  if (const Live* live = live_at(pointer)) op.uses.push_back({live->block, false, true, true});
}

void Recorder::resume(Operator& op, CUstream stream) {
  if (!mine(op)) return;
  if (op.begin && op.stream == stream) return;
  pause(op);
  op.stream = stream;
  op.begin = times_.mark(stream);
}

void Recorder::end(Operator& op) {
  if (!mine(op)) return;
  pause(op);
  Operator done = std::exchange(op, {});
  // Each block once, in the order in which the operator names them: list after list, as cut_lists()
  // takes them apart.
  std::unordered_map<uint32_t, size_t> at;
  std::vector<Operator::Use> blocks;
  for (const Operator::Use& use : done.uses) {
    const auto [known, first] = at.emplace(use.block, blocks.size());
    if (first) {
      blocks.push_back(use);
      continue;
    }
    Operator::Use& whole = blocks[known->second];
    whole.read |= use.read;
    whole.written |= use.written;
    whole.made |= use.made;
  }
  std::vector<uint32_t> inputs, outputs;
  for (const Operator::Use& whole : blocks) {
    // It can only have read its own allocations after writing them.
    if (whole.read && !whole.made) inputs.push_back(whole.block);
    if (whole.written) outputs.push_back(whole.block);
  }
  collect(false);
  std::lock_guard lock(mutex_);
  if (!done.kernel || !room()) {
    times_.forget(done.stretches);
    return;
  }
  for (uint32_t block : outputs) written_[block] = true;
  times_.measure(recording_.kernel(done.name, 0, inputs, outputs), std::move(done.stretches));
}

void Recorder::collect(bool all) {
  const std::vector<DeviceTimes::Time> times = times_.collect(all);
  std::lock_guard lock(mutex_);
  for (const DeviceTimes::Time& time : times) recording_.set_duration(time.kernel, time.ns);
}

void Recorder::finish() {
  collect(true);
  std::lock_guard lock(mutex_);
  if (std::exchange(finished_, true)) return;
  const Iteration iteration = cut_iteration(recording_);
  if (iteration.kernels.empty()) {
    std::fprintf(stderr, "firn: trace: no operator used the device: %s.kernels.csv is left out\n",
                 prefix_.c_str());
    return;
  }
  if (Result<void> written = write_program(recording_, iteration, prefix_); !written) {
    std::fprintf(stderr, "firn: trace: %s (firn_trace)\n", written.error().text.c_str());
    return;
  }
  if (cut_off_)
    std::fprintf(stderr, "firn: trace: the recorder was full after %zu operators: the later ones "
                 "are missing in %s.kernels.csv\n", recording_.kernels().size(), prefix_.c_str());
  if (!iteration.periodic)
    std::fprintf(stderr, "firn: trace: Firn saw no iteration repeat: %s.kernels.csv holds the "
                 "whole run as one iteration\n", prefix_.c_str());
  if (iteration.untimed > iteration.kernels.size() / 100)
    std::fprintf(stderr, "firn: trace: the time of %llu of %zu operators is unknown: they have 1 "
                 "ns in %s.kernels.csv\n", static_cast<unsigned long long>(iteration.untimed),
                 iteration.kernels.size(), prefix_.c_str());
}

}  // namespace firn::record
