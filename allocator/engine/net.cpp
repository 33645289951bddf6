#include "allocator/engine/net.h"

#include <fmt/format.h>

#include <algorithm>

namespace firn {

void Net::note(const Block& block, uint64_t now_ns, const char* event, const char* detail) {
  EngineObserver* const asked = observer.load(std::memory_order_acquire);
  const char* who = asked ? asked->doing() : nullptr;
  const std::lock_guard lock(mutex_);
  BlockEvents& events = of_[block.index];
  events.events[events.count++ % remembered] = {now_ns, event, detail, who ? who : ""};
}

std::string Net::events_words(const Block& block, uint64_t now_ns) {
  const std::lock_guard lock(mutex_);
  const BlockEvents& events = of_[block.index];
  std::string words;
  for (size_t i = events.count - std::min(events.count, remembered); i < events.count; ++i) {
    const Event& event = events.events[i % remembered];
    words += fmt::format("\n  {:.3f} ms before: {}{}{}{}{}",
                         static_cast<double>(now_ns - event.at_ns) / 1e6, event.event,
                         *event.detail ? " " : "", event.detail,
                         event.who.empty() ? "" : ", in ", event.who);
  }
  return words;
}

}  // namespace firn
