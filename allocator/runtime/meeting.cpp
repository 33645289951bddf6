#include "allocator/runtime/meeting.h"

#include "allocator/runtime_build.h"

namespace firn {

namespace {
Meet* meeting(const Driver& driver) {
  return driver.stand_in ? reinterpret_cast<Meet*>(driver.stand_in("runtime")) : nullptr;
}
}  // namespace

const char* runtime_build() { return FIRN_RUNTIME_BUILD; }

Runtime* met_runtime(const Driver& driver) {
  Meet* meet = meeting(driver);
  return meet ? meet(nullptr, runtime_build()) : nullptr;
}

Runtime* offer_runtime(const Driver& driver, Runtime* runtime) {
  Meet* meet = meeting(driver);
  Runtime* in_charge = meet ? meet(runtime, runtime_build()) : nullptr;
  return in_charge ? in_charge : runtime;
}

}  // namespace firn
