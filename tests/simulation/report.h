// What a worker process tells the one that started it, in memory that both have: counts, probes,
// and its last words. Written by one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace firn::sim {

/// Conditions that are rare, and have to be met by some seed.
#define FIRN_PROBES(X)                                                                        \
  X(lost_met) X(healed_read) X(write_failed) X(write_refused)                                 \
  X(late_completion) X(short_transfer) X(misdirected_write) X(lost_write) X(torn_write)       \
  X(cancelled_in_flight) X(discarded_in_flight) X(stale_completion) X(forwarded)              \
  X(clean_dropped) X(returned_host_dropped) X(zero_copy) X(unfault) X(kept_while_spilling)    \
  X(partly_away) X(freed_while_faulting) X(freed_while_held) X(unmap_refused) X(map_refused)  \
  X(create_refused) X(copy_refused) X(register_refused) X(not_ready_for_long) X(device_died)  \
  X(out_of_memory) X(budget_lowered) X(period_found) X(placed) X(prefetched) X(shared_frame)  \
  X(closed_in_flight) X(threads_waited) X(guarded) X(exported) X(two_places) X(only_in_store) \
  X(behind_fence) X(streams_ended) X(host_given_back) X(threads_in_calls)                     \
  X(read_on_host) X(written_on_host) X(no_host_memory)                                        \
  X(recipe_given) X(dropped) X(dropped_in_row) X(remade) X(remake_refused) X(input_kept)      \
  X(threads_in_remakes) X(lost_with_input)

enum class Probe : unsigned {
#define FIRN_PROBE(name) name,
  FIRN_PROBES(FIRN_PROBE)
#undef FIRN_PROBE
  count
};
inline constexpr const char* probe_names[] = {
#define FIRN_PROBE(name) #name,
    FIRN_PROBES(FIRN_PROBE)
#undef FIRN_PROBE
};
inline constexpr unsigned probe_count = static_cast<unsigned>(Probe::count);
inline constexpr unsigned first_recipe_probe = static_cast<unsigned>(Probe::recipe_given);

#define FIRN_FAULTS(X)                                                                          \
  X(driver_call) X(driver_from_then_on) X(device_death) X(not_ready) X(busy_copy_stream)       \
  X(write_error) X(read_error) X(no_space) X(late) X(short_transfer) X(flipped) X(stale_read)   \
  X(misdirected_read) X(lasting_flip) X(lost_write) X(misdirected_write) X(torn_write)

enum class Fault : unsigned {
#define FIRN_FAULT(name) name,
  FIRN_FAULTS(FIRN_FAULT)
#undef FIRN_FAULT
  count
};
inline constexpr const char* fault_names[] = {
#define FIRN_FAULT(name) #name,
    FIRN_FAULTS(FIRN_FAULT)
#undef FIRN_FAULT
};
inline constexpr unsigned fault_count = static_cast<unsigned>(Fault::count);

struct Report {
  // Of all workers.
  std::atomic<uint64_t> next_seed{0}, seeds{0}, operations{0}, lost{0}, evictions{0},
      faults_served{0}, written_bytes{0}, read_bytes{0};
  std::atomic<uint64_t> probes[probe_count]{}, probe_seeds[probe_count]{};
  std::atomic<uint64_t> faults[fault_count]{};
};

/// One worker's.
struct Words {
  uint64_t seed = 0, operation = 0, hash = 0;
  char oracle[48]{};     // that failed; empty: none
  char text[1024]{};
};

}  // namespace firn::sim
