// The library behind the stand-in: where it begins, and where it steps aside.
#include <pthread.h>

#include <cstdlib>

#include "allocator/preload/doors.h"
#include "allocator/preload/handlers.h"

namespace firn::preload {

namespace {

FirnStandIn told;

void step_aside() { live.store(false, std::memory_order_release); }

void* offer(const char*) { return nullptr; }

}  // namespace

const FirnStandIn& stand_in() { return told; }

}  // namespace firn::preload

extern "C" __attribute__((visibility("default"))) int firn_behind_start(
    const FirnStandIn* stand_in, FirnBehind* behind) {
  using namespace firn::preload;
  if (stand_in->version != FIRN_STAND_IN_VERSION) return 1;
  told = *stand_in;
  open_doors();
  if (std::atexit(step_aside) != 0 || ::pthread_atfork(nullptr, nullptr, step_aside) != 0)
    return 1;
  live = true;
  *behind = {door_of_name, offer};
  return 0;
}
