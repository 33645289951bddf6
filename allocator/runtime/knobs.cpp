// The tables of knobs: how each is read and shown.
// Owns: nothing. Locks: none.
#include "allocator/runtime/knobs.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <vector>

#include "allocator/base/numbers.h"
#include "allocator/base/sizes.h"

namespace firn {

namespace {

constexpr uint64_t budget_bytes_min = 2u << 20;  // one frame
constexpr uint64_t host_bytes_min = 16u << 20;   // staging for a few pieces
constexpr uint64_t piece_bytes_min = 64u << 10;
constexpr uint64_t piece_bytes_max = 1u << 30;  // a slot's limit
constexpr uint64_t piece_alignment = 4096;      // a slot's granularity
constexpr unsigned depth_max = 1024;
constexpr unsigned relay_max = 65'536;
constexpr uint64_t bandwidth_min = 1u << 20;
constexpr uint64_t latency_us_max = 1'000'000;
constexpr uint64_t patience_s_max = 86'400;
constexpr uint64_t us_ns = 1'000, second_ns = 1'000'000'000;

std::string one_of(std::string_view value, std::initializer_list<std::string_view> allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return {};
  std::string text = quote_word(value) + " must be one of";
  const char* separator = " ";
  for (std::string_view word : allowed) {
    text.append(separator).append(word);
    separator = ", ";
  }
  return text;
}

std::string take_size(uint64_t& to, std::string_view value, uint64_t least = 1) {
  Result<uint64_t> bytes = parse_size(value);
  if (!bytes) return bytes.error().text;
  if (*bytes < least) return quote_word(value) + " is less than " + format_size(least);
  to = *bytes;
  return {};
}

std::string take_bandwidth(uint64_t& to, std::string_view value) {
  constexpr std::string_view per_second = "/s";
  if (!value.ends_with(per_second))
    return quote_word(value) + " is not a bandwidth (e.g. 3.2GiB/s)";
  return take_size(to, value.substr(0, value.size() - per_second.size()), bandwidth_min);
}

/// A whole number of `unit`s, of `unit_ns` each.
std::string take_time(uint64_t& to_ns, std::string_view value, std::string_view unit,
                      uint64_t unit_ns, uint64_t most) {
  std::optional<uint64_t> number;
  if (value.ends_with(unit))
    number = as_number<uint64_t>(value.substr(0, value.size() - unit.size()));
  if (!number || *number > most)
    return quote_word(value) + " is not a time from 0" + std::string(unit) + " to " +
           std::to_string(most) + std::string(unit);
  to_ns = *number * unit_ns;
  return {};
}

std::string take_flag(bool& to, std::string_view value) {
  const bool yes = value == "1" || value == "true" || value == "on";
  if (!yes && value != "0" && value != "false" && value != "off")
    return quote_word(value) + " must be one of 1, 0, true, false, on, off";
  to = yes;
  return {};
}

std::string take_remake(Config& config, std::string_view value) {
  bool on = false;
  if (value == "automatic")
    config.remake = Config::Remake::automatic;
  else if (std::string trouble = take_flag(on, value); !trouble.empty())
    return trouble + ", automatic";
  else
    config.remake = on ? Config::Remake::on : Config::Remake::off;
  return {};
}

std::string show_remake(const Config& config) {
  switch (config.remake) {
    case Config::Remake::off: return "0";
    case Config::Remake::on: return "1";
    case Config::Remake::automatic: break;
  }
  return "automatic";
}

/// Also takes a flag, as it once was: true is all.
std::string take_verify(Config& config, std::string_view value) {
  bool all = false;
  const bool flag = take_flag(all, value).empty();
  const std::string_view word = !flag ? value : all ? "all" : "off";
  std::string trouble = one_of(word, {"off", "host", "all"});
  if (trouble.empty()) config.verify = word;
  return trouble;
}

std::string take_path(std::string& to, std::string_view value) {
  if (value.empty()) return "the path is empty";
  to = value;
  return {};
}

std::string take_metrics(Config& config, std::string_view value) {
  if (is_port(value)) {
    const std::optional<unsigned> port = as_number<unsigned>(value);
    if (!port || *port < 1 || *port > port_most)
      return quote_word(value) + " is not a port from 1 to 65535";
  }
  return take_path(config.metrics, value);
}

std::string take_dirs(Config& config, std::string_view value) {
  std::vector<std::string> dirs;
  for (size_t begin = 0; begin <= value.size();) {
    const size_t end = std::min(value.find(';', begin), value.size());
    const std::string_view dir = value.substr(begin, end - begin);
    if (dir.empty()) return "a directory's name is empty";
    if (dir.front() != '/')
      return "the directory " + quote_word(dir) + " is relative; write its absolute path";
    if (std::find(dirs.begin(), dirs.end(), dir) != dirs.end())
      return "the directory " + quote_word(dir) + " is named twice";
    dirs.emplace_back(dir);
    begin = end + 1;
  }
  config.dirs = std::move(dirs);
  return {};
}

std::string take_piece(Config& config, std::string_view value) {
  uint64_t bytes = 0;
  if (std::string trouble = take_size(bytes, value, piece_bytes_min); !trouble.empty())
    return trouble;
  if (bytes > piece_bytes_max) return quote_word(value) + " is more than 1GiB";
  if (bytes % piece_alignment != 0) return quote_word(value) + " is not a multiple of 4KiB";
  config.piece_bytes = bytes;
  return {};
}

std::string take_fraction(double& to, std::string_view value) {
  const std::optional<double> number = as_number<double>(value);
  // Written so that NaN fails too.
  if (!number || !(*number >= 0 && *number <= 1))
    return quote_word(value) + " is not a number from 0 to 1";
  to = *number;
  return {};
}

std::string take_depth(Config& config, std::string_view value) {
  const std::optional<unsigned> number = as_number<unsigned>(value);
  if (!number || *number < 1 || *number > depth_max)
    return quote_word(value) + " is not a whole number from 1 to 1024";
  config.depth = *number;
  return {};
}

std::string take_relay(Config& config, std::string_view value) {
  const std::optional<unsigned> number = as_number<unsigned>(value);
  if (!number || *number > relay_max)
    return quote_word(value) + " is not a whole number from 0 to 65536";
  config.relay = *number;
  return {};
}

std::string take_looks(Config& config, std::string_view value) {
  const std::optional<unsigned> number = as_number<unsigned>(value);
  const bool all = value == "all";
  if (!all && (!number || *number < 1 || *number == Config::looks_all))
    return quote_word(value) + " must be all or a whole number of at least 1";
  config.looks = all ? Config::looks_all : *number;
  return {};
}

std::string show_bandwidth(uint64_t bytes_s) {
  return bytes_s == 0 ? "" : exact_size(bytes_s) + "/s";
}
std::string show_flag(bool flag) { return flag ? "1" : "0"; }

std::string show_fraction(double fraction) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), fraction).ptr};
}

std::string show_dirs(const Config& config) {
  std::string text;
  for (const std::string& dir : config.dirs) text.append(text.empty() ? "" : ";").append(dir);
  return text;
}

const KnobBinding table[] = {
    {{"budget", "size", "all free memory of the device, less a margin",
      "limit on the GPU memory that Firn holds, per device",
      "to leave room for another job, or to find out how little is enough"},
     [](Config& c, std::string_view v) { return take_size(c.budget_bytes, v, budget_bytes_min); },
     [](const Config& c) { return exact_size(c.budget_bytes); }},
    {{"dir", "list", "none: host memory is the only tier",
      "directories on NVMe for spill files (DIR;DIR, one per SSD)",
      "always, if there is an SSD: name a local directory that only you can write to"},
     take_dirs,
     show_dirs},
    {{"host", "size",
      "automatic: half of the available memory, shared by all processes, taken as needed",
      "limit on pinned host memory, staging included, per process",
      "more saves SSD traffic; less leaves memory to data loading"},
     [](Config& c, std::string_view v) { return take_size(c.host_bytes, v, host_bytes_min); },
     [](const Config& c) { return exact_size(c.host_bytes); }},
    {{"policy", "age|lifetime", "lifetime", "how Firn chooses what leaves the GPU",
      "age if the program never repeats an iteration: it saves the cost of learning"},
     [](Config& c, std::string_view v) {
       std::string trouble = one_of(v, {"age", "lifetime"});
       if (trouble.empty()) c.policy = v;
       return trouble;
     },
     [](const Config& c) { return c.policy; }},
    {{"fallback", "refuse|native", "refuse",
      "if Firn cannot serve this PyTorch: refuse to start CUDA, or keep PyTorch's own allocator",
      "native if the job must run in any case, at the risk of running out of memory"},
     [](Config& c, std::string_view v) {
       std::string trouble = one_of(v, {"refuse", "native"});
       if (trouble.empty()) c.fallback = v;
       return trouble;
     },
     [](const Config& c) { return c.fallback; }},
    {{"store", "automatic|io_uring|threads", "automatic", "how Firn writes and reads spill files",
      "threads if io_uring misbehaves"},
     [](Config& c, std::string_view v) {
       std::string trouble = one_of(v, {"automatic", "io_uring", "threads"});
       if (trouble.empty()) c.store = v;
       return trouble;
     },
     [](const Config& c) { return c.store; }},
    {{"store_size", "size", "no limit",
      "limit on the spill files in each directory, shared by the processes that use it",
      "on a disk that others need too"},
     [](Config& c, std::string_view v) { return take_size(c.store_bytes, v); },
     [](const Config& c) { return exact_size(c.store_bytes); }},
    {{"depth", "requests", "32",
      "I/O requests in flight per directory, shared by the processes that use its SSD",
      "less if others use the SSD too; more rarely helps"},
     take_depth,
     [](const Config& c) { return std::to_string(c.depth); }},
    {{"io_patience", "time", "60s",
      "how long Firn retries failed reads and writes of spill files",
      "more if disks come back late; less to see an error soon"},
     [](Config& c, std::string_view v) { return take_time(c.io_patience_ns, v, "s", second_ns, patience_s_max); },
     [](const Config& c) { return std::to_string(c.io_patience_ns / second_ns) + "s"; }},
    {{"spread", "own|all", "own",
      "with several ranks and several directories: each rank fills its own first, or uses all",
      "all if some ranks spill much more than others"},
     [](Config& c, std::string_view v) {
       std::string trouble = one_of(v, {"own", "all"});
       if (trouble.empty()) c.spread = v;
       return trouble;
     },
     [](const Config& c) { return c.spread; }},
    {{"piece", "size", "8MiB", "size of the pieces that Firn copies and writes",
      "rarely; smaller pieces overlap more and cost more driver calls"},
     take_piece,
     [](const Config& c) { return exact_size(c.piece_bytes); }},
    {{"watch", "fraction", "0.5",
      "Firn watches operators once this part of the budget is allocated, or memory is short",
      "0 watches from the start"},
     [](Config& c, std::string_view v) { return take_fraction(c.watch_fraction, v); },
     [](const Config& c) { return show_fraction(c.watch_fraction); }},
    {{"spare", "fraction", "0.0625",
      "policy lifetime: part of the budget that Firn may write ahead beyond the foreseen shortage",
      "0 writes least to the SSD, and costs a little time"},
     [](Config& c, std::string_view v) { return take_fraction(c.spare_fraction, v); },
     [](const Config& c) { return show_fraction(c.spare_fraction); }},
    {{"places", "flag", "1",
      "policy lifetime: blocks of an iteration that never leave get planned places in one region",
      "0 to compare: every block has memory of its own"},
     [](Config& c, std::string_view v) { return take_flag(c.places, v); },
     [](const Config& c) { return show_flag(c.places); }},
    {{"remake", "automatic|1|0", "automatic",
      "PyTorch: results that an operator makes again sooner than they move leave without a copy",
      "0 if all is to be moved; 1 to hear where nothing can be made again"},
     take_remake, show_remake},
    {{"relay", "micro-batches", "0",
      "PyTorch: each of a model's repeated layers runs over so many parts of the batch, and again "
      "in the backward pass, before the next one does (0: not so)",
      "for a model whose activations do not fit; 1 recomputes layers without parts"},
     take_relay,
     [](const Config& c) { return std::to_string(c.relay); }},
    {{"stats", "file", "none", "JSON written when the process ends (%p: process id)",
      "to see what moved and how long the program waited"},
     [](Config& c, std::string_view v) { return take_path(c.stats_file, v); },
     [](const Config& c) { return c.stats_file; }},
    {{"trace", "file", "none",
      "CSV of every event, and beside it one iteration for firn simulate (%p: process id)",
      "to draw a timeline or to simulate other machines; it slows every operator a little"},
     [](Config& c, std::string_view v) { return take_path(c.trace_file, v); },
     [](const Config& c) { return c.trace_file; }},
    {{"oom_page", "file", "none; beside a trace, job.oom.html",
      "HTML page that shows the device's memory, written when Firn refuses an allocation (%p: "
      "process id)",
      "for a job that runs out of memory, always or now and then"},
     [](Config& c, std::string_view v) { return take_path(c.oom_page, v); },
     [](const Config& c) { return c.oom_page; }},
    {{"metrics", "file or port", "none",
      "figures for monitoring, as OpenMetrics text: a file rewritten every 10 s (%p: process id), "
      "or a port of 127.0.0.1 that answers GET /metrics (with several ranks: FILE.RANK, or the "
      "port plus the rank)",
      "if Prometheus or a similar tool watches jobs"},
     take_metrics,
     [](const Config& c) { return c.metrics; }},
    {{"driver", "library", "libcuda.so.1 as the loader finds it", "the GPU driver to open",
      "for tests, or an unusual installation"},
     [](Config& c, std::string_view v) { return take_path(c.driver, v); },
     [](const Config& c) { return c.driver; }},
    {{"encrypt", "flag", "0",
      "Firn encrypts spill files with AES-256-GCM, by a key that only this process has",
      "1 if others can read the disk; it needs OpenSSL's libcrypto, and a core for each 3 GB/s"},
     [](Config& c, std::string_view v) { return take_flag(c.encrypt, v); },
     [](const Config& c) { return show_flag(c.encrypt); }},
    {{"looks", "launches or all", "2",
      "preloaded: number of launches of each kernel that Firn searches for stored addresses",
      "all makes no assumption about kernels, and reads back all that each launch could write"},
     take_looks,
     [](const Config& c) {
       return c.looks == Config::looks_all ? "all" : std::to_string(c.looks);
     }},
    {{"copy_gate", "flag", "1",
      "pauses copies to the host while Firn maps memory, so that the driver need not wait for them",
      "0 if the driver does not honor cuStreamWaitValue32"},
     [](Config& c, std::string_view v) { return take_flag(c.copy_gate, v); },
     [](const Config& c) { return show_flag(c.copy_gate); }},
    {{"free_waits", "flag", "0",
      "preloaded: cuMemFree waits until the device has finished all enqueued work",
      "1 for a program that relies on cuMemFree to wait for kernels before it uses their host "
      "memory"},
     [](Config& c, std::string_view v) { return take_flag(c.free_waits, v); },
     [](const Config& c) { return show_flag(c.free_waits); }},
    {{"memory_info", "size", "the budget",
      "preloaded: the device's memory that cuMemGetInfo reports; free is that less the allocated "
      "bytes",
      "more than the budget for a program that sizes its pool by it: the excess leaves the GPU"},
     [](Config& c, std::string_view v) { return take_size(c.memory_info_bytes, v); },
     [](const Config& c) { return exact_size(c.memory_info_bytes); }},
    {{"verify", "off|host|all", "off",
      "host: Firn takes checksums of data that arrives in host memory, and compares them when it "
      "leaves; all: it also checks copies to and from the device, and compares a leaving block "
      "with its kept copy; a difference fails the process",
      "host if the host's memory lacks ECC; all for tests only"},
     take_verify,
     [](const Config& c) { return c.verify; }},
};

// For tests only: not shown to users (tests/README.md lists them).
const KnobBinding test_table[] = {
    {{"test_store_read", "size/s", "unlimited", "limits reads to the bandwidth of a modelled SSD",
      "beside the software GPU's FIRN_GPU_LINK"},
     [](Config& c, std::string_view v) { return take_bandwidth(c.store_read_bytes_s, v); },
     [](const Config& c) { return show_bandwidth(c.store_read_bytes_s); }},
    {{"test_store_write", "size/s", "unlimited",
      "limits writes to the bandwidth of a modelled SSD", ""},
     [](Config& c, std::string_view v) { return take_bandwidth(c.store_write_bytes_s, v); },
     [](const Config& c) { return show_bandwidth(c.store_write_bytes_s); }},
    {{"test_store_latency", "us", "0us", "adds this latency to each request of a modelled SSD", ""},
     [](Config& c, std::string_view v) {
       return take_time(c.store_latency_ns, v, "us", us_ns, latency_us_max);
     },
     [](const Config& c) { return std::to_string(c.store_latency_ns / 1000) + "us"; }},
    {{"test_allow_tmpfs", "flag", "0", "accept spill directories in memory (tmpfs)",
      "it spills memory into memory"},
     [](Config& c, std::string_view v) { return take_flag(c.allow_tmpfs, v); },
     [](const Config& c) { return show_flag(c.allow_tmpfs); }},
    {{"test_layouts", "flag", "1", "preloaded: Firn asks the driver where kernels' parameters lie",
      "0 behaves as a driver before CUDA 12.4"},
     [](Config& c, std::string_view v) { return take_flag(c.layouts, v); },
     [](const Config& c) { return show_flag(c.layouts); }},
    {{"test_adversarial", "flag", "0",
      "spill every block that may be spilled, after every operator",
      "it proves that no use of memory goes unseen"},
     [](Config& c, std::string_view v) { return take_flag(c.adversarial, v); },
     [](const Config& c) { return show_flag(c.adversarial); }},
    {{"test_guard", "flag", "0",
      "make memory that has a copy read-only, until it is written",
      "an unseen write is a fault at once"},
     [](Config& c, std::string_view v) { return take_flag(c.guard, v); },
     [](const Config& c) { return show_flag(c.guard); }},
    {{"test_poison", "flag", "0", "fill a block that comes back with 0xFF before its bytes arrive",
      "an unseen read finds NaN"},
     [](Config& c, std::string_view v) { return take_flag(c.poison, v); },
     [](const Config& c) { return show_flag(c.poison); }},
};

}  // namespace

std::span<const KnobBinding> knob_bindings() { return table; }
std::span<const KnobBinding> test_knob_bindings() { return test_table; }

const KnobBinding* find_knob(std::string_view name) {
  for (const auto bindings : {knob_bindings(), test_knob_bindings()})
    for (const KnobBinding& binding : bindings)
      if (name == binding.knob.name) return &binding;
  return nullptr;
}

}  // namespace firn
