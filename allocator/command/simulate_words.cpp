// Locks: none.
#include "allocator/command/simulate_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>

#include "allocator/base/numbers.h"
#include "allocator/command/output.h"
#include "allocator/command/paths.h"
#include "allocator/command/report.h"
#include "allocator/runtime/config.h"

namespace firn::command {
namespace {

constexpr uint64_t gpu_bytes_least = 32u << 20, gpu_bytes_most = uint64_t{1} << 42;
constexpr uint64_t host_bytes_most = uint64_t{1} << 44;
constexpr uint64_t host_bytes_default = uint64_t{1} << 30;
constexpr double bandwidth_least = 1 << 20, bandwidth_most = 1e15;
constexpr uint64_t latency_ns_most = 1'000'000'000;
constexpr unsigned iterations_most = 1000, run_ahead_most = 1'000'000, ssds_most = 64;
constexpr size_t sweep_most = 200;

Result<uint64_t> size_between(const char* option, const std::string& word, uint64_t least,
                              uint64_t most) {
  Result<uint64_t> bytes = parse_size(word);
  if (!bytes) return invalid(fmt::format("{}: {}", option, bytes.error().text));
  if (*bytes < least || *bytes > most)
    return invalid(fmt::format("{}: {} is not between {} and {}", option, quote_word(word),
                               format_size(least), format_size(most)));
  return bytes;
}

Result<unsigned> count_between(const char* option, const std::string& word, unsigned least,
                               unsigned most) {
  const std::optional<unsigned> value = as_number<unsigned>(word);
  if (!value || *value < least || *value > most)
    return invalid(fmt::format("{}: {} is not a whole number from {} to {}", option,
                               quote_word(word), least, most));
  return *value;
}

Result<void> take_bandwidth(const char* option, const std::string& word, double& to) {
  Result<double> bytes_s = parse_bandwidth(word);
  if (!bytes_s) return invalid(fmt::format("{}: {}", option, bytes_s.error().text));
  to = *bytes_s;
  return {};
}

Result<simulate::ComparedPolicy> policy_of(const std::string& word) {
  using simulate::ComparedPolicy;
  const std::pair<const char*, ComparedPolicy> known[] = {{"age", ComparedPolicy::age},
                                                          {"lifetime", ComparedPolicy::lifetime},
                                                          {"oracle", ComparedPolicy::oracle},
                                                          {"greedy", ComparedPolicy::greedy}};
  for (const auto& [name, policy] : known)
    if (word == name) return policy;
  return invalid("--policy: " + quote_word(word) + " must be one of age, lifetime, oracle, greedy");
}

// "budget=20GiB:80GiB:10GiB"
Result<std::vector<uint64_t>> sweep_of(const std::string& word) {
  constexpr std::string_view key = "budget=";
  const auto wrong = [&](const std::string& what) {
    return invalid("--sweep: " + quote_word(word) + " " + what +
                   "; write budget=FIRST:LAST:STEP, e.g. budget=20GiB:80GiB:10GiB");
  };
  if (!word.starts_with(key)) return wrong("does not begin with budget=");
  std::vector<uint64_t> parts;
  for (size_t begin = key.size(); begin <= word.size();) {
    const size_t end = std::min(word.find(':', begin), word.size());
    Result<uint64_t> bytes = parse_size(std::string_view(word).substr(begin, end - begin));
    if (!bytes) return wrong("is not a range: " + bytes.error().text);
    parts.push_back(*bytes);
    begin = end + 1;
  }
  if (parts.size() != 3) return wrong("must have three sizes");
  if (parts[0] > parts[1]) return wrong("ends before it begins");
  if (parts[0] < gpu_bytes_least || parts[1] > gpu_bytes_most)
    return wrong(fmt::format("must stay within {} to {}", format_size(gpu_bytes_least),
                             format_size(gpu_bytes_most)));
  if ((parts[1] - parts[0]) / parts[2] >= sweep_most)
    return wrong(fmt::format("has more than {} steps", sweep_most));
  std::vector<uint64_t> budgets;
  for (uint64_t at = parts[0]; at <= parts[1]; at += parts[2]) budgets.push_back(at);
  return budgets;
}

Result<void> take_machine(const SimulateOptions& options, simulate::MachineOptions& machine) {
  const std::optional<std::filesystem::path> library = find_library("software/libcuda.so.1");
  if (!library) {
    std::string text = "software/libcuda.so.1 not found; searched";
    for (const auto& each : library_paths("software/libcuda.so.1")) text += " " + each.string();
    return invalid(text + " (FIRN_LIB names another folder)");
  }
  machine.gpu_library = library->string();
  if (options.gpu_memory) {
    Result<uint64_t> bytes =
        size_between("--gpu-memory", *options.gpu_memory, gpu_bytes_least, gpu_bytes_most);
    if (!bytes) return bytes.error();
    machine.gpu_bytes = *bytes;
  }
  machine.host_bytes = host_bytes_default;
  if (options.host) {
    Result<uint64_t> bytes =
        size_between("--host", *options.host, host_bytes_least, host_bytes_most);
    if (!bytes) return bytes.error();
    machine.host_bytes = *bytes;
  }
  for (const auto& [option, word, to] :
       {std::tuple{"--ssd-read", &options.ssd_read, &machine.ssd_read_bytes_s},
        {"--ssd-write", &options.ssd_write, &machine.ssd_write_bytes_s},
        {"--pcie", &options.pcie, &machine.link_bytes_s}})
    if (Result<void> done = take_bandwidth(option, *word, *to); !done) return done;
  Result<uint64_t> latency = parse_time(options.ssd_latency, latency_ns_most);
  if (!latency) return invalid("--ssd-latency: " + latency.error().text);
  machine.ssd_latency_ns = *latency;
  Result<unsigned> ssds = count_between("--ssds", options.ssds, 1, ssds_most);
  if (!ssds) return ssds.error();
  machine.ssds = *ssds;
  Result<simulate::ComparedPolicy> policy = policy_of(options.policy);
  if (!policy) return policy.error();
  machine.policy = *policy;
  machine.driver_costs = !options.no_driver_costs;
  const std::optional<double> spare = as_number<double>(options.spare);
  if (!spare || !(*spare >= 0 && *spare <= 1))
    return invalid("--spare: " + quote_word(options.spare) + " is not a number from 0 to 1");
  machine.spare_fraction = *spare;
  return {};
}

}  // namespace

Result<uint64_t> parse_number(const char* option, const std::string& word, uint64_t least,
                              uint64_t most) {
  const std::optional<uint64_t> value = as_number<uint64_t>(word);
  if (!value || *value < least || *value > most)
    return invalid(fmt::format("{}: {} is not a whole number from {} to {}", option,
                               quote_word(word), least, most));
  return *value;
}

Result<double> parse_bandwidth(std::string_view word) {
  std::string_view size = word;
  if (!size.ends_with("/s"))
    return invalid(quote_word(word) + " is not a bandwidth (e.g. 3.2GiB/s or 7GB/s)");
  size.remove_suffix(2);
  // The size in front, exactly as sizes are read; a bandwidth may have a fraction of a byte.
  if (Result<uint64_t> bytes = parse_size(size); !bytes) return bytes.error();
  const size_t unit_at = size.find_first_not_of("0123456789.");
  double value = 0;
  const std::string_view digits = size.substr(0, unit_at);
  (void)std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const std::string_view unit = unit_at == std::string_view::npos ? "" : size.substr(unit_at);
  Result<uint64_t> scale = unit.empty() ? Result<uint64_t>(1) : parse_size("1" + std::string(unit));
  value *= static_cast<double>(*scale);
  if (!(value >= bandwidth_least && value <= bandwidth_most))
    return invalid(quote_word(word) + " is not between 1MiB/s and 1000TB/s");
  return value;
}

Result<uint64_t> parse_time(std::string_view word, uint64_t ns_most) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  const std::string_view unit(end, static_cast<size_t>(word.data() + word.size() - end));
  const double scale = unit == "ns" ? 1
                       : unit == "us" ? 1e3
                       : unit == "ms" ? 1e6
                       : unit == "s"  ? 1e9
                       : unit.empty() && value == 0 ? 1
                                                    : 0;
  if (error != std::errc() || scale == 0 || !std::isfinite(value) || value < 0)
    return invalid(quote_word(word) + " is not a time (e.g. 20us, 700ns or 1ms)");
  if (value * scale > static_cast<double>(ns_most))
    return invalid(fmt::format("{} is more than {}s", quote_word(word), ns_most / 1'000'000'000));
  return static_cast<uint64_t>(std::llround(value * scale));
}

namespace {

Result<void> take_files(const SimulateOptions& options, SimulatePlan& plan) {
  for (const auto& [option, given, to] :
       {std::tuple{"--timeline", &options.timeline, &plan.timeline},
        {"--plot", &options.plot, &plan.plot}}) {
    if (!*given) continue;
    Result<std::string> path = output_path(option, **given);
    if (!path) return path.error();
    *to = *path;
  }
  return {};
}

/// Of the trace alone: nothing runs.
Result<SimulatePlan> plan_lifetimes(const SimulateOptions& options) {
  SimulatePlan plan;
  plan.iterations = 1;
  for (const auto& [option, given] :
       {std::pair{"--gpu-memory", &options.gpu_memory}, {"--host", &options.host},
        {"--sweep", &options.sweep}, {"--ssd-endurance", &options.endurance},
        {"--timeline", &options.timeline}})
    if (*given)
      return invalid(fmt::format("--lifetimes is of the trace alone, on no machine: without {}",
                                 option));
  if (Result<void> done = take_files(options, plan); !done) return done.error();
  return plan;
}

}  // namespace

Result<SimulatePlan> parse_simulate(const SimulateOptions& options) {
  if (options.lifetimes) return plan_lifetimes(options);
  SimulatePlan plan;
  if (!options.gpu_memory && !options.sweep)
    return invalid("--gpu-memory SIZE is needed (or --sweep budget=FIRST:LAST:STEP)");
  if (Result<void> done = take_machine(options, plan.machine); !done) return done.error();
  if (options.sweep) {
    Result<std::vector<uint64_t>> budgets = sweep_of(*options.sweep);
    if (!budgets) return budgets.error();
    plan.sweep_bytes = std::move(*budgets);
    if (options.timeline) return invalid("--timeline needs a single run, without --sweep");
  }
  Result<unsigned> iterations = count_between("--iterations", options.iterations, 1,
                                              iterations_most);
  if (!iterations) return iterations.error();
  plan.iterations = *iterations;
  Result<unsigned> run_ahead = count_between("--run-ahead", options.run_ahead, 0, run_ahead_most);
  if (!run_ahead) return run_ahead.error();
  plan.run_ahead = *run_ahead;
  if (options.remake != "on" && options.remake != "off")
    return invalid("--remake: " + quote_word(options.remake) + " must be on or off");
  plan.remake = options.remake == "on";
  if (plan.remake && plan.machine.policy != simulate::ComparedPolicy::lifetime &&
      plan.machine.policy != simulate::ComparedPolicy::oracle)
    return invalid("--remake on: what to make again is chosen for a policy that knows the next "
                   "use; --policy " + quote_word(options.policy) + " must be lifetime or oracle");
  if (options.endurance) {
    Result<uint64_t> bytes = parse_size(*options.endurance);
    if (!bytes) return invalid("--ssd-endurance: " + bytes.error().text);
    plan.endurance_bytes = static_cast<double>(*bytes);
  }
  if (Result<void> done = take_files(options, plan); !done) return done.error();
  return plan;
}

}  // namespace firn::command
