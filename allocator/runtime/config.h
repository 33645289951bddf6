// The knobs of the user. One table (knobs.cpp) defines the name, unit, default and meaning of each;
// README's table, `firn doctor` and `firn run --help` are made from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/base/sizes.h"
#include "firn/result.h"

namespace firn {

struct Config {
  uint64_t budget_bytes = 0;            // 0: all that is free on the device, less a margin
  std::vector<std::string> dirs;        // empty: host tier only
  uint64_t host_bytes = 0;              // 0: automatic (host_share_bytes())
  std::string policy = "lifetime";      // age | lifetime
  std::string store = "automatic";      // automatic | io_uring | threads
  std::string driver;                   // to open; empty: libcuda.so.1 as the loader finds it
  std::string fallback = "refuse";      // refuse | native: PyTorch that Firn does not fit
  std::string stats_file, trace_file;   // %p: process id; absolute once Firn runs
  std::string oom_page;                 // likewise: the page about refused memory
  std::string metrics;                  // a file, likewise, or a port of 127.0.0.1 in digits
  double watch_fraction = 0.5;          // observer on once allocated memory exceeds this of budget
  double spare_fraction = 1. / 16;      // lifetimes: written ahead beyond the foreseen shortage
  bool allow_tmpfs = false;
  bool encrypt = false;
  bool places = true;                   // lifetimes: blocks that never leave have planned places
  // Results are made again where moving them takes longer. Automatic: where nothing runs unseen;
  // where it is on, it is said that it cannot be done.
  enum class Remake : uint8_t { off, on, automatic } remake = Remake::automatic;
  unsigned relay = 0;                   // Python: micro-batches of firn.relay by itself; 0: without
  bool adversarial = false;             // tests: spill every unpinned block when no operator runs
  std::string verify = "off";           // off | host: sums of host memory | all: of the device too
  bool guard = false;                   // tests: blocks that have a copy are mapped read-only
  bool poison = false;                  // tests: arriving memory is 0xFF until its bytes are there
  unsigned looks = 2;                   // preload: launches of a kernel that are inspected, of each
                                        // kind; looks_all: every one
  static constexpr unsigned looks_all = ~0u;
  bool copy_gate = true;                // copies out leave gaps while memory is mapped
  uint64_t memory_info_bytes = 0;       // preload: what cuMemGetInfo answers; 0: the budget
  bool free_waits = false;              // preload: cuMemFree returns when all work is over
  bool layouts = true;                  // preload: ask the driver for kernels' parameters
  uint64_t piece_bytes = 8u << 20;      // unit of copying and writing
  uint64_t store_bytes = 0;             // most bytes per directory; 0: no limit
  uint64_t io_patience_ns = 60'000'000'000;  // failing I/O is tried again for so long
  unsigned depth = 32;                  // I/O requests in flight per directory, of all processes
  std::string spread = "own";           // own | all: directories of a rank, see ranks.h
  uint64_t store_read_bytes_s = 0;      // tests: a modelled SSD; 0: as fast as it is
  uint64_t store_write_bytes_s = 0;
  uint64_t store_latency_ns = 0;
};

struct Knob {
  const char* name;     // "budget": firn_budget:..., FIRN_BUDGET=..., --budget
  const char* unit;     // "size", "list", "fraction", ...
  const char* fallback; // default, in words
  const char* meaning;
  const char* when;     // when to change it
};
std::vector<Knob> knobs();
/// Knobs for tests only, set in the same ways: firn_test_NAME:..., FIRN_TEST_NAME=....
std::vector<Knob> test_knobs();

/// Does this value of Config::metrics name a port, in digits?
bool is_port(std::string_view word);
inline constexpr unsigned port_most = 65'535;

/// Sets one knob from text. `where` ("--budget 10XB", "FIRN_BUDGET=10XB") begins an error's line.
Result<void> set_knob(Config& config, std::string_view name, std::string_view value,
                      std::string_view where);
/// The knob's present value as text; empty where nothing is set. Aborts on an unknown name.
std::string show_knob(const Config& config, std::string_view name);
/// "FIRN_STORE_SIZE" for "store_size".
std::string environment_name(std::string_view knob);
/// From `conf` ("firn_budget:20GiB,firn_dir:/a;/b": the firn_ words of PYTORCH_CUDA_ALLOC_CONF,
/// already taken out of it) over FIRN_* of the environment over the defaults. Unknown firn_ keys
/// and malformed values are invalid_argument, one line: what, where, which knob. Directories are
/// checked for being absolute here, for everything else when the store is opened.
Result<Config> parse_config(std::string_view conf);

/// Splits "backend:firn,max_split_size_mb:64,firn_budget:1GiB" into firn's words and the rest
/// ("max_split_size_mb:64"). `wanted` is true when backend:firn is among them.
struct ConfWords {
  bool wanted = false;
  std::string firn, rest;
};
ConfWords split_conf(std::string_view conf);

}  // namespace firn
