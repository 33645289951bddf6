// Rows of a trace that run at the host: one after the other, beside the device. A row starts when
// the rows in front of it that it depends on are over and its tensors are in host memory, through
// the engine's on_host(). A row depends on those before it that write its tensors, and on those
// that read what it writes. While one row runs, the next ones' tensors are gathered, row after row; that
// begins when the program comes to a row, as it asks for copies there that follow its kernels. The
// program waits for a row that is `ahead_most` behind the one that it comes to, and frees its
// tensors then: as firn.relay does, and so at the same place in every iteration.
// Owns: threads of the machine's turns. Locks: none.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "allocator/simulate/machine.h"
#include "allocator/simulate/program_trace.h"
#include "allocator/simulate/timeline.h"

namespace firn::simulate {

inline constexpr uint64_t ahead_most = 32;
inline constexpr unsigned gathered_most = 8;  // rows, with the one that runs

/// Of host rows, so far.
struct HostTotals {
  uint64_t busy_ns = 0;
  uint64_t waited_ns = 0;  // for bytes: no row ran, though one had nothing else to wait for
};

class HostWork {
 public:
  struct Program {
    const ProgramTrace& trace;
    std::vector<void*>& pointers;            // per tensor: its block, while it lives
    const std::vector<uint64_t>& ends_ns;    // of kernels that are over, in all iterations
    uint64_t patience_ns;                    // see ServiceClock::progress()
  };
  /// All of them outlive it. `timeline`: filled when not null.
  HostWork(Machine& machine, const Program& program, Timeline* timeline);
  ~HostWork();  // rows that have not begun never do

  /// A row at the host is next in the program.
  void submit(uint32_t row);
  /// A kernel is launched: the `count`th one of all iterations.
  void launched(uint32_t row, uint64_t count);
  /// How many host rows have to be over before the kernel may start, its tensors be made, and those
  /// that nothing uses behind it be freed.
  uint64_t needed_by(uint32_t row) const;
  uint64_t submitted() const { return rows_.size(); }
  uint64_t over() const { return over_; }
  uint32_t row(uint64_t number) const { return rows_[number].row; }
  const HostTotals& totals() const { return totals_; }

  struct Failure {
    uint32_t row;
    uint64_t number;  // of the row, in all iterations
    Error error;
  };
  const std::optional<Failure>& failure() const { return failure_; }

 private:
  struct Row {
    uint32_t row;
    uint64_t behind;  // kernels that have to be over
    uint64_t at_ns;   // when the program came to it
  };
  struct Latest {     // of a tensor; 0: none
    uint64_t kernel = 0, kernel_that_wrote = 0;  // their counts
    uint64_t row = 0, row_that_wrote = 0;        // host rows up to it
  };

  bool is_large(uint32_t tensor) const;
  bool may_take() const;
  void work();
  Result<void> run(uint64_t number);
  Result<void> gather(uint32_t row, std::vector<uint64_t>& uses);
  Result<void> gather_one(uint32_t tensor, Access access, std::vector<uint64_t>& uses);
  void release(std::vector<uint64_t>& uses);

  Machine& machine_;
  Engine& engine_;
  const Program program_;
  Timeline* const timeline_;
  std::vector<Latest> latest_;   // per tensor
  std::vector<uint32_t> in_use_; // per tensor: how many rows have begun to gather it
  std::vector<Row> rows_;        // in the program's order, of all iterations
  uint64_t taken_ = 0, gathered_ = 0, over_ = 0;
  uint64_t last_end_ns_ = 0;
  HostTotals totals_;
  bool ending_ = false;
  std::optional<Failure> failure_;
};

}  // namespace firn::simulate
