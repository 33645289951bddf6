// The library behind the stand-in: where it begins, and where it steps aside.
#include <pthread.h>
#include <sched.h>

#include <cstdlib>
#include <cstring>

#include "allocator/preload/coverage.h"
#include "allocator/preload/doors.h"
#include "allocator/preload/engines.h"
#include "allocator/preload/handlers.h"

namespace firn::preload {

namespace {

std::atomic<bool> begun{false};
bool forked = false;  // this is a child, which has one thread

void* answer_name(const char* entry) noexcept {
  void* door = door_of_name(entry);
  try {
    if (std::strncmp(entry, "cu", 2) == 0) saw_name(entry, door != nullptr);
  } catch (...) {  // no memory: the report lacks it
  }
  return door;
}

void* offer(const char* what) noexcept {
  return std::strcmp(what, "runtime") == 0 ? reinterpret_cast<void*>(&meet) : nullptr;
}

constexpr FirnBehind answer = {answer_name, offer};

void end() noexcept {
  step_aside();
  try {
    if (!forked) write_coverage_alone();
  } catch (...) {  // no memory for it
  }
}

void leave_child() noexcept {
  forked = true;
  live.store(false, std::memory_order_release);
  forget_runtime();
}

}  // namespace

void step_aside() {
  live.store(false, std::memory_order_release);
  if (!forked) at_exit.store(true, std::memory_order_release);
}

}  // namespace firn::preload

extern "C" __attribute__((visibility("default"))) const FirnBehind* firn_behind_start(
    const FirnStandIn* stand_in) noexcept {
  using namespace firn::preload;
  if (stand_in->version != FIRN_STAND_IN_VERSION) return nullptr;
  try {
    if (open_doors(*stand_in)) {
      live.store(std::atexit(end) == 0 && ::pthread_atfork(nullptr, nullptr, leave_child) == 0,
                 std::memory_order_release);
      begun.store(true, std::memory_order_release);
    }
    // A short wait: the thread that begins waits for none that could wait for it.
    while (!begun.load(std::memory_order_acquire)) ::sched_yield();
  } catch (...) {  // no memory
    return nullptr;
  }
  return &answer;
}
