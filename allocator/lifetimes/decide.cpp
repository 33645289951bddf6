#include "allocator/lifetimes/decide.h"

#include <algorithm>

namespace firn::lifetimes {

namespace {

/// Memory as it will be: `kept` is there from now on, `change` is by what is born and dies since.
class Window {
 public:
  explicit Window(uint64_t capacity) : capacity_(static_cast<int64_t>(capacity)) {}
  /// From now on, until it dies. False: there is no room for it, and nothing was changed.
  bool keep(uint64_t size) {
    if (kept_ + static_cast<int64_t>(size) + peak_ > capacity_) return false;
    kept_ += static_cast<int64_t>(size);
    return true;
  }
  bool birth(uint64_t size) {
    change_ += static_cast<int64_t>(size);
    peak_ = std::max(peak_, change_);
    return kept_ + peak_ <= capacity_;
  }
  void death(uint64_t size) { change_ -= static_cast<int64_t>(size); }

 private:
  const int64_t capacity_;
  int64_t kept_ = 0, change_ = 0, peak_ = 0;
};

}  // namespace

Decision decide(const Situation& situation) {
  Decision decision;
  std::vector<uint8_t> counted(situation.items.size());
  Window window(situation.capacity);
  for (const Step& step : situation.steps) {
    bool room = true;
    if (step.kind == Step::Kind::birth) {
      room = window.birth(step.size);
    } else if (step.item == Step::none) {
      window.death(step.size);
    } else {
      const Item& item = situation.items[step.item];
      const bool use = step.kind == Step::Kind::use;
      if (!counted[step.item]) {  // a block that dies unused is there until then
        room = window.keep(use ? item.size : item.on_device);
        if (room && use && item.on_device < item.size) decision.fetch.push_back(step.item);
        counted[step.item] = use ? 2 : 1;
      }
      if (!use) window.death(counted[step.item] == 2 ? item.size : item.on_device);
    }
    if (!room) {
      decision.pressure = true;
      break;
    }
    decision.window = step.ahead;
  }
  for (uint32_t i = 0; i < situation.items.size(); ++i)
    if (situation.items[i].on_device > 0 && !situation.items[i].dead)
      decision.farthest.push_back(i);
  std::sort(decision.farthest.begin(), decision.farthest.end(), [&](uint32_t a, uint32_t b) {
    const uint64_t at_a = situation.items[a].next_use, at_b = situation.items[b].next_use;
    return at_a != at_b ? at_a > at_b : a < b;
  });
  return decision;
}

}  // namespace firn::lifetimes
