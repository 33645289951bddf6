#include "allocator/simulate/timeline.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "allocator/base/json_text.h"

namespace firn::simulate {

namespace {

using Json = nlohmann::ordered_json;
constexpr size_t drawn_most = 20'000;  // points of a curve

double seconds_since(uint64_t begin_ns, uint64_t at_ns) {
  return (static_cast<double>(at_ns) - static_cast<double>(begin_ns)) * 1e-9;
}

struct Level {
  uint64_t at_ns;
  int64_t bytes;
};

/// Bytes in flight on `tracks`, at each change.
std::vector<Level> in_flight(const Timeline& timeline, std::vector<Track> tracks) {
  std::vector<Level> changes;
  for (const Span& span : timeline.spans)
    if (std::find(tracks.begin(), tracks.end(), span.track) != tracks.end()) {
      changes.push_back({span.begin_ns, static_cast<int64_t>(span.bytes)});
      changes.push_back({span.end_ns, -static_cast<int64_t>(span.bytes)});
    }
  std::sort(changes.begin(), changes.end(),
            [](const Level& a, const Level& b) { return a.at_ns < b.at_ns; });
  std::vector<Level> levels;
  int64_t now = 0;
  for (const Level& change : changes) {
    now += change.bytes;
    if (!levels.empty() && levels.back().at_ns == change.at_ns)
      levels.back().bytes = now;
    else
      levels.push_back({change.at_ns, now});
  }
  return levels;
}

std::string quoted(std::string_view text) {
  return json_text(Json(std::string(text)));
}

}  // namespace

std::string chrome_trace(const Timeline& timeline, const ProgramTrace& trace) {
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  auto out = std::back_inserter(text);
  const auto us = [&](uint64_t at_ns) { return seconds_since(timeline.begin_ns, at_ns) * 1e6; };
  fmt::format_to(out, "{{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\","
                      "\"args\":{{\"name\":\"firn simulate\"}}}}");
  const bool host = std::ranges::any_of(
      timeline.spans, [](const Span& span) { return span.track >= Track::host; });
  const size_t tracks = host ? std::size(track_names) : static_cast<size_t>(Track::host);
  for (size_t track = 0; track < tracks; ++track)
    fmt::format_to(out, ",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\","
                        "\"args\":{{\"name\":\"{}\"}}}}",
                   track + 1, track_names[track]);
  for (const Span& span : timeline.spans) {
    const std::string name =
        span.kernel == no_kernel ? fmt::format("\"{} bytes\"", span.bytes)
                                 : quoted(trace.name(trace.kernels[span.kernel]));
    fmt::format_to(out, ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"name\":{},\"ts\":{:.3f},"
                        "\"dur\":{:.3f}",
                   static_cast<int>(span.track) + 1, name, us(span.begin_ns),
                   us(span.end_ns) - us(span.begin_ns));
    if (span.kernel == no_kernel)
      fmt::format_to(out, ",\"args\":{{\"bytes\":{}}}}}", span.bytes);
    else
      fmt::format_to(out, ",\"args\":{{\"kernel\":{}}}}}", span.kernel);
  }
  for (const MemorySample& sample : timeline.samples)
    fmt::format_to(out, ",\n{{\"ph\":\"C\",\"pid\":1,\"name\":\"memory\",\"ts\":{:.3f},\"args\":"
                        "{{\"resident\":{},\"host\":{},\"nvme\":{}}}}}",
                   us(sample.at_ns), sample.resident_bytes, sample.host_bytes, sample.nvme_bytes);
  for (const auto& [name, together] :
       {std::pair<const char*, std::vector<Track>>{"bytes on the link",
                                                   {Track::copy_out, Track::copy_in}},
        {"bytes to and from the store", {Track::store_write, Track::store_read}}})
    for (const Level& level : in_flight(timeline, together))
      fmt::format_to(out, ",\n{{\"ph\":\"C\",\"pid\":1,\"name\":\"{}\",\"ts\":{:.3f},\"args\":"
                          "{{\"bytes\":{}}}}}",
                     name, us(level.at_ns), level.bytes);
  text += "\n]}\n";
  return text;
}

std::string plot_data(const Timeline& timeline) {
  Json data = {{"kind", "timeline"}, {"budget_bytes", timeline.budget_bytes}};
  const auto seconds = [&](uint64_t at_ns) { return seconds_since(timeline.begin_ns, at_ns); };
  Json& samples = data["samples"] = Json::array();
  for (const MemorySample& sample : timeline.samples)
    samples.push_back({seconds(sample.at_ns), sample.resident_bytes, sample.host_bytes,
                       sample.nvme_bytes});
  Json& flight = data["in_flight"] = Json::array();
  const std::vector<Level> levels = in_flight(
      timeline, {Track::copy_out, Track::copy_in, Track::store_write, Track::store_read});
  const size_t step = levels.size() / drawn_most + 1;
  for (size_t i = 0; i < levels.size(); i += step)
    flight.push_back({seconds(levels[i].at_ns), levels[i].bytes});
  Json& stalls = data["stalls"] = Json::array();
  for (const Span& span : timeline.spans)
    if (span.track == Track::stall)
      stalls.push_back({seconds(span.begin_ns), seconds(span.end_ns)});
  Json& ends = data["iteration_ends"] = Json::array();
  for (uint64_t end : timeline.iteration_ends_ns) ends.push_back(seconds(end));
  return json_text(data);
}

}  // namespace firn::simulate
