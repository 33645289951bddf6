// The event trace: one CSV row per event, for `firn run --trace`. Rows are appended under a lock of
// its own to a buffer that is written out by whoever fills it; only used when tracing.
//
// Columns: time_ns,event,device,stream,block,bytes,detail. Events: alloc free touch spill
// copied_out written fault arrived prefetch drop stall oom sample; sample rows carry
// resident=N;hosted=N;nvme=N;budget=N;flight=N in `detail`.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "firn/result.h"

namespace firn {

class TraceWriter {
 public:
  /// Creates (truncates) `path`; "%p" becomes the process id.
  static Result<std::unique_ptr<TraceWriter>> create(const std::string& path);
  ~TraceWriter();
  void row(uint64_t time_ns, std::string_view event, int device, unsigned stream, uint64_t block,
           uint64_t bytes, std::string_view detail = {});
  void flush();

 private:
  explicit TraceWriter(std::FILE* file) : file_(file) {}
  std::mutex mutex_;
  std::FILE* file_;
  std::string buffer_;
  bool failed_ = false;
};

/// "%p" in a path becomes the process id.
std::string expand_pid(const std::string& path);

}  // namespace firn
