// Rehearses a trace under some tunings: what a rehearsal believes, beside what `firn simulate`
// finds.
//   rehearse_trace PREFIX GPU_BYTES HOST_BYTES STORE_BYTES_S [LINK_BYTES_S]
#include <cstdio>
#include <cstdlib>

#include <chrono>

#include "allocator/lifetimes/rehearse.h"
#include "allocator/simulate/kernels.h"
#include "allocator/simulate/program_trace.h"

using namespace firn;
using namespace firn::lifetimes;

namespace {

constexpr uint64_t granule = 2 << 20;

program::Kernels read(const simulate::ProgramTrace& trace) {
  program::Kernels kernels;
  std::vector<uint32_t> block_of(trace.tensors.size(), UINT32_MAX);
  for (size_t t = 0; t < trace.tensors.size(); ++t) {
    const simulate::TraceTensor& tensor = trace.tensors[t];
    if (tensor.first == simulate::no_kernel || tensor.bytes < granule / 2) continue;
    block_of[t] = static_cast<uint32_t>(kernels.blocks.size());
    kernels.blocks.push_back({(tensor.bytes + granule - 1) / granule, tensor.persistent,
                              tensor.first, tensor.last});
  }
  for (const simulate::TraceKernel& kernel : trace.kernels) {
    program::Kernels::Kernel& to = kernels.kernels.emplace_back();
    to.ns = kernel.duration_ns;
    const auto use = [&](std::span<const uint32_t> tensors, bool write) {
      for (uint32_t t : tensors) {
        if (block_of[t] == UINT32_MAX) continue;
        bool known = false;
        for (auto& other : to.uses)
          if (other.block == block_of[t]) known = other.write |= write, known = true;
        if (!known) to.uses.push_back({block_of[t], write});
      }
    };
    use(trace.inputs(kernel), false);
    use(trace.outputs(kernel), true);
  }
  return kernels;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  auto trace = simulate::read_program_trace(argv[1]);
  if (!trace) {
    std::fprintf(stderr, "%s\n", trace.error().text.c_str());
    return 2;
  }
  const program::Kernels kernels = read(*trace);
  RehearsalMachine machine;
  machine.page_bytes = granule;
  machine.capacity = std::strtoull(argv[2], nullptr, 0) / granule;
  machine.host = std::strtoull(argv[3], nullptr, 0) / granule;
  const double store = std::strtod(argv[4], nullptr);
  const double link = argc > 5 ? std::strtod(argv[5], nullptr) : 15.754 * 1073741824.;
  machine.bytes_s[0] = machine.bytes_s[1] = link;
  machine.bytes_s[2] = machine.bytes_s[3] = store;
  for (const uint64_t spare_part : {0, 50, 16, 7}) {
    program::Script script(kernels);
    Rehearsal rehearsal = script.rehearsal(machine);
    std::vector<uint64_t> in_store;
    for (const Item& item : script.items) in_store.push_back(item.size);
    rehearsal.in_store = in_store;
    rehearsal.periods = 3;
    rehearsal.tuning = {.spare_part = spare_part};
    const auto begin = std::chrono::steady_clock::now();
    const Rehearsed found = rehearse(rehearsal);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("spare 1/%llu: %s %.4f of ideal, written %.1f GiB, read %.1f GiB, "
                "%llu decisions, %.3f s\n",
                (unsigned long long)spare_part, found.possible ? "" : "IMPOSSIBLE",
                static_cast<double>(trace->duration_ns) / static_cast<double>(found.last_ns),
                static_cast<double>(found.bytes[2]) / 3 / 1073741824.,
                static_cast<double>(found.bytes[3]) / 3 / 1073741824.,
                (unsigned long long)found.decided, seconds.count());
  }
}
