#include "backing/store/paced_store.h"

#include <fmt/format.h>

#include <algorithm>

#include "backing/store/file_store.h"
#include "firn/check.h"

namespace firn {

/// mutex_ held, from before the lower store took the request: it may be complete by now.
void PacedStore::begin(Side side, unsigned queue, Slot slot, size_t bytes, uint64_t tag,
                       uint64_t now) {
  uint64_t end = now;
  if (bytes_s(side) > 0) {
    const double ns = static_cast<double>(bytes) / bytes_s(side) * 1e9;
    end = std::max(now, free_ns_[side]) + static_cast<uint64_t>(ns);
    free_ns_[side] = end;
  }
  requests_.push_back({queue, tag, slot, now, end + pace_.latency_ns, false, {}});
}

Result<void> PacedStore::write(unsigned queue, Slot slot, std::span<const std::byte> bytes,
                               uint64_t tag) {
  if (abandoned_) return lower_->write(queue, slot, bytes, tag);
  const uint64_t now = clock_.now_ns();
  std::lock_guard lock(mutex_);
  Result<void> begun = lower_->write(queue, slot, bytes, tag);
  if (begun) begin(writes, queue, slot, bytes.size(), tag, now);
  return begun;
}

Result<void> PacedStore::read(unsigned queue, Slot slot, std::span<std::byte> bytes, uint64_t tag) {
  if (abandoned_) return lower_->read(queue, slot, bytes, tag);
  const uint64_t now = clock_.now_ns();
  std::lock_guard lock(mutex_);
  Result<void> begun = lower_->read(queue, slot, bytes, tag);
  if (begun) begin(reads, queue, slot, bytes.size(), tag, now);
  return begun;
}

bool PacedStore::cancel(unsigned queue, uint64_t tag) {
  if (abandoned_) return lower_->cancel(queue, tag);
  std::lock_guard lock(mutex_);
  if (!lower_->cancel(queue, tag)) return false;
  auto withdrawn = std::find_if(requests_.begin(), requests_.end(), [&](const Request& request) {
    return request.queue == queue && request.tag == tag && !request.completed;
  });
  FIRN_CHECK(withdrawn != requests_.end(), "withdrawn: queue %u, tag %llu, never begun",
             queue, (unsigned long long)tag);
  requests_.erase(withdrawn);
  return true;
}

/// Everything that the lower store has completed. mutex_ held.
void PacedStore::take_completed(unsigned queue) {
  std::array<StoreCompletion, 32> done;
  while (const size_t count = lower_->poll(queue, done)) {
    for (size_t i = 0; i < count; ++i) {
      auto known = std::find_if(requests_.begin(), requests_.end(), [&](const Request& request) {
        return request.queue == queue && request.tag == done[i].tag &&
               request.slot == done[i].slot && !request.completed;
      });
      FIRN_CHECK(known != requests_.end(), "completed: queue %u, tag %llu, never begun",
                 queue, (unsigned long long)done[i].tag);
      known->completed = true;
      known->completion = std::move(done[i]);
    }
  }
}

size_t PacedStore::poll(unsigned queue, std::span<StoreCompletion> out) {
  if (abandoned_) return lower_->poll(queue, out);
  const uint64_t now = clock_.now_ns();
  std::lock_guard lock(mutex_);
  take_completed(queue);
  size_t count = 0;
  for (Request& request : requests_) {
    if (count == out.size()) break;
    if (request.queue != queue || !request.completed || request.due_ns > now) continue;
    request.completion.busy_ns =
        std::max(request.completion.busy_ns, request.due_ns - request.submitted_ns);
    out[count++] = std::move(request.completion);
    request.queue = store_queues;  // of no queue: to be erased
  }
  if (count > 0)
    std::erase_if(requests_, [](const Request& request) { return request.queue == store_queues; });
  return count;
}

StoreStats PacedStore::stats() const {
  StoreStats stats = lower_->stats();
  const auto speed = [](double bytes_s) {
    return bytes_s > 0 ? fmt::format("{:.0f} MiB/s", bytes_s / (1 << 20)) : std::string("as fast");
  };
  stats.why += fmt::format("{}held to a modelled SSD: reads {}, writes {}, latency {} us",
                           stats.why.empty() ? "" : "; ", speed(pace_.read_bytes_s),
                           speed(pace_.write_bytes_s), pace_.latency_ns / 1000);
  return stats;
}

/// The lock may be held by a thread that the child does not have: it is not taken any more.
void PacedStore::abandon() {
  abandoned_ = true;
  lower_->abandon();
}

}  // namespace firn
