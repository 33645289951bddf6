// The event trace: one CSV row per event, for `firn run --trace`. Rows are appended under a lock of
// its own to a buffer, which a thread of its own writes: who tells of an event may hold the
// engine's lock, and waits for no disk. Only used when tracing.
//
// Columns: time_ns,event,device,stream,block,bytes,detail; `detail` is quoted where it has to be.
//   begin      the process: pid=N;at=UNIX SECONDS;policy=...;host=N;store=0|1;command=WORDS
//   alloc free touch (detail: read | write)
//   spill (detail: ahead: only to be valid elsewhere), kept: all of it is on the device after all,
//   copied_out, written, fault, prefetch, arrived, unfault: as in block_state.h
//   made       of a block just allocated: `detail` the operator that did
//   pin unpin  detail: the reason
//   stall      who waited until now: `stream` a number of his thread, `block` what for (0: room),
//              `bytes` how long in ns, `detail` the operator
//   site       `detail` the program's line of the stalls (`block` many) of the thread `stream`
//              since its last such row
//   sample     NAME=N;... in `detail`: resident, hosted and nvme (copies, also of what is on the
//              device), away_host and away_nvme (what is not), budget, flight, allocated, and since
//              the start out, in (over the link), written, read (the store)
//   pinned     now and then after a sample, for each reason: so many bytes
//   notice     what was said to the user of a fault storm, or of thrash
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
  /// Returns when all rows so far are written, or none will be any more.
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
