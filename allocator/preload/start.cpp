// The library behind the stand-in: where it begins, and where it steps aside.
#include <pthread.h>

#include <cstdlib>

#include "allocator/preload/doors.h"
#include "allocator/preload/handlers.h"

namespace firn::preload {

void step_aside() { live.store(false, std::memory_order_release); }

namespace {
void* offer(const char*) { return nullptr; }
constexpr FirnBehind answer = {door_of_name, offer};
}  // namespace

}  // namespace firn::preload

extern "C" __attribute__((visibility("default"))) const FirnBehind* firn_behind_start(
    const FirnStandIn* stand_in) {
  using namespace firn::preload;
  if (stand_in->version != FIRN_STAND_IN_VERSION) return nullptr;
  try {
    if (open_doors(*stand_in) && std::atexit(step_aside) == 0 &&
        ::pthread_atfork(nullptr, nullptr, step_aside) == 0)
      live.store(true, std::memory_order_release);
  } catch (const std::exception&) {  // no memory
    return nullptr;
  }
  return &answer;
}
