// Figures: microseconds of calls on an A100, 2 MiB handles, as others measured and published them:
// the first run's (create: the second's, too, for memory that was created before). Pinning: 2.7 s
// for 8 GiB by cuMemHostAlloc. That giving access waits for copies to the host, and for nothing
// else, was measured on an H100 (bench/gpu/access_load.cpp: 1057 us for each handle).
#include "call_cost.h"

#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "gpu.h"

namespace firn::software {

namespace {
constexpr double create_fresh_us = 193, create_again_us = 7.6, release_us = 23, map_us = 1.5,
                 access_us = 36, unmap_us = 26;
constexpr double register_us_per_mib = 330;

struct Costs {
  double scale = 0;
  double behind_copies_us = 0;  // that giving access waits for copies to the host, at most
  std::mutex one_at_a_time;
};
Costs& costs() {
  static Costs* the_costs = new Costs;  // never destroyed, as the GPU is not
  return *the_costs;
}

uint64_t now_ns() {
  timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Sleeps for most of it: the system wakes a sleeper some 60 us late.
void take_time(uint64_t ns) {
  const uint64_t end = now_ns() + ns;
  if (ns > 200'000) {
    const uint64_t until = end - 100'000;
    const timespec at = {static_cast<time_t>(until / 1'000'000'000),
                         static_cast<long>(until % 1'000'000'000)};
    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr);
  }
  while (now_ns() < end) {}
}

/// Under the GPU's lock.
bool copies_to_host() {
  const uint64_t now = gpu().scheduler.now_ns();
  for (const auto& device : gpu().devices)
    if (device->to_host.free_at_ns > now) return true;
  return false;
}

/// Waits for a moment without a copy to the host under way, at most `ns_most`.
void wait_for_a_gap(Gate& gate, uint64_t ns_most) {
  constexpr timespec look = {0, 20'000};
  for (const uint64_t end = now_ns() + ns_most; now_ns() < end;) {
    gate.lock().lock();
    const bool busy = copies_to_host();
    gate.lock().unlock();
    if (!busy) return;
    (void)::nanosleep(&look, nullptr);
  }
}

double figure_us(Call call, uint64_t handles, uint64_t bytes) {
  const auto count = static_cast<double>(handles);
  switch (call) {
    case Call::create: {
      static uint64_t most = 0;  // under the GPU's lock
      uint64_t held = 0;
      for (const auto& device : gpu().devices) held += device->memory.frame_bytes.now;
      const bool fresh = held > most;
      if (fresh) most = held;
      return fresh ? create_fresh_us : create_again_us;
    }
    case Call::release: return release_us;
    case Call::map: return map_us;
    case Call::access: return access_us * count;
    case Call::unmap: return unmap_us * count;
    case Call::host_register:
      return register_us_per_mib * static_cast<double>(bytes) / (1 << 20);
  }
  return 0;
}
}  // namespace

std::string read_call_cost() {
  costs().scale = costs().behind_copies_us = 0;
  const char* words = std::getenv("FIRN_GPU_CALL_COST");
  if (!words || !*words) return {};
  double scale = 0, more = 0;
  char rest = 0;
  const int read = std::sscanf(words, "%lf+%lf%c", &scale, &more, &rest);
  const bool whole = read == 2 || (read == 1 && !std::strchr(words, '+'));
  char* end = nullptr;
  (void)std::strtod(words, &end);
  if (!whole || (read == 1 && *end) || !(scale >= 0 && scale <= 1e6 && more >= 0 && more <= 1e6))
    return std::string("FIRN_GPU_CALL_COST=") + words +
           " is not scale or scale+microseconds (1, 40, 40+150)";
  costs().scale = scale;
  costs().behind_copies_us = more;
  return {};
}

void charge(Gate& gate, Call call, uint64_t handles, uint64_t bytes) {
  if (costs().scale == 0 || gpu().scheduler.virtual_clock || thread().in_host_function) return;
  const double ns = figure_us(call, handles, bytes) * costs().scale * 1e3;
  gate.lock().unlock();
  {
    std::lock_guard lock(costs().one_at_a_time);
    const double behind_ns = costs().behind_copies_us * costs().scale * 1e3;
    for (uint64_t i = 0; call == Call::access && behind_ns > 0 && i < handles; ++i)
      wait_for_a_gap(gate, static_cast<uint64_t>(behind_ns));
    take_time(static_cast<uint64_t>(ns));
  }
  gate.lock().lock();
}

}  // namespace firn::software
