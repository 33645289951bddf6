#include "backing/store/simulated_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "firn/check.h"

namespace firn {

namespace {
constexpr unsigned attempts_most = 3;

uint64_t transfer_ns(size_t bytes, double bytes_s) {
  return static_cast<uint64_t>(static_cast<double>(bytes) / bytes_s * 1e9);
}
}  // namespace

SimulatedDisk::SimulatedDisk(const SimulatedStoreOptions& options)
    : options_(options), random_(options.seed) {
  dir_.dir = "simulated";
}

std::unique_ptr<SimulatedStore> open_simulated_store(const SimulatedStoreOptions& options) {
  FIRN_CHECK(options.clock, "a simulated store needs a clock");
  FIRN_CHECK(options.read_bytes_s > 0 && options.write_bytes_s > 0, "bandwidth %g, %g",
             options.read_bytes_s, options.write_bytes_s);
  return std::make_unique<SimulatedDisk>(options);
}

/// Drawn without <random>'s distributions, which differ between libraries.
bool SimulatedDisk::chance(double rate) {
  if (rate <= 0) return false;
  return static_cast<double>(random_() >> 11) * 0x1p-53 < rate;
}

Result<void> SimulatedDisk::attach_staging(std::span<std::byte> staging) {
  if (staging.empty() || reinterpret_cast<uintptr_t>(staging.data()) % store_alignment != 0 ||
      staging.size() % store_alignment != 0)
    return invalid(
        fmt::format("staging of {} bytes: not aligned to {}", staging.size(), store_alignment));
  return {};
}

Result<Slot> SimulatedDisk::reserve(size_t bytes, bool) {
  if (std::string trouble = reservation_trouble(bytes); !trouble.empty()) return invalid(trouble);
  const uint64_t now = options_.clock->now_ns();
  std::lock_guard lock(mutex_);
  if (now >= options_.full_from_ns && now < options_.full_until_ns) {
    ++faults_.refused;
    dir_.trouble = "the simulated disk is full for a time";
    return make_error(Code::no_space, ENOSPC, "no room for a slot: " + dir_.trouble);
  }
  if (bytes > options_.capacity_bytes - std::min<uint64_t>(slot_bytes_, options_.capacity_bytes)) {
    dir_.trouble = fmt::format("the simulated disk of {} bytes is full", options_.capacity_bytes);
    return make_error(Code::no_space, ENOSPC,
                      fmt::format("no room for a slot of {} bytes: {}", bytes, dir_.trouble));
  }
  Slot slot{next_id_++};
  FIRN_CHECK(next_id_ != 0, "four thousand million slots");
  slots_[slot.id].bytes = bytes;
  slot_bytes_ += bytes;
  dir_.file_bytes = std::max(dir_.file_bytes, slot_bytes_);
  return slot;
}

Result<void> SimulatedDisk::write(unsigned queue, Slot slot, std::span<const std::byte> bytes,
                                  uint64_t tag) {
  Request request;
  request.completion.kind = StoreCompletion::Kind::write;
  request.completion.slot = slot;
  request.completion.tag = tag;
  request.completion.bytes = bytes.size();
  request.queue = queue;
  request.data = const_cast<std::byte*>(bytes.data());
  return submit(std::move(request), writes, options_.clock->now_ns());
}

Result<void> SimulatedDisk::read(unsigned queue, Slot slot, std::span<std::byte> bytes,
                                 uint64_t tag) {
  Request request;
  request.completion.kind = StoreCompletion::Kind::read;
  request.completion.slot = slot;
  request.completion.tag = tag;
  request.completion.bytes = bytes.size();
  request.queue = queue;
  request.data = bytes.data();
  return submit(std::move(request), reads, options_.clock->now_ns());
}

Result<void> SimulatedDisk::submit(Request request, Side side, uint64_t now) {
  std::lock_guard lock(mutex_);
  advance(now);
  uint32_t id = request.completion.slot.id;
  auto found = slots_.find(id);
  if (found == slots_.end() || found->second.discarded)
    return invalid(fmt::format("slot {} is not reserved", id));
  SlotState& state = found->second;
  std::string trouble =
      request_trouble(request.queue, request.data, request.completion.bytes, state.bytes);
  if (!trouble.empty()) return invalid(fmt::format("slot {}: {}", id, trouble));
  if (side == writes ? state.jobs > 0 : state.writing)
    return invalid(fmt::format("slot {}: a request for it is in flight", id));
  if (side == reads && !state.filled)
    return invalid(fmt::format("slot {} holds nothing readable", id));
  request.submitted_ns = now;
  request.was_filled = state.filled;
  if (side == writes) {
    if (options_.keep_bytes) request.sum = sum_in_memory(request.data, state.bytes);
    state.filled = false;
    state.writing = true;
  } else if (options_.keep_bytes) {
    poison_memory(request.data, state.bytes);
  }
  ++state.jobs;
  waiting_[side].push_back(std::move(request));
  speed_[side].begin(now);
  if (waiting_[side].size() == 1) start(side, std::max(now, free_ns_[side]));
  return {};
}

void SimulatedDisk::start(Side side, uint64_t at_ns) {
  Request& request = waiting_[side].front();
  request.begun = true;
  request.end_ns =
      at_ns + transfer_ns(request.completion.bytes,
                          side == writes ? options_.write_bytes_s : options_.read_bytes_s);
  if (chance(options_.short_rate)) {  // and continued
    ++faults_.short_transfers;
    request.end_ns += options_.latency_ns;
  }
}

/// Moves the disk on to `now`, in the order in which things happen. mutex_ held.
void SimulatedDisk::advance(uint64_t now) {
  while (true) {
    Side side = reads;
    uint64_t next = UINT64_MAX;
    for (Side each : {reads, writes})
      if (!waiting_[each].empty() && waiting_[each].front().end_ns < next) {
        side = each;
        next = waiting_[each].front().end_ns;
      }
    if (next > now || next == UINT64_MAX) return;
    free_ns_[side] = next;
    if (!move(waiting_[side].front(), side)) {
      start(side, next);
      continue;
    }
    const Request& over = waiting_[side].front();
    speed_[side].end(over.completion.error.code == Code::ok ? over.completion.bytes : 0, next);
    end(waiting_[side].front(), next);
    waiting_[side].pop_front();
    if (!waiting_[side].empty()) start(side, next);
  }
}

std::optional<bool> SimulatedDisk::holds(Slot slot, std::span<const std::byte> bytes) const {
  std::lock_guard lock(mutex_);
  const auto at = slots_.find(slot.id);
  if (!options_.keep_bytes || at == slots_.end() || !at->second.filled ||
      at->second.bytes != bytes.size())
    return std::nullopt;
  if (options_.tags) return std::nullopt;  // (these bytes are somebody's own, not memory's)
  return sum_of(bytes.data(), bytes.size()) == at->second.sum;
}

bool SimulatedDisk::move(Request& request, Side side) {
  SlotState& state = slots_.at(request.completion.slot.id);
  if (side == reads) return move_read(request, state);
  state.writing = false;
  FIRN_CHECK(!options_.keep_bytes || sum_in_memory(request.data, state.bytes) == request.sum,
             "the bytes for slot %u changed while they were being written",
             request.completion.slot.id);
  if (chance(options_.write_error_rate) || fails(writes, request.end_ns)) {
    ++faults_.write_errors;
    request.completion.error = make_error(Code::io, EIO,
                                          fmt::format("write of slot {} ({} bytes): "
                                                      "a simulated error",
                                                      request.completion.slot.id, state.bytes));
    dir_.trouble = request.completion.error.text;
    return true;
  }
  if (options_.keep_bytes) move_write(request, state);
  state.sum = request.sum;
  if (options_.keep_bytes) request.completion.sum = state.sum;
  state.filled = true;
  state.lasting_corrupt = chance(options_.lasting_corrupt_rate);
  if (state.lasting_corrupt) ++faults_.lasting_flips;
  dir_.written_bytes += state.bytes;
  return true;
}

bool SimulatedDisk::move_read(Request& request, SlotState& state) {
  uint32_t id = request.completion.slot.id;
  if (chance(options_.read_error_rate) || fails(reads, request.end_ns)) {
    ++faults_.read_errors;
    request.completion.error =
        make_error(Code::io, EIO,
                   fmt::format("read of slot {} ({} bytes): a simulated error", id, state.bytes));
    dir_.trouble = request.completion.error.text;
    return true;
  }
  if (!options_.keep_bytes) {
    dir_.read_bytes += state.bytes;
    return true;
  }
  if (request.reads > 0 || !read_elsewhere(request, state)) contents_ = state.data;
  const bool flip = request.reads == 0 && chance(options_.corrupt_rate);
  if (flip) ++faults_.flipped;
  if (flip || state.lasting_corrupt) contents_[random_() % contents_.size()] ^= std::byte{1};
  const Sum found = sum_of(contents_.data(), contents_.size());
  unload(request.data, state.bytes);
  if (found == state.sum) {
    request.completion.sum = state.sum;
    if (request.reads > 0) ++reread_;
    dir_.read_bytes += state.bytes;
    return true;
  }
  if (request.reads == 0) request.sum = found;
  if (++request.reads < attempts_most) return false;
  ++corrupt_;
  request.completion.error = make_error(
      Code::corrupt, 0,
      fmt::format("slot {} ({} bytes) came back wrong {} times: its checksum is {}, but reads gave "
                  "{}; Firn withholds the bytes",
                  id, state.bytes, attempts_most, state.sum.words(), request.sum.words()));
  poison_memory(request.data, state.bytes);
  return true;
}

void SimulatedDisk::end(Request& request, uint64_t at_ns) {
  Done done;
  done.due_ns = at_ns + options_.latency_ns + lateness();
  done.queue = request.queue;
  done.completion = std::move(request.completion);
  done.completion.busy_ns = done.due_ns - request.submitted_ns;
  uint32_t id = done.completion.slot.id;
  SlotState& state = slots_.at(id);
  --state.jobs;
  if (state.discarded && state.jobs == 0) {
    slot_bytes_ -= state.bytes;
    keep_old(state);
    slots_.erase(id);
  }
  auto after = std::upper_bound(done_.begin(), done_.end(), done.due_ns,
                                [](uint64_t due, const Done& other) { return due < other.due_ns; });
  done_.insert(after, std::move(done));
}

bool SimulatedDisk::cancel(unsigned queue, uint64_t tag) {
  uint64_t now = options_.clock->now_ns();
  std::lock_guard lock(mutex_);
  advance(now);
  for (Side side : {reads, writes}) {
    auto found = std::find_if(waiting_[side].begin(), waiting_[side].end(), [&](const Request& r) {
      return !r.begun && r.queue == queue && r.completion.tag == tag;
    });
    if (found == waiting_[side].end()) continue;
    uint32_t id = found->completion.slot.id;
    SlotState& state = slots_.at(id);
    if (side == writes) {
      state.writing = false;
      state.filled = found->was_filled;
    }
    if (--state.jobs == 0 && state.discarded) {
      slot_bytes_ -= state.bytes;
      slots_.erase(id);
    }
    waiting_[side].erase(found);
    speed_[side].end(0, now);
    return true;
  }
  return false;
}

void SimulatedDisk::discard(Slot slot) {
  uint64_t now = options_.clock->now_ns();
  std::lock_guard lock(mutex_);
  advance(now);
  auto found = slots_.find(slot.id);
  FIRN_CHECK(found != slots_.end() && !found->second.discarded,
                   "discard of slot %u, which is not reserved", slot.id);
  found->second.discarded = true;
  if (found->second.jobs > 0) return;
  slot_bytes_ -= found->second.bytes;
  keep_old(found->second);
  slots_.erase(found);
}

size_t SimulatedDisk::poll(unsigned queue, std::span<StoreCompletion> out) {
  FIRN_CHECK(queue < store_queues, "queue %u of %u", queue, store_queues);
  uint64_t now = options_.clock->now_ns();
  std::lock_guard lock(mutex_);
  advance(now);
  size_t count = 0;
  for (auto done = done_.begin(); done != done_.end() && done->due_ns <= now;) {
    if (count == out.size()) break;
    if (done->queue != queue) {
      ++done;
      continue;
    }
    out[count++] = std::move(done->completion);
    done = done_.erase(done);
  }
  return count;
}

StoreStats SimulatedDisk::stats() const {
  std::lock_guard lock(mutex_);
  StoreStats stats;
  stats.kind = "simulated";
  stats.dirs = {dir_};
  stats.dirs[0].write_bytes_s = speed_[writes].bytes_s();
  stats.dirs[0].read_bytes_s = speed_[reads].bytes_s();
  stats.written_bytes = dir_.written_bytes;
  stats.read_bytes = dir_.read_bytes;
  stats.slots_in_use = slots_.size();
  stats.slot_bytes_in_use = slot_bytes_;
  stats.reread = reread_;
  stats.corrupt = corrupt_;
  return stats;
}

/// A due completion that is not polled is named once: that wakes its engine, and lets time go on
/// for an engine in the same thread that waits for something else.
uint64_t SimulatedDisk::next_completion_ns() const {
  uint64_t now = options_.clock->now_ns();
  std::lock_guard lock(mutex_);
  uint64_t next = UINT64_MAX;
  for (Side side : {reads, writes})
    if (!waiting_[side].empty())
      next = std::min(next, waiting_[side].front().end_ns + options_.latency_ns);
  for (Done& done : done_) {
    if (done.due_ns > now) {
      next = std::min(next, done.due_ns);
      break;
    }
    if (!done.told) next = std::min(next, done.due_ns);
    done.told = true;
  }
  return next;
}

}  // namespace firn
