// What decisions cost: [KERNELS...]. Milliseconds of decide() for a training iteration of so many
// kernels, and of a rehearsal of that iteration with all its decisions, by processor time.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "allocator/simulate/kernels.h"

using namespace firn;
using namespace firn::lifetimes;
using namespace firn::program;

int main(int count, char** values) {
  std::vector<size_t> sizes{1000, 2500, 5000, 10'000, 20'000, 50'000, 100'000};
  if (count > 1) sizes.clear();
  for (int i = 1; i < count; ++i) sizes.push_back(std::strtoull(values[i], nullptr, 0));
  std::printf("%8s %8s %8s %12s %14s %14s %10s\n", "kernels", "items", "steps", "ms",
              "ns/(n log2 n)", "rehearsal ms", "decisions");
  for (size_t kernels : sizes) {
    const Kernels program = train(std::max<size_t>(kernels / 7, 1), 1);
    Script script(program);
    script.start_warm(program.peak() / 2);
    Decision decision;
    const double decides = 1e3 * decision_s(program, 7, decision);
    const auto n = static_cast<double>(script.steps.size());
    RehearsalMachine machine;
    machine.page_bytes = 2 << 20;
    machine.capacity = std::max(program.peak() / 2, program.working_set());
    machine.host = 2 * program.peak();
    machine.bytes_s[0] = machine.bytes_s[1] = 2e10;
    const Rehearsal rehearsal = script.rehearsal(machine);
    const double begin = cpu_s();
    const Rehearsed rehearsed = rehearse(rehearsal);
    const double each = 1e3 * (cpu_s() - begin) / rehearsal.periods;
    std::printf("%8zu %8zu %8zu %12.3f %14.2f %14.1f %10.0f\n", program.kernels.size(),
                script.items.size(), script.steps.size(), decides,
                1e6 * decides / (n * std::log2(n)), each,
                static_cast<double>(rehearsed.decided) / rehearsal.periods);
    std::fflush(stdout);
  }
}
