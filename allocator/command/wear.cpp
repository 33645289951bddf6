// Locks: none.
#include "allocator/command/wear.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "allocator/runtime/config.h"

namespace firn::command {
namespace {

using Json = nlohmann::ordered_json;
constexpr double seconds_per_day = 86'400, days_per_year = 365.25;

Json years(double endurance_bytes, double written_per_day) {
  if (written_per_day <= 0) return nullptr;
  return endurance_bytes / written_per_day / days_per_year;
}

std::string size_of(const Json& bytes) {
  return format_size(static_cast<uint64_t>(std::llround(bytes.get<double>())));
}

}  // namespace

double bytes_per_day(double bytes, double steady_s) { return bytes / steady_s * seconds_per_day; }

Json wear_json(const Json& result, double endurance_bytes) {
  const double steady_s = result.at("steady_s").get<double>();
  Json ssds = Json::array();
  double most = 0;
  for (const Json& written : result.at("bytes_written_by_ssd")) {
    const double daily = bytes_per_day(written.get<double>(), steady_s);
    most = std::max(most, daily);
    ssds.push_back({{"bytes_written", written},
                    {"bytes_per_day", daily},
                    {"years", years(endurance_bytes, daily)}});
  }
  const double daily = bytes_per_day(result.at("bytes_written").get<double>(), steady_s);
  return {{"endurance_bytes", endurance_bytes},
          {"bytes_written", result.at("bytes_written")},
          {"bytes_per_day", daily},
          {"years", years(endurance_bytes * static_cast<double>(ssds.size()), daily)},
          {"first_worn_years", years(endurance_bytes, most)},
          {"ssds", std::move(ssds)}};
}

std::string wear_text(const Json& wear) {
  if (wear.at("years").is_null()) return "nothing is written to SSDs: they last for ever";
  const bool one = wear.at("ssds").size() == 1;
  std::string text = fmt::format("{} a step, {} a day; {} of {}{} {:.3g} years",
                                 size_of(wear.at("bytes_written")),
                                 size_of(wear.at("bytes_per_day")), one ? "an SSD" : "SSDs",
                                 size_of(wear.at("endurance_bytes")),
                                 one ? " lasts" : " each last", wear.at("years").get<double>());
  if (!one)
    text += fmt::format(", the first of them {:.3g}", wear.at("first_worn_years").get<double>());
  return text;
}

}  // namespace firn::command
