#include "pytorch_plugin/stalls.h"

#include <dlfcn.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <vector>

namespace firn::pytorch {

namespace {

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

std::atomic<bool> call_sites_asked{false};

/// ".../torch/": the program's own lines are elsewhere.
const std::string& torch_folder() {
  static const std::string folder = [] {
    Dl_info info{};
    if (!dladdr(reinterpret_cast<const void*>(&torch::symbolize), &info) || !info.dli_fname)
      return std::string();
    const std::string path = info.dli_fname;  // .../torch/lib/libtorch_cpu.so
    const size_t end = path.rfind("/lib/");
    return end == std::string::npos ? std::string() : path.substr(0, end + 1);
  }();
  return folder;
}

/// "FILE:LINE in FUNCTION" of the innermost frame that is not torch's.
std::string call_site() {
  const std::shared_ptr<torch::CapturedTraceback> captured =
      torch::CapturedTraceback::gather(true, false, false);
  const torch::SymbolizedTracebacks told = torch::symbolize({captured.get()});
  for (const uint64_t index : told.tracebacks.at(0)) {
    const torch::unwind::Frame& frame = told.all_frames[index];
    const bool torchs = !torch_folder().empty() && frame.filename.starts_with(torch_folder());
    if (torchs || frame.filename.starts_with("<frozen")) continue;
    return frame.filename + ":" + std::to_string(frame.lineno) + " in " + frame.funcname;
  }
  return "a thread without Python (autograd's, say)";
}

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
  std::lock_guard lock(tables().mutex);
  Waited& waited = tables().operators[info];
  ++waited.times;
  waited.ns += ns;
}

void ask_for_call_sites(bool asked) { call_sites_asked = asked; }

std::string note_call_site(uint64_t times, uint64_t ns) {
  if (!call_sites_asked.load(std::memory_order_relaxed)) return {};
  std::string site;
  try {
    site = call_site();
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
      Waited& sum = by_name[info ? info->name : "outside operators"];
      sum.times += waited.times;
      sum.ns += waited.ns;
    }
    operators.assign(by_name.begin(), by_name.end());
    call_sites.assign(tables().call_sites.begin(), tables().call_sites.end());
  }
  const nlohmann::ordered_json out = {{"operators", rows_json(std::move(operators))},
                                      {"call_sites", rows_json(std::move(call_sites))}};
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace firn::pytorch
