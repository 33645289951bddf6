// The machine of the engine's benches: the software GPU on a virtual clock, with room for all, so
// that nothing waits and its clock may be read by several threads.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "allocator/simulate/machine.h"

namespace firn::bench {

/// Ends the process with an error's words.
template <class T>
T must(Result<T>&& result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "bench: %s\n", describe(result.error()).c_str());
  std::exit(1);
}

/// `watched`: operators are watched from the start, else as in a job that fits.
inline std::unique_ptr<simulate::Machine> machine(bool watched = false) {
  const char* library = std::getenv("FIRN_TEST_GPU");
  simulate::MachineOptions options;
  options.gpu_library = library ? library : "";
  options.gpu_bytes = uint64_t{48} << 30;
  options.link_bytes_s = 16e9;
  options.ssd_read_bytes_s = options.ssd_write_bytes_s = 3.2e9;
  options.ssd_latency_ns = 20'000;
  options.host_bytes = 32u << 20;
  options.piece_bytes = 2u << 20;
  options.driver_costs = false;
  options.watch_fraction = watched ? 0 : 1;
  return must(simulate::Machine::open(options));
}

}  // namespace firn::bench
