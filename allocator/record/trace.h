// The event trace: one CSV row per event, for `firn run --trace`. Rows are appended under a lock of
// its own to a buffer, which a thread of its own writes: a caller may hold the engine's lock, and
// never waits for a disk. Only used when tracing.
//
// Columns: time_ns,event,device,stream,block,bytes,detail; `detail` is quoted where it has to be.
//   begin      the process: pid=N;at=UNIX SECONDS;policy=...;host=N;store=0|1;command=WORDS
//   alloc free touch (detail: read | write)
//   spill (detail: ahead: only to be valid elsewhere; by recipe: without a copy), kept: all of it
//   is on the device after all, copied_out, written, fault, prefetch, arrived, unfault: as in
//   block_state.h
//   dropped    it left without a copy, or its recipe failed; remake, remade: it is made again
//   made       a block was just allocated: `detail` is the operator that did so
//   pin unpin  detail: the reason
//   stall      a wait that ends now: `stream` its thread's number, `block` what it waited for (0:
//              room), `bytes` its length in ns, `detail` the operator
//   site       `detail` is the program's line of the last `block` stalls of the thread `stream`,
//              those since its last such row
//   sample     NAME=N;... in `detail`: resident, hosted and nvme (copies, also of what is on the
//              device), away_host and away_nvme (what is not), budget, flight, allocated, and since
//              the start out, in (over the link), written, read (the store)
//   pinned     now and then after a sample, a row for each reason: its bytes
//   notice     a message to the user about a fault storm, or thrash
//   end        a device's totals, NAME=N;...: the process came to its end
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "firn/output_file.h"
#include "firn/ranked_mutex.h"
#include "firn/result.h"

namespace firn {

class TraceWriter {
 public:
  /// Creates (truncates) `path`; "%p" becomes the process id.
  static Result<std::unique_ptr<TraceWriter>> create(const std::string& path);
  ~TraceWriter();
  void row(uint64_t time_ns, std::string_view event, int device, unsigned stream, uint64_t block,
           uint64_t bytes, std::string_view detail = {});
  /// Returns when all rows so far are written, or writing has failed.
  void flush();

  /// The calling thread's number, for rows about threads: from 1 on.
  static unsigned thread();

 private:
  explicit TraceWriter(OutputFile file);
  void write();
  void cut_off(const std::string& why);

  RankedMutex<Rank::trace> mutex_;
  RankedCondition due_, written_;
  OutputFile file_;                  // the thread's
  std::string buffer_;
  uint64_t leaving_ = 0, done_ = 0;  // bytes: that the thread is writing, and has been writing
  bool asked_ = false, stopping_ = false;
  bool failed_ = false;              // nothing more is written: it would begin within a row
  std::thread thread_;               // last: it uses the others
};

/// "%p" in a path becomes the process id.
std::string expand_pid(const std::string& path);

}  // namespace firn
