#include "pytorch_plugin/stalls.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <vector>

#include "allocator/base/json_text.h"
#include "pytorch_plugin/lines.h"
#include "pytorch_plugin/observer.h"

namespace firn::pytorch {

namespace {

const std::string outside = "outside operators";
constexpr size_t call_sites_most = 10'000;  // the rest is counted together

struct Waited {
  uint64_t times = 0, ns = 0;
};

struct Tables {
  std::mutex mutex;
  std::unordered_map<const OperatorInfo*, Waited> operators;
  std::unordered_map<std::string, Waited> call_sites;
};

Tables& tables() {
  static auto* kept = new Tables;  // threads may wait until the very end
  return *kept;
}

std::atomic<unsigned> call_sites_asked{0};  // a bit for each Asker

using Rows = std::vector<std::pair<std::string, Waited>>;

nlohmann::ordered_json rows_json(Rows rows) {
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.second.ns > b.second.ns; });
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const auto& [name, waited] : rows)
    out.push_back({{"name", name},
                   {"waits", waited.times},
                   {"seconds", static_cast<double>(waited.ns) / 1e9}});
  return out;
}

}  // namespace

void note_stall(const OperatorInfo* info, uint64_t ns) {
  stalled_here_ns += ns;
  std::lock_guard lock(tables().mutex);
  Waited& waited = tables().operators[info];
  ++waited.times;
  waited.ns += ns;
}

void ask_for_call_sites(Asker who, bool asked) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  const unsigned bit = 1u << static_cast<unsigned>(who);
  const unsigned before = call_sites_asked.load();
  call_sites_asked = asked ? before | bit : before & ~bit;
  if (observing() && (before != 0) != (call_sites_asked != 0))
    observe_lines(call_sites_asked != 0);
}

void observer_is_there() {
  if (call_sites_asked != 0) observe_lines(true);
}

std::string note_call_site(const OperatorInfo* in, uint64_t times, uint64_t ns) {
  if (!call_sites_asked.load(std::memory_order_relaxed)) return {};
  std::string site;
  try {
    site = line_of_thread(in ? in->name : outside);
  } catch (const std::exception& error) {
    site = std::string("unknown: ") + error.what();
  }
  std::lock_guard lock(tables().mutex);
  auto& sites = tables().call_sites;
  if (sites.size() >= call_sites_most && !sites.contains(site)) site = "(others)";
  Waited& waited = sites[site];
  waited.times += times;
  waited.ns += ns;
  return site;
}

std::string stalls_json() {
  Rows operators, call_sites;
  {
    std::lock_guard lock(tables().mutex);
    std::unordered_map<std::string, Waited> by_name;  // overloads together
    for (const auto& [info, waited] : tables().operators) {
      Waited& sum = by_name[info ? info->name : outside];
      sum.times += waited.times;
      sum.ns += waited.ns;
    }
    operators.assign(by_name.begin(), by_name.end());
    call_sites.assign(tables().call_sites.begin(), tables().call_sites.end());
  }
  const nlohmann::ordered_json out = {{"operators", rows_json(std::move(operators))},
                                      {"call_sites", rows_json(std::move(call_sites))}};
  return json_text(out, 2);
}

}  // namespace firn::pytorch
