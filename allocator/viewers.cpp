#include "allocator/viewers.h"

#include "allocator/control.h"
#include "allocator/runtime.h"
#include "allocator/stats_json.h"

namespace firn {

void Viewers::open() {
  if (begun_.exchange(true)) return;
  Result<std::unique_ptr<ControlSocket>> control =
      ControlSocket::open([this](const std::string& word) { return answer(word); });
  if (control) control_ = control->release();
}

void Viewers::on_look(std::function<void()> looked) {
  std::lock_guard lock(mutex_);
  looked_.push_back(std::move(looked));
}

void Viewers::stop() {
  begun_ = true;
  if (ControlSocket* control = control_.load()) control->stop();
}

void Viewers::abandon() {
  begun_ = true;
  control_ = nullptr;  // its sockets are closed in a child
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
