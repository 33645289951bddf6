// The contents of a trace, by device: each block's life in stretches, its touches, the waits for
// it, and where memory was. Times count from the trace's first row.
// Owns: its records. Locks: none.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "allocator/report/trace_file.h"
#include "firn/result.h"

namespace firn::report {

inline constexpr uint32_t none = UINT32_MAX;

/// In the page's order (page.js).
enum class Where : uint8_t { device, leaving, host, store, dropped, faulting, coming, remaking };

struct Life {
  uint64_t address = 0, bytes = 0;
  uint64_t born_ns = 0, died_ns = 0;
  uint32_t pin_reason = none;  // the last one; a number of `words`
  uint32_t maker = none;       // the operator that allocated it; likewise
};
struct Stretch {
  uint32_t life;
  Where where;
  uint64_t begin_ns, end_ns;
};
struct Touch {
  uint32_t life;
  bool write;
  uint64_t at_ns;
};
struct Stall {
  uint64_t end_ns, ns;
  uint32_t thread, life, name, site;  // none: no block (room), outside operators, unknown
};
struct Sample {
  uint64_t at_ns;
  uint64_t resident, away_host, away_nvme, dropped, copies, budget, flight, allocated, out, in,
      written, read;
};
struct Pinned {
  uint64_t at_ns, bytes;
  uint32_t reason;
};

struct Notice {
  uint64_t at_ns;
  std::string words;
};

struct DeviceLives {
  std::vector<Life> lives;
  std::vector<Stretch> stretches;  // by end
  std::vector<Touch> touches;      // by time
  std::vector<Stall> stalls;       // by end
  std::vector<Sample> samples;     // by time
  std::vector<Pinned> pinned;
  std::vector<Notice> notices;     // fault storms and thrash, as reported
  std::map<std::string, uint64_t> totals;  // of its end row; empty: it has none
};

class Lives {
 public:
  /// Reads it to its end. Errors as of TraceFile, and a trace without a row.
  static Result<Lives> read(TraceFile& file);

  std::map<uint32_t, DeviceLives> devices;
  std::vector<std::string> words;  // names, sites, reasons
  uint64_t rows = 0, duration_ns = 0;
  bool cut = false;                // the last line lacks its end
  bool ended = false;              // the process came to its end
  std::string command, policy;
  uint64_t process = 0, started_s = 0, host_bytes = 0;
  bool store = false;

 private:
  struct Open {               // a life that goes on
    uint32_t life;
    Where where = Where::device;
    uint64_t since_ns = 0;
  };
  using OpenLives = std::unordered_map<uint64_t, Open>;  // by address
  void take(const Row& row, uint64_t at_ns);
  void take_block(const Row& row, uint64_t at_ns);
  void take_sample(const Row& row, uint64_t at_ns);
  void take_stall(const Row& row, uint64_t at_ns);
  void take_site(const Row& row);
  void move(DeviceLives& device, Open& open, Where where, uint64_t at_ns);
  void end(DeviceLives& device, Open& open, uint64_t at_ns);
  uint32_t word(std::string_view text);

  std::map<uint32_t, OpenLives> open_;  // by device
  std::unordered_map<std::string, uint32_t> word_numbers_;
  std::unordered_map<uint32_t, std::vector<std::pair<uint32_t, size_t>>> unsited_;  // by thread
};

}  // namespace firn::report
