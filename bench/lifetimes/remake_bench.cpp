// What choosing what is made again costs, on a trace as `firn simulate --remake on` chooses:
//   remake_bench PREFIX PERCENT...
// At parts of the memory that the program takes, on an H200 with a link of 55 GB/s, four SSDs and
// 64 GiB of host memory: milliseconds of processor time (the least of five), and what was chosen.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "allocator/lifetimes/operator_steps.h"
#include "allocator/simulate/remake.h"

using namespace firn;
using namespace firn::simulate;

int main(int count, char** words) {
  if (count < 3) return 2;
  Result<ProgramTrace> trace = read_program_trace(words[1]);
  if (!trace) {
    std::fprintf(stderr, "%s\n", trace.error().text.c_str());
    return 2;
  }
  const std::vector<uint64_t> alive = lifetimes::alive_bytes(operators_of(*trace), 0);
  const uint64_t peak = *std::max_element(alive.begin(), alive.end());
  MachineOptions machine;
  machine.link_bytes_s = 55e9;
  machine.ssd_read_bytes_s = 13e9;
  machine.ssd_write_bytes_s = 9e9;
  machine.ssds = 4;
  machine.host_bytes = uint64_t{64} << 30;
  std::printf("%8s %8s %8s %8s %8s\n", "kernels", "percent", "ms", "values", "again %");
  for (int i = 2; i < count; ++i) {
    machine.gpu_bytes = peak / 100 * std::strtoull(words[i], nullptr, 0);
    Remade remade;
    double least_s = 1e9;
    for (int run = 0; run < 5; ++run) {
      remade = remake(*trace, machine);
      least_s = std::min(least_s, remade.choice_s);
    }
    std::printf("%8zu %8s %8.1f %8llu %8.2f\n", trace->kernels.size(), words[i], 1e3 * least_s,
                (unsigned long long)remade.values,
                100e9 * remade.again_s / static_cast<double>(trace->duration_ns));
  }
}
