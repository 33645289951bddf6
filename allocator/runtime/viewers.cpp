#include "allocator/runtime/viewers.h"

#include <nlohmann/json.hpp>

#include "allocator/runtime/config.h"
#include "allocator/runtime/control.h"
#include "allocator/runtime/metrics_output.h"
#include "allocator/runtime/metrics_text.h"
#include "allocator/runtime/runtime.h"
#include "allocator/runtime/stats_json.h"
#include "firn/said.h"

namespace firn {

void Viewers::open() {
  if (begun_.exchange(true)) return;
  Result<std::unique_ptr<ControlSocket>> control =
      ControlSocket::open([this](const std::string& word) { return answer(word); });
  if (control) control_ = control->release();
  const std::string& where = runtime_.config().metrics;
  if (where.empty()) return;
  Result<std::unique_ptr<MetricsOutput>> metrics = MetricsOutput::open(where, [this] {
    return metrics_text(nlohmann::ordered_json::parse(runtime_.stats_json()));
  });
  if (metrics)
    metrics_ = metrics->release();
  else
    say("firn: firn_metrics: " + metrics.error().text + "; the job runs without metrics");
}

void Viewers::on_look(std::function<void()> looked) {
  std::lock_guard lock(mutex_);
  looked_.push_back(std::move(looked));
}

void Viewers::stop() {
  begun_ = true;
  if (ControlSocket* control = control_.load()) control->stop();
  if (MetricsOutput* metrics = metrics_.load()) metrics->stop();
}

void Viewers::abandon() {
  begun_ = true;
  control_ = nullptr;  // their sockets are closed in a child
  metrics_ = nullptr;
}

std::string Viewers::answer(const std::string& word) {
  if (word == "spill") return spill_away();
  if (word == "watch") {
    std::vector<std::function<void()>> looked;
    {
      std::lock_guard lock(mutex_);
      looked = looked_;
    }
    for (const auto& each : looked) each();
  }
  return word == "stats" || word == "watch" ? runtime_.stats_json() : std::string();
}

std::string Viewers::spill_away() {
  std::vector<SpilledAway> devices;
  for (int device = 0; device < Runtime::devices_most; ++device) {
    Engine* engine = runtime_.opened(device);
    if (!engine) continue;
    const EngineStats before = engine->stats();
    engine->spill_away();
    devices.push_back({before, engine->stats()});
  }
  return spill_json(devices);
}

}  // namespace firn
