// Locks: none.
#include "allocator/command/lifetimes.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <numeric>

#include "allocator/runtime/config.h"

namespace firn::command {
namespace {

using Json = nlohmann::ordered_json;
using simulate::Activity;

constexpr double seconds(uint64_t ns) { return static_cast<double>(ns) * 1e-9; }

double share(uint64_t part, uint64_t all) {
  return all ? static_cast<double>(part) / static_cast<double>(all) : 0;
}

Json length_json(size_t c, uint64_t periods, double bytes) {
  Json up_to = nullptr;
  if (c < simulate::length_bounds_ns.size()) up_to = seconds(simulate::length_bounds_ns[c]);
  return {{"up_to_s", up_to}, {"periods", periods}, {"bytes_mean", bytes}};
}

Json kind_json(const Activity::Kind& kind) {
  Json lengths = Json::array();
  for (size_t c = 0; c < simulate::length_classes; ++c)
    lengths.push_back(length_json(c, kind.periods[c], kind.inactive_bytes_mean[c]));
  const double inactive = std::accumulate(kind.inactive_bytes_mean.begin(),
                                          kind.inactive_bytes_mean.end(), 0.0);
  return {{"tensors", kind.tensors},
          {"bytes", kind.bytes},
          {"tensors_inactive_over_10ms", kind.tensors_inactive_long},
          {"active_bytes_mean", kind.active_bytes_mean},
          {"inactive_bytes_mean", inactive},
          {"by_length", std::move(lengths)}};
}

std::string size_of(const Json& bytes) {
  return format_size(static_cast<uint64_t>(std::llround(bytes.get<double>())));
}

std::string length_name(const Json& up_to_s) {
  if (up_to_s.is_null()) return "longer";
  const double s = up_to_s.get<double>();
  if (s < 1e-3) return fmt::format("to {:.0f} us", s * 1e6);
  return s < 1 ? fmt::format("to {:.0f} ms", s * 1e3) : fmt::format("to {:.0f} s", s);
}

std::string percent(const Json& part) { return fmt::format("{:.3g} %", 100 * part.get<double>()); }

}  // namespace

Json lifetimes_json(const Activity& found) {
  uint64_t tensors = 0, tensors_long = 0, periods = 0, periods_long = 0;
  Json kinds = Json::object(), lengths = Json::array(), over_time = Json::array();
  for (size_t c = 0; c < simulate::length_classes; ++c) {
    uint64_t count = 0;
    double bytes = 0;
    for (const Activity::Kind& kind : found.kinds) {
      count += kind.periods[c];
      bytes += kind.inactive_bytes_mean[c];
    }
    periods += count;
    if (c > 0 && simulate::length_bounds_ns[c - 1] >= simulate::long_period_ns)
      periods_long += count;
    lengths.push_back(length_json(c, count, bytes));
  }
  for (size_t kind = 0; kind < simulate::tensor_kinds; ++kind) {
    tensors += found.kinds[kind].tensors;
    tensors_long += found.kinds[kind].tensors_inactive_long;
    kinds[simulate::tensor_kind_names[kind]] = kind_json(found.kinds[kind]);
  }
  const double bucket_s = seconds(found.duration_ns) / static_cast<double>(found.over_time.size());
  for (size_t at = 0; at < found.over_time.size(); ++at) {
    Json row = {bucket_s * static_cast<double>(at)};
    for (double bytes : found.over_time[at]) row.push_back(bytes);
    over_time.push_back(std::move(row));
  }
  return {{"seconds", seconds(found.duration_ns)},
          {"footprint_bytes_mean", found.footprint_bytes_mean},
          {"footprint_bytes_peak", found.footprint_bytes_peak},
          {"active_bytes_mean", found.active_bytes_mean},
          {"active_bytes_peak", found.active_bytes_peak},
          {"active_share_mean", found.active_share_mean},
          {"active_share_peak", found.active_share_peak},
          {"tensors", tensors},
          {"tensors_inactive_over_10ms", tensors_long},
          {"tensors_inactive_over_10ms_share", share(tensors_long, tensors)},
          {"periods", periods},
          {"periods_over_10ms", periods_long},
          {"periods_over_10ms_share", share(periods_long, periods)},
          {"by_length", std::move(lengths)},
          {"by_kind", std::move(kinds)},
          {"over_time", std::move(over_time)}};
}

std::string lifetimes_text(const Json& r, const std::string& prefix, size_t kernels) {
  std::string text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "program     {}: {} kernels, {:.3f} s\n", prefix, kernels,
                 r.at("seconds").get<double>());
  fmt::format_to(out, "footprint   {} on average, {} at most\n",
                 size_of(r.at("footprint_bytes_mean")), size_of(r.at("footprint_bytes_peak")));
  fmt::format_to(out, "active      {} of it on average ({}), {} at most ({})\n",
                 percent(r.at("active_share_mean")), size_of(r.at("active_bytes_mean")),
                 percent(r.at("active_share_peak")), size_of(r.at("active_bytes_peak")));
  fmt::format_to(out, "idle        over 10 ms at a time: {} of {} tensors, {} of {} periods\n",
                 percent(r.at("tensors_inactive_over_10ms_share")),
                 r.at("tensors").get<uint64_t>(), percent(r.at("periods_over_10ms_share")),
                 r.at("periods").get<uint64_t>());
  fmt::format_to(out, "\n{:<10} {:>9} {:>10}", "idle", "periods", "all");
  for (const auto& [name, kind] : r.at("by_kind").items()) fmt::format_to(out, " {:>10}", name);
  text += '\n';
  for (size_t c = 0; c < r.at("by_length").size(); ++c) {
    const Json& all = r.at("by_length")[c];
    fmt::format_to(out, "{:<10} {:>9} {:>10}", length_name(all.at("up_to_s")),
                   all.at("periods").get<uint64_t>(), size_of(all.at("bytes_mean")));
    for (const auto& [name, kind] : r.at("by_kind").items())
      fmt::format_to(out, " {:>10}", size_of(kind.at("by_length")[c].at("bytes_mean")));
    text += '\n';
  }
  text += "(bytes: idle at an instant, on average; made: what the iteration makes, as activations "
          "and gradients)\n";
  return text;
}

}  // namespace firn::command
