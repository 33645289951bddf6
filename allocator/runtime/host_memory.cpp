#include "allocator/runtime/host_memory.h"

#include <algorithm>

#include "allocator/memory/arena.h"
#include "allocator/runtime/machine_memory.h"
#include "allocator/runtime/ranks.h"
#include "firn/clock.h"

namespace firn {

namespace {
constexpr uint64_t share_wait_ns = 500'000'000;  // between counts of the sharers
// And between checks of the memory left, at 100 us each: if plenty, little, too little is left.
constexpr uint64_t plenty_wait_ns = 100'000'000, little_wait_ns = 20'000'000;
constexpr uint64_t short_wait_ns = 5'000'000;
constexpr uint64_t extent_part = 32, extent_least = 16u << 20, extent_most = 128u << 20;
constexpr double pressure_most = 10;             // percent, see memory_pressure()
// Stands for the memory of the machine, or of the container whose root it is.
constexpr const char* memory_place = "/";

/// True for one caller once `wait_ns` are over.
bool due(std::atomic<uint64_t>& again_ns, uint64_t wait_ns) {
  const uint64_t now = wall_clock().now_ns();
  uint64_t at = again_ns.load(std::memory_order_relaxed);
  return now >= at &&
         again_ns.compare_exchange_strong(at, now + wait_ns, std::memory_order_relaxed);
}
}  // namespace

HostMemory::HostMemory() : neighbours_(Neighbours::join({memory_place})) {}

uint64_t HostMemory::begin(uint64_t asked_bytes) {
  automatic_ = asked_bytes == 0;
  if (automatic_) {
    available_bytes_ = available_memory_bytes();
    asked_bytes = host_share_bytes(available_bytes_, local_rank().ranks);
  }
  return budget_ = asked_bytes;
}

void HostMemory::start(uint64_t least_bytes) {
  least_ = least_bytes;
  left_ = given_ = budget_;
  const uint64_t machine = machine_memory_bytes();
  told_ = machine > 0;
  room_.kept_bytes = host_kept_bytes(machine);
  // Small on a small machine: such an extent is soon written, and given back.
  room_.extent_bytes =
      std::clamp(machine / extent_part, extent_least, extent_most) / granule_bytes * granule_bytes;
  look();
}

void HostMemory::look() {
  if (due(share_again_ns_, share_wait_ns)) share();
  if (due(look_again_ns_, look_wait_ns_.load(std::memory_order_relaxed)) && told_)
    found(available_memory_bytes(), memory_pressure());
}

/// The default budget is a share of what was available at our start: it follows the number of
/// sharers. Memory that is mapped already stays with its owner.
void HostMemory::share() {
  sharers_ = neighbours_.count();
  if (!automatic_) return;
  std::lock_guard lock(mutex_);
  // The launcher's number counts even before the other ranks have started.
  const unsigned sharers = std::max<unsigned>(sharers_, local_rank().ranks);
  const uint64_t share =
      std::min(std::max(host_share_bytes(available_bytes_, sharers), least_), budget_);
  if (share > given_) {
    left_ += share - given_;
    given_ = share;
  } else if (share < given_) {
    uint64_t left = left_.load(), less = 0;
    do {
      less = std::min<uint64_t>(given_ - share, left);
    } while (!left_.compare_exchange_weak(left, left - less));
    given_ -= less;
  }
}

/// Memory is short if little is left, or if much time goes into finding any, until there is enough
/// to make more. None is made meanwhile, however much is left: it would be given back at once.
void HostMemory::found(uint64_t left, double pressure) {
  const bool before = pressed();
  const uint64_t enough = before ? room_.kept_bytes : room_.kept_bytes / 4 * 3;
  const bool now = left < enough || pressure > pressure_most;
  room_.left_bytes.store(now ? std::min(left, room_.kept_bytes) : left, std::memory_order_relaxed);
  pressed_.store(now, std::memory_order_relaxed);
  if (before || now) due_.store(true, std::memory_order_relaxed);
  look_wait_ns_.store(now                               ? short_wait_ns
                      : left < 3 * room_.kept_bytes     ? little_wait_ns
                                                        : plenty_wait_ns,
                      std::memory_order_relaxed);
}

void HostMemory::take(uint64_t bytes) {
  uint64_t left = left_.load();
  while (!left_.compare_exchange_weak(left, left - std::min(left, bytes))) {}
}

}  // namespace firn
