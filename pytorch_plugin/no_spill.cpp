#include "pytorch_plugin/no_spill.h"

#include <mutex>

#include "allocator/runtime/runtime.h"

namespace firn::pytorch {

namespace {

std::mutex mutex;
unsigned inside = 0;

void set_all(bool stopped) {
  Runtime* runtime = Runtime::get();
  for (int device = 0; runtime && device < runtime->device_count(); ++device)
    if (Engine* engine = runtime->opened(device)) engine->stop_spilling(stopped);
}

}  // namespace

void enter_no_spill() {
  std::lock_guard lock(mutex);
  if (inside++ == 0) set_all(true);
}

void leave_no_spill() {
  std::lock_guard lock(mutex);
  if (inside > 0 && --inside == 0) set_all(false);
}

void follow_no_spill(Engine& engine) {
  std::lock_guard lock(mutex);
  engine.stop_spilling(inside > 0);
}

}  // namespace firn::pytorch
