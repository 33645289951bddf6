// An observer of an engine's whose answers are functions of the test.
#pragma once

#include <functional>

#include "allocator/engine/engine.h"

namespace firn::test {

struct Heard final : EngineObserver {
  std::function<void()> on_watch;
  std::function<void(const MemoryEvent&)> on_memory;
  std::function<const char*(const Wait&)> on_wait;
  std::function<void(bool)> on_storm;
  std::function<const char*()> on_doing;

  void watching_begins() override {
    if (on_watch) on_watch();
  }
  void happened(const MemoryEvent& event) override {
    if (on_memory) on_memory(event);
  }
  const char* waited(const Wait& wait) override { return on_wait ? on_wait(wait) : nullptr; }
  void storm(bool asked) override {
    if (on_storm) on_storm(asked);
  }
  const char* doing() override { return on_doing ? on_doing() : nullptr; }
};

}  // namespace firn::test
