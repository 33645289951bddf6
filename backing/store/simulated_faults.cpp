// The simulated disk's faults, and its handling of memory that has tags in place of bytes.
#include <algorithm>
#include <cstring>

#include "backing/store/simulated_store.h"

namespace firn {

namespace {
constexpr std::byte poison{0xa5};  // in a read's memory until its bytes are there
constexpr uint64_t poison_tag = 0xa5a5a5a5a5a5a5a5;
}  // namespace

void SimulatedDisk::load(const std::byte* from, size_t bytes) {
  contents_.resize(content_bytes(bytes));
  if (options_.tags)
    options_.tags->read(from, bytes, reinterpret_cast<uint64_t*>(contents_.data()));
  else
    std::memcpy(contents_.data(), from, bytes);
}

void SimulatedDisk::unload(std::byte* to, size_t bytes) {
  if (options_.tags)
    options_.tags->write(to, bytes, reinterpret_cast<const uint64_t*>(contents_.data()));
  else
    std::memcpy(to, contents_.data(), bytes);
}

void SimulatedDisk::poison_memory(std::byte* to, size_t bytes) {
  if (!options_.tags) {
    std::memset(to, static_cast<int>(poison), bytes);
    return;
  }
  const std::vector<uint64_t> tags(bytes / store_alignment, poison_tag);
  options_.tags->write(to, bytes, tags.data());
}

Sum SimulatedDisk::sum_in_memory(const std::byte* from, size_t bytes) {
  load(from, bytes);
  return sum_of(contents_.data(), contents_.size());
}

bool SimulatedDisk::fails(Side side, uint64_t now) {
  return side == writes ? now >= options_.writes_fail_from_ns && now < options_.writes_fail_until_ns
                        : now >= options_.reads_fail_from_ns && now < options_.reads_fail_until_ns;
}

uint64_t SimulatedDisk::lateness() {
  if (!chance(options_.late_rate)) return 0;
  ++faults_.late;
  return random_() % (options_.late_ns_most + 1);
}

/// A slot of the same size that holds something.
SimulatedDisk::SlotState* SimulatedDisk::another(const SlotState& state) {
  std::vector<SlotState*> others;
  for (auto& [id, other] : slots_)
    if (&other != &state && other.bytes == state.bytes && other.filled && !other.writing)
      others.push_back(&other);
  return others.empty() ? nullptr : others[random_() % others.size()];
}

void SimulatedDisk::keep_old(SlotState& state) {
  if (options_.stale_read_rate > 0 || options_.lost_write_rate > 0 || options_.torn_rate > 0 ||
      options_.misdirected_write_rate > 0)
    old_.swap(state.data);
}

/// The bytes reach the disk: those of the slot, as a rule. They are in contents_ already.
void SimulatedDisk::move_write(const Request&, SlotState& state) {
  const auto old_as_large = [&] {
    std::vector<std::byte> old = old_;
    old.resize(contents_.size());
    return old;
  };
  if (chance(options_.lost_write_rate)) {
    ++faults_.lost_writes;
    state.data = old_as_large();
  } else if (chance(options_.torn_rate)) {
    ++faults_.torn;
    state.data = old_as_large();
    const size_t half = contents_.size() / 16 * 8;
    std::copy_n(contents_.begin(), half, state.data.begin());
  } else if (SlotState* other =
                 chance(options_.misdirected_write_rate) ? another(state) : nullptr) {
    ++faults_.misdirected_writes;
    state.data = old_as_large();
    other->data = contents_;
    other->damaged = true;
  } else {
    state.data = contents_;
    state.damaged = false;
    return;
  }
  // (operator== of std::byte compares byte by byte.)
  state.damaged = std::memcmp(state.data.data(), contents_.data(), contents_.size()) != 0;
}

/// Another slot's bytes, or those that were here before, come in place of the slot's.
bool SimulatedDisk::read_elsewhere(const Request&, const SlotState& state) {
  if (chance(options_.misdirected_read_rate))
    if (const SlotState* other = another(state)) {
      ++faults_.misdirected_reads;
      contents_ = other->data;
      return true;
    }
  if (!chance(options_.stale_read_rate)) return false;
  ++faults_.stale_reads;
  contents_ = old_;
  contents_.resize(state.data.size());
  return true;
}

void SimulatedDisk::end_faults() {
  std::lock_guard lock(mutex_);
  for (double* rate :
       {&options_.write_error_rate, &options_.read_error_rate, &options_.corrupt_rate,
        &options_.lasting_corrupt_rate, &options_.misdirected_read_rate, &options_.stale_read_rate,
        &options_.late_rate, &options_.short_rate, &options_.lost_write_rate, &options_.torn_rate,
        &options_.misdirected_write_rate})
    *rate = 0;
  options_.reads_fail_until_ns = options_.writes_fail_until_ns = options_.full_until_ns = 0;
  options_.capacity_bytes = SIZE_MAX;
}

SimulatedFaults SimulatedDisk::faults() const {
  std::lock_guard lock(mutex_);
  return faults_;
}

size_t SimulatedDisk::in_flight(unsigned queue) const {
  std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const auto& requests : waiting_)
    for (const Request& request : requests) count += request.queue == queue;
  for (const Done& done : done_) count += done.queue == queue;
  return count;
}

std::span<const std::byte> SimulatedDisk::contents(Slot slot) const {
  std::lock_guard lock(mutex_);
  const auto at = slots_.find(slot.id);
  return at == slots_.end() ? std::span<const std::byte>() : at->second.data;
}

bool SimulatedDisk::damaged(Slot slot) const {
  std::lock_guard lock(mutex_);
  const auto at = slots_.find(slot.id);
  return at != slots_.end() && (at->second.damaged || at->second.lasting_corrupt);
}

}  // namespace firn
