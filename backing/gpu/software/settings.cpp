// The settings: environment and defaults.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "gpu.h"
#include "identity.h"
#include "size_words.h"

namespace firn::software {

namespace {
/// Once: firnGpuReset() clears them for good. Empty, or what was wrong.
std::string read_faults(Faults& faults) {
  static bool done = false;
  if (std::exchange(done, true)) return {};
  if (const char* words = std::getenv("FIRN_GPU_FAIL"); words && *words && !faults.parse(words))
    return std::string("FIRN_GPU_FAIL=") + words + " is not entry:nth:error,...";
  const char* words = std::getenv("FIRN_GPU_DIE");
  if (!words || !*words) return {};
  unsigned error = 0;
  unsigned long long after = 0;
  char rest = 0;
  if (std::sscanf(words, "%u:%llu%c", &error, &after, &rest) != 2 || error == 0 || after == 0)
    return std::string("FIRN_GPU_DIE=") + words + " is not error:after (700:250)";
  faults.die_after(after, static_cast<CUresult>(error));
  return {};
}
}  // namespace

std::string read_environment(FirnGpuConfig& config, Faults& faults) {
  std::string wrong;
  auto size = [&](const char* name, auto set) {
    const char* words = std::getenv(name);
    if (!words || !*words) return;
    double value = 0;
    if (parse_size(words, &value))
      set(value);
    else
      wrong = std::string(name) + "=" + words + " is not a size (8GiB, 512MiB, 16GiB/s)";
  };
  if (!gpu().configured) {
    size("FIRN_GPU_MEMORY",
         [&](double v) { config.memory_bytes = static_cast<uint64_t>(v); });
    size("FIRN_GPU_LINK", [&](double v) { config.link_bytes_s = v; });
    if (const char* words = std::getenv("FIRN_GPU_DEVICES"); words && *words) {
      char* end = nullptr;
      const long count = std::strtol(words, &end, 10);
      if (*end || count < 1 || count > devices_max)
        wrong = std::string("FIRN_GPU_DEVICES=") + words + " is not a number from 1 to 16";
      else
        config.devices = static_cast<int>(count);
    }
    if (const char* words = std::getenv("FIRN_GPU_LINK_LATENCY"); words && *words) {
      char* end = nullptr;
      const double number = std::strtod(words, &end);
      const std::string unit = end;
      const double scale = unit.empty() || unit == "ns" ? 1
                           : unit == "us"               ? 1e3
                           : unit == "ms"               ? 1e6
                                                        : 0;
      if (end == words || scale == 0 || number < 0)
        wrong = std::string("FIRN_GPU_LINK_LATENCY=") + words + " is not a time (5us, 700ns)";
      else
        config.link_latency_ns = static_cast<uint64_t>(number * scale);
    }
    if (const char* words = std::getenv("FIRN_GPU_CLOCK"); words && *words) {
      config.virtual_clock = std::strcmp(words, "virtual") == 0;
      if (!config.virtual_clock && std::strcmp(words, "wall") != 0)
        wrong = std::string("FIRN_GPU_CLOCK=") + words + " must be wall or virtual";
    }
  }
  if (std::string words = read_faults(faults); !words.empty()) wrong = words;
  return wrong;
}

std::string read_refusals(Refusals& refusals) {
  using HostNuma = Refusals::HostNuma;
  refusals = {};
  if (const char* words = std::getenv("FIRN_GPU_POSIX_FD"); words && *words) {
    unsigned error = 0;
    char rest = 0;
    if (std::sscanf(words, "%u%c", &error, &rest) != 1 || error == 0)
      return std::string("FIRN_GPU_POSIX_FD=") + words + " is not an error's number (304, 999)";
    refusals.posix_fd = static_cast<CUresult>(error);
  }
  if (const char* words = std::getenv("FIRN_GPU_HOST_NUMA"); words && *words) {
    const std::string said = words;
    refusals.host_copies = said == "no-copies";
    refusals.host_copies_typed = said == "no-copies" || said == "no-htod";
    if (refusals.host_copies_typed) return {};
    refusals.host_numa = said == "none"    ? HostNuma::none
                         : said == "fail"  ? HostNuma::fails
                         : said == "crash" ? HostNuma::crashes
                                           : HostNuma::granted;
    if (refusals.host_numa == HostNuma::granted)
      return "FIRN_GPU_HOST_NUMA=" + said + " must be one of none, fail, crash, no-htod, no-copies";
  }
  return {};
}

std::string read_own_needs(OwnNeeds& needs) {
  needs = {};
  const char* words = std::getenv("FIRN_GPU_OWN");
  if (!words || !*words) return {};
  const std::pair<const char*, uint64_t*> kinds[] = {{"module", &needs.module},
                                                     {"launch", &needs.launch},
                                                     {"stream", &needs.stream},
                                                     {"graph", &needs.graph}};
  const std::string all = words;
  for (size_t begin = 0; begin <= all.size();) {
    const size_t end = std::min(all.find(',', begin), all.size());
    const std::string one = all.substr(begin, end - begin);
    begin = end + 1;
    const size_t colon = one.find(':');
    const auto* kind = std::find_if(std::begin(kinds), std::end(kinds), [&](const auto& known) {
      return colon != std::string::npos && one.substr(0, colon) == known.first;
    });
    double bytes = 0;
    if (kind == std::end(kinds) || !parse_size(one.c_str() + colon + 1, &bytes))
      return "FIRN_GPU_OWN=" + all + ": " + one +
             " is not module, launch, stream or graph with its size (module:32MiB,stream:2MiB)";
    *kind->second = static_cast<uint64_t>(bytes);
  }
  return {};
}

void fill_defaults(FirnGpuConfig& config) {
  config.struct_bytes = sizeof config;
  if (config.devices == 0) config.devices = 1;
  if (config.memory_bytes == 0) config.memory_bytes = memory_bytes_default;
}

}  // namespace firn::software
