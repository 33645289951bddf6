// Locks: none.
#include "allocator/command/simulate_result.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "allocator/command/wear.h"
#include "allocator/runtime/config.h"

namespace firn::command {
namespace {

using Json = nlohmann::ordered_json;

std::string size_text(double bytes) {
  return format_size(static_cast<uint64_t>(std::llround(std::max(0.0, bytes))));
}

/// Rounds to whole bytes: a fraction comes only from the mean over iterations.
uint64_t whole(double bytes) { return static_cast<uint64_t>(std::llround(bytes)); }

}  // namespace

Json simulate_json(const simulate::ReplayResult& r) {
  Json json = {{"ideal_s", r.ideal_s},
               {"iteration_s", r.iteration_s},
               {"steady_s", r.steady_s},
               {"fraction_of_ideal", r.fraction_of_ideal()},
               {"bytes_spilled", whole(r.bytes_spilled)},
               {"bytes_faulted", whole(r.bytes_faulted)},
               {"stall_s", r.stall_s},
               {"plan_s", r.plan_s},
               {"bytes_prefetched", whole(r.bytes_prefetched)},
               {"bytes_forwarded", whole(r.bytes_forwarded)},
               {"bytes_clean_dropped", whole(r.bytes_clean_dropped)},
               {"bytes_written", whole(r.bytes_written)},
               {"bytes_read", whole(r.bytes_read)},
               {"bytes_written_by_ssd", Json::array()},
               {"bytes_in_host", whole(r.bytes_in_host)},
               {"evictions", r.evictions},
               {"faults", r.faults},
               {"maps", r.maps},
               {"unmaps", r.unmaps},
               {"frames_created", r.frames_created},
               {"peak_device_bytes", r.peak_device_bytes},
               {"peak_allocated_bytes", r.peak_allocated_bytes},
               {"peak_host_bytes", r.peak_host_bytes},
               {"measured_host_out_bytes_s", whole(r.measured_host_out_bytes_s)},
               {"measured_host_in_bytes_s", whole(r.measured_host_in_bytes_s)},
               {"measured_store_write_bytes_s", whole(r.measured_store_write_bytes_s)},
               {"measured_store_read_bytes_s", whole(r.measured_store_read_bytes_s)},
               {"spare", r.spare_fraction},
               {"period_found_at_iteration", nullptr},
               {"trouble", r.trouble}};
  for (double bytes : r.bytes_written_by_ssd) json["bytes_written_by_ssd"].push_back(whole(bytes));
  if (r.host_rows > 0) {
    json["host_rows"] = r.host_rows;
    json["host_s"] = r.host_s;
    json["host_waited_s"] = r.host_waited_s;
    json["stall_for_host_s"] = r.stall_for_host_s;
    json["bytes_used_at_host"] = whole(r.bytes_used_at_host);
  }
  if (r.period_found_at_iteration)
    json["period_found_at_iteration"] = *r.period_found_at_iteration;
  return json;
}

void add_wear(Json& result, const SimulatePlan& plan) {
  if (plan.endurance_bytes) result["wear"] = wear_json(result, *plan.endurance_bytes);
}

void add_remade(Json& result, const simulate::Remade& remade) {
  result["remade_values"] = remade.values;
  result["remade_bytes"] = remade.bytes;
  result["remade_s"] = remade.again_s;
  result["remake_choice_s"] = remade.choice_s;
}

std::string simulate_text(const Json& r, const SimulatePlan& plan, const std::string& prefix,
                          size_t kernels) {
  std::string text;
  auto out = std::back_inserter(text);
  const auto line = [&](const char* name, const std::string& value) {
    fmt::format_to(out, "{:<12}{}\n", name, value);
  };
  const auto size = [&](const char* key) { return size_text(r.at(key).get<double>()); };
  const simulate::MachineOptions& m = plan.machine;
  line("program", fmt::format("{}: {} kernels, ideal {:.3f} s", prefix, kernels,
                              r.at("ideal_s").get<double>()));
  line("machine",
       fmt::format("GPU {}, host {}, {} SSD{} read {}/s write {}/s, link {}/s",
                   format_size(m.gpu_bytes), format_size(m.host_bytes), m.ssds,
                   m.ssds == 1 ? "" : "s, each", size_text(m.ssd_read_bytes_s),
                   size_text(m.ssd_write_bytes_s), size_text(m.link_bytes_s)));
  std::string times;
  for (double seconds : r.at("iteration_s").get<std::vector<double>>())
    times += fmt::format("{}{:.3f}", times.empty() ? "" : " ", seconds);
  line("iterations", times + " s");
  line("steady", fmt::format("{:.3f} s, {:.3f} of ideal; {:.3f} s of it without a kernel",
                             r.at("steady_s").get<double>(),
                             r.at("fraction_of_ideal").get<double>(),
                             r.at("stall_s").get<double>()));
  line("moved", fmt::format("{} out, {} in on demand, {} in ahead; {} dropped without a copy",
                            size("bytes_spilled"), size("bytes_faulted"), size("bytes_prefetched"),
                            size("bytes_clean_dropped")));
  line("store", fmt::format("{} written, {} read, {} came from host memory", size("bytes_written"),
                            size("bytes_read"), size("bytes_forwarded")));
  if (r.at("bytes_in_host").get<double>() > 0)
    line("in host", fmt::format("{} used by kernels there, because the tensors of one kernel "
                                "exceed the GPU's memory: a real job may take longer than this",
                                size("bytes_in_host")));
  if (r.contains("host_rows"))
    line("host work",
         fmt::format("{} rows, {:.3f} s, and {:.3f} s of waiting for {} that they use; kernels "
                     "waited {:.3f} s for them",
                     r.at("host_rows").get<uint64_t>(), r.at("host_s").get<double>(),
                     r.at("host_waited_s").get<double>(), size("bytes_used_at_host"),
                     r.at("stall_for_host_s").get<double>()));
  if (plan.remake)
    line("remade", fmt::format("{} in {} values, which takes {:.3f} s; {:.3f} s of CPU to choose",
                               size("remade_bytes"), r.at("remade_values").get<uint64_t>(),
                               r.at("remade_s").get<double>(),
                               r.at("remake_choice_s").get<double>()));
  if (r.contains("wear")) line("wear", wear_text(r.at("wear")));
  line("peak", fmt::format("{} on the device, {} allocated", size("peak_device_bytes"),
                           size("peak_allocated_bytes")));
  if (r.at("plan_s").get<double>() > 0)
    line("planning", fmt::format("{:.3f} s of CPU", r.at("plan_s").get<double>()));
  for (const Json& trouble : r.at("trouble")) line("trouble", trouble.get<std::string>());
  text += "(steady, moved, store: means per iteration over the last half)\n";
  return text;
}

Json sweep_point(uint64_t budget_bytes, const Json& r, const SimulatePlan& plan) {
  const double steady_s = r.at("steady_s").get<double>();
  const double written_per_day = bytes_per_day(r.at("bytes_written").get<double>(), steady_s);
  Json point = {{"budget_bytes", budget_bytes},
                {"slow_down", steady_s / r.at("ideal_s").get<double>()},
                {"bytes_written_per_day", whole(written_per_day)}};
  if (plan.endurance_bytes)
    point["endurance_days"] = written_per_day > 0
                                  ? Json(*plan.endurance_bytes * plan.machine.ssds /
                                         written_per_day)
                                  : Json(nullptr);  // nothing is written
  point.update(r);
  return point;
}

Json sweep_failure(uint64_t budget_bytes, const std::string& why) {
  return {{"budget_bytes", budget_bytes}, {"error", why}};
}

std::string sweep_text(const Json& points) {
  std::string text;
  auto out = std::back_inserter(text);
  bool endurance = false;
  for (const Json& point : points) endurance |= point.contains("endurance_days");
  fmt::format_to(out, "{:>10} {:>10} {:>9} {:>14} {:>14}{}\n", "budget", "slow-down", "steady",
                 "written/iter.", "written/day", endurance ? "  SSD lasts" : "");
  for (const Json& point : points) {
    const std::string budget = format_size(point.at("budget_bytes").get<uint64_t>());
    if (point.contains("error")) {
      fmt::format_to(out, "{:>10} {}\n", budget, point.at("error").get<std::string>());
      continue;
    }
    fmt::format_to(out, "{:>10} {:>10.3f} {:>7.3f} s {:>14} {:>14}", budget,
                   point.at("slow_down").get<double>(), point.at("steady_s").get<double>(),
                   size_text(point.at("bytes_written").get<double>()),
                   size_text(point.at("bytes_written_per_day").get<double>()));
    if (endurance)
      text += point.at("endurance_days").is_null()
                  ? "     forever"
                  : fmt::format("  {:>5.0f} days", point.at("endurance_days").get<double>());
    text += '\n';
  }
  return text;
}

}  // namespace firn::command
