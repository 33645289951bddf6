#include "allocator/runtime/stats_json.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "allocator/base/json_text.h"

namespace firn {

namespace {
nlohmann::ordered_json device_json(const EngineStats& s, const std::vector<std::string>& unseen) {
  nlohmann::ordered_json d;
  d["device"] = s.device;
  d["budget_bytes"] = s.budget_bytes;
  d["peak_device_bytes"] = s.peak_device_bytes;
  d["peak_allocated_bytes"] = s.peak_allocated_bytes;
  d["spilled_bytes"] = s.spilled_bytes;
  d["faulted_bytes"] = s.faulted_bytes;
  d["prefetched_bytes"] = s.prefetched_bytes;
  d["forwarded_bytes"] = s.forwarded_bytes;
  d["clean_dropped_bytes"] = s.clean_dropped_bytes;
  d["recipes"] = s.recipes;
  d["dropped_bytes"] = s.dropped_bytes;
  d["remakes"] = s.remakes;
  d["remade_bytes"] = s.remade_bytes;
  const auto seconds = [](uint64_t ns) { return static_cast<double>(ns) / 1e9; };
  d["remade_s"] = seconds(s.remade_ns);
  d["remake"] = {{"results", s.remake.results},
                 {"bytes", s.remake.bytes},
                 {"iteration_before_s", seconds(s.remake.before_ns)},
                 {"iteration_s", seconds(s.remake.after_ns)}};
  d["verified_bytes"] = s.verified_bytes;
  d["summed_bytes"] = s.summed_bytes;
  d["host_corrupt"] = s.host_corrupt;
  d["device_corrupt"] = s.device_corrupt;
  d["unseen_writes"] = s.unseen_writes;
  d["stall_s"] = seconds(s.stall_ns);
  d["touches"] = s.touches;
  d["lost_blocks"] = s.lost_blocks;
  d["pinned"] = nlohmann::ordered_json::array();
  for (const PinnedBytes& p : s.pinned)
    d["pinned"].push_back({{"reason", p.reason}, {"bytes", p.bytes}});
  d["unseen"] = unseen;
  d["device_bytes"] = s.device_bytes;
  d["allocated_bytes"] = s.allocated_bytes;
  d["resident_bytes"] = s.resident_bytes;
  d["hosted_bytes"] = s.hosted_bytes;
  d["nvme_bytes"] = s.nvme_bytes;
  d["in_flight_bytes"] = s.in_flight_bytes;
  d["rounding_bytes"] = s.rounding_bytes;
  d["gap_bytes"] = s.gap_bytes;
  d["maps"] = s.maps;
  d["unmaps"] = s.unmaps;
  d["frames_created"] = s.frames_created;
  d["frames_released"] = s.frames_released;
  const auto in_driver = [&](const EngineStats::InDriver& of) {
    return nlohmann::ordered_json{{"s", seconds(of.ns)},
                                  {"locked_s", seconds(of.locked_ns)},
                                  {"lock_waited_s", seconds(of.lock_waited_ns)}};
  };
  d["driver"] = {{"program", in_driver(s.program_driver)},
                 {"service", in_driver(s.service_driver)}};
  d["places"] = {{"planned", s.places},
                 {"given", s.placed},
                 {"missed", s.places_missed},
                 {"region_planned_bytes", s.region_planned_bytes},
                 {"region_bytes", s.region_bytes},
                 {"region_used_bytes", s.region_used_bytes},
                 {"waste_before_bytes", s.waste_without_places},
                 {"waste_bytes", s.waste_with_places},
                 {"maps_before", s.maps_without_places},
                 {"maps", s.maps_with_places}};
  d["host_uses"] = s.host_uses;
  d["host_use_bytes"] = s.host_use_bytes;
  d["zero_copy_bytes"] = s.zero_copy_bytes;
  d["zero_copy_touches"] = s.zero_copy_touches;
  d["evictions"] = s.evictions;
  d["faults"] = s.faults;
  d["stalls"] = s.stalls;
  d["out_of_memory"] = s.oom_count;
  d["measured_host_out_bytes_s"] = s.measured_host_out_bytes_s;
  d["measured_host_in_bytes_s"] = s.measured_host_in_bytes_s;
  d["measured_store_write_bytes_s"] = s.measured_store_write_bytes_s;
  d["measured_store_read_bytes_s"] = s.measured_store_read_bytes_s;
  d["watching"] = s.watching;
  d["period_found"] = s.period_found;
  d["spare"] = s.spare_fraction;
  d["plan_s"] = seconds(s.plan_ns);
  d["trouble"] = s.trouble;
  d["notices"] = s.notices;
  return d;
}
}  // namespace

std::string stats_json(const std::vector<EngineStats>& devices, const HostStats& host,
                       const StoreStats& store, const std::vector<std::string>& unseen,
                       const Sections& sections) {
  nlohmann::ordered_json out;
  out["pid"] = ::getpid();
  out["devices"] = nlohmann::ordered_json::array();
  for (const EngineStats& s : devices) out["devices"].push_back(device_json(s, unseen));
  out["host"] = {{"budget_bytes", host.budget_bytes}, {"sharers", host.sharers}};
  nlohmann::ordered_json& st = out["store"];
  st["kind"] = store.kind.empty() ? "none" : store.kind;
  st["dirs"] = nlohmann::ordered_json::array();
  for (const StoreDirStats& dir : store.dirs) st["dirs"].push_back(dir.dir);
  st["measured"] = nlohmann::ordered_json::array();
  for (const StoreDirStats& dir : store.dirs)
    st["measured"].push_back({{"dir", dir.dir},
                              {"write_bytes_s", dir.write_bytes_s},
                              {"read_bytes_s", dir.read_bytes_s},
                              {"written_bytes", dir.written_bytes},
                              {"own", dir.own},
                              {"sharers", dir.sharers}});
  st["written_bytes"] = store.written_bytes;
  st["read_bytes"] = store.read_bytes;
  st["why"] = store.why;
  if (!store.cipher.empty()) st["cipher"] = store.cipher;
  st["reread"] = store.reread;
  st["corrupt"] = store.corrupt;
  st["quarantined_bytes"] = store.quarantined_bytes;
  st["trouble"] = nlohmann::ordered_json::array();
  for (const StoreDirStats& dir : store.dirs)
    if (!dir.trouble.empty()) st["trouble"].push_back(dir.dir + ": " + dir.trouble);
  for (const auto& [name, json] : sections)
    out[name] = nlohmann::ordered_json::parse(json(), nullptr, false);
  return json_text(out, 2);
}

std::string spill_json(const std::vector<SpilledAway>& devices) {
  nlohmann::ordered_json out = {{"pid", ::getpid()}};
  out["devices"] = nlohmann::ordered_json::array();
  for (const auto& [before, after] : devices) {
    nlohmann::ordered_json pinned = nlohmann::ordered_json::array();
    for (const PinnedBytes& each : after.pinned)
      pinned.push_back({{"reason", each.reason}, {"bytes", each.bytes}});
    out["devices"].push_back({{"device", after.device},
                              {"before_bytes", before.device_bytes},
                              {"device_bytes", after.device_bytes},
                              {"hosted_bytes", after.hosted_bytes},
                              {"nvme_bytes", after.nvme_bytes},
                              {"watching", before.watching},
                              {"pinned", std::move(pinned)},
                              {"trouble", after.trouble}});
  }
  return json_text(out, 2);
}

}  // namespace firn
