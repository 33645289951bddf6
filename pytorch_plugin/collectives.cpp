#include "pytorch_plugin/collectives.h"

#include <ATen/core/ivalue_inl.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "allocator/runtime/runtime.h"

namespace firn::pytorch {

namespace {

/// The collective's Work: null where the operator gave none. False: it is not a Work.
bool work_of(const c10::IValue& result, c10::intrusive_ptr<c10d::Work>& work) {
  if (!result.isObject()) return false;
  const auto object = result.toObject();
  if (object->slots().empty() || !object->getSlot(0).isCapsule()) return false;
  const auto held = object->getSlot(0).toCapsule();
  work = c10::dynamic_intrusive_pointer_cast<c10d::Work>(held);
  return work || !held;
}

}  // namespace

void follow_collective(ThreadScopes& scopes, const std::vector<c10::IValue>& results) {
  Runtime* const runtime = Runtime::get();
  const bool launches_seen = runtime && runtime->driver().stand_in;
  for (const c10::IValue& result : results) {
    c10::intrusive_ptr<c10d::Work> work;
    if (!work_of(result, work)) continue;
    // With a Work and no launch it is done on the host, whose copies are operators.
    if (!work || !launches_seen)
      scopes.keep_held("used by a collective whose launch was not seen");
  }
}

}  // namespace firn::pytorch
