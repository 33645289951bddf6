#include "allocator/simulate/replay_totals.h"

namespace firn::simulate {

void add_means(ReplayResult& r, const Totals& begin, const Totals& end, double count) {
  const auto mean = [&](auto of) {
    return static_cast<double>(of(end) - of(begin)) / count;
  };
  r.bytes_spilled = mean([](const Totals& t) { return t.engine.spilled_bytes; });
  r.bytes_faulted = mean([](const Totals& t) { return t.engine.faulted_bytes; });
  r.bytes_prefetched = mean([](const Totals& t) { return t.engine.prefetched_bytes; });
  r.bytes_forwarded = mean([](const Totals& t) { return t.engine.forwarded_bytes; });
  r.bytes_clean_dropped = mean([](const Totals& t) { return t.engine.clean_dropped_bytes; });
  r.bytes_written = mean([](const Totals& t) { return t.written_bytes; });
  for (size_t ssd = 0; ssd < end.written_by_ssd.size(); ++ssd)
    r.bytes_written_by_ssd.push_back(mean([&](const Totals& t) { return t.written_by_ssd[ssd]; }));
  r.bytes_read = mean([](const Totals& t) { return t.read_bytes; });
  r.bytes_in_host = mean([](const Totals& t) { return t.engine.zero_copy_bytes; });
  r.evictions = mean([](const Totals& t) { return t.engine.evictions; });
  r.faults = mean([](const Totals& t) { return t.engine.faults; });
  r.maps = mean([](const Totals& t) { return t.engine.maps; });
  r.unmaps = mean([](const Totals& t) { return t.engine.unmaps; });
  r.frames_created = mean([](const Totals& t) { return t.engine.frames_created; });
  r.host_s = mean([](const Totals& t) { return t.host.busy_ns; }) * 1e-9;
  r.host_waited_s = mean([](const Totals& t) { return t.host.waited_ns; }) * 1e-9;
  r.stall_for_host_s = mean([](const Totals& t) { return t.stall_for_host_ns; }) * 1e-9;
  r.bytes_used_at_host = mean([](const Totals& t) { return t.engine.host_use_bytes; });
  r.plan_s = mean([](const Totals& t) { return t.engine.plan_ns; }) * 1e-9;
}

}  // namespace firn::simulate
