// What a launch costs more through the library in front of the driver: the same launch with ten
// parameters through both, in turns, so that the machine's noise is the same for both.
//
//   LD_PRELOAD=.../libfirn_preload.so FIRN_DEVICE=software FIRN_GPU_MEMORY=8GiB
//   build/bench/preload/launch build/bench/preload/libno_kernel.so [BLOCKS...]
//
// The launch has an empty grid: the software GPU looks at it and refuses it, which takes it little
// and always the same. Prints medians over rounds, in nanoseconds: the driver alone, and how much
// is added where the ten parameters are addresses of resident blocks (the largest ones first, then
// small ones), of which BLOCKS are live in all; where four are and six are numbers; where none are.
// With the word `short` instead of BLOCKS: the same once memory has been short and a table of
// addresses is known, which the launch is not given; where it is; and where a variable outside the
// blocks (managed memory stands for it) holds an address too. (With FIRN_BUDGET=128MiB.)
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Launch = int (*)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                       unsigned, void* stream, void** parameters, void** extra);
constexpr int parameters = 10, launches = 2000, rounds = 200;

void* driver;
template <class Function>
Function entry(void* library, const char* name) {
  void* found = ::dlsym(library, name);
  if (!found) {
    std::fprintf(stderr, "launch: no %s: run it under LD_PRELOAD=libfirn_preload.so\n", name);
    std::exit(1);
  }
  return reinterpret_cast<Function>(found);
}

template <class... P>
void call(const char* name, P... p) {
  const int result = entry<int (*)(P...)>(driver, name)(p...);
  if (result == 0) return;
  std::fprintf(stderr, "launch: %s: %d\n", name, result);
  std::exit(1);
}

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

double ns_each(Launch launch, void* function, void** arguments) {
  const auto begin = Clock::now();
  for (int i = 0; i < launches; ++i)
    launch(function, 0, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr);
  const std::chrono::duration<double, std::nano> taken = Clock::now() - begin;
  return taken.count() / launches;
}

struct Cost {
  double alone, added;
};
Cost compare(Launch alone, Launch hooked, void* function, std::vector<uint64_t>& words) {
  std::vector<void*> arguments;
  for (uint64_t& word : words) arguments.push_back(&word);
  std::vector<double> base, added;
  for (int round = 0; round < rounds; ++round) {
    const double driver_ns = ns_each(alone, function, arguments.data());
    const double hooked_ns = ns_each(hooked, function, arguments.data());
    base.push_back(driver_ns);
    added.push_back(hooked_ns - driver_ns);
  }
  return {median(base), median(added)};
}

uint64_t make(size_t bytes) {
  uint64_t address = 0;
  call("cuMemAlloc_v2", &address, bytes);
  return address;
}

/// More than the budget, so that memory is short once; the last ones stay.
void be_short(std::vector<uint64_t>& large, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i) {
    large.push_back(make(4u << 20));
    call("cuMemsetD32_v2", large.back(), 0u, size_t{1024});
  }
  call("cuCtxSynchronize");
}

void after_short(Launch alone, Launch hooked, void* function) {
  std::vector<uint64_t> large;
  be_short(large, 40);
  std::vector<uint64_t> given(large.end() - parameters, large.end()), with_table = given;
  const uint64_t table = large[20];
  const auto print = [&](const char* what, std::vector<uint64_t>& words) {
    const Cost cost = compare(alone, hooked, function, words);
    std::printf("memory was short, %-38s driver alone %6.0f ns, added %6.1f ns\n", what,
                cost.alone, cost.added);
  };
  print("10 blocks", given);
  call("cuMemcpyHtoD_v2", table, static_cast<const void*>(&large[35]), size_t{4 * 8});
  call("cuCtxSynchronize");
  print("10 blocks, a table elsewhere", given);
  with_table[0] = table;
  print("9 blocks, a table of 4", with_table);
  void* host = nullptr;
  call("cuMemAllocManaged", &host, size_t{4096}, 1u);
  call("cuMemcpy", reinterpret_cast<uint64_t>(host), reinterpret_cast<uint64_t>(&large[36]),
       size_t{8});
  print("10 blocks, an address in a variable", given);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) {
    std::fprintf(stderr, "launch: %s\n", ::dlerror());
    return 1;
  }
  const auto stand_in = entry<void* (*)(const char*)>(driver, "firn_stand_in");
  const auto alone = entry<Launch>(stand_in("driver"), "cuLaunchKernel");
  const auto hooked = entry<Launch>(driver, "cuLaunchKernel");
  int device = 0;
  void *context = nullptr, *module = nullptr, *function = nullptr;
  call("cuInit", 0u);
  call("cuDeviceGet", &device, 0);
  call("cuDevicePrimaryCtxRetain", &context, device);
  call("cuCtxSetCurrent", context);
  call("cuModuleLoad", &module, static_cast<const char*>(argv[1]));
  call("cuModuleGetFunction", &function, module, "no_kernel");
  if (argc > 2 && std::string_view(argv[2]) == "short") {
    after_short(alone, hooked, function);
    return 0;
  }
  std::vector<long> counts;
  for (int i = 2; i < argc; ++i) counts.push_back(std::atol(argv[i]));
  if (counts.empty()) counts = {1000, 1'000'000};

  std::vector<uint64_t> large, small, none(parameters);
  for (int i = 0; i < parameters; ++i) large.push_back(make(4u << 20));
  for (int i = 0; i < parameters; ++i) none[i] = static_cast<uint64_t>(i);
  long live = parameters;
  for (long count : counts) {
    while (live < count) {
      const uint64_t block = make(512);
      if (++live % (count / parameters) == 0) small.push_back(block);
    }
    small.resize(parameters, large[0]);
    std::vector<uint64_t> mixed(large.begin(), large.begin() + 4);
    mixed.insert(mixed.end(), none.begin() + 4, none.end());
    struct {
      const char* what;
      std::vector<uint64_t>& words;
    } cases[] = {{"10 large blocks", large}, {"4 large blocks, 6 numbers", mixed},
                 {"10 small blocks", small}, {"10 numbers", none}};
    for (auto& each : cases) {
      const Cost cost = compare(alone, hooked, function, each.words);
      std::printf("%8ld blocks live, %-26s driver alone %6.0f ns, added %6.1f ns\n", live,
                  each.what, cost.alone, cost.added);
    }
    small.clear();
  }
  return 0;
}
