// The operator observer: reports what every dispatcher call uses, before its kernel is called, and
// lets go of it afterwards. Installed only once memory comes near the budget; until then an
// operator costs nothing more.
//
// Owns: the process-wide callback. Locks: none while operators run.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>

#include "pytorch_plugin/operators.h"
#include "pytorch_plugin/scopes.h"

namespace firn::pytorch {

/// Idempotent. `spill_always`: after every outermost operator, spills everything that may be
/// spilled (tests: an unseen use is then an access to memory that is not there).
void install_observer(bool spill_always);
bool observing();

/// An operator's scope for code that stands in for its kernel.
class ObservedScope {
 public:
  explicit ObservedScope(const OperatorInfo& info) : scopes_(ThreadScopes::mine()) {
    scopes_.enter(this, &info);
  }
  ~ObservedScope();
  ObservedScope(const ObservedScope&) = delete;
  ObservedScope& operator=(const ObservedScope&) = delete;
  ThreadScopes& scopes() { return scopes_; }

 private:
  ThreadScopes& scopes_;
};

/// Calls `visit` with every tensor in `value`: a tensor, or lists, tuples and dictionaries of them.
template <class Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    visit(value.unsafeToTensorImpl());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements())
      for_each_tensor(element, visit);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      for_each_tensor(entry.key(), visit);
      for_each_tensor(entry.value(), visit);
    }
  }
}

/// Holds every tensor among `arguments`.
void touch_arguments(ThreadScopes& scopes, const OperatorInfo& info,
                     c10::ArrayRef<const c10::IValue> arguments);
/// Until end_use(), this thread uses memory without operators: as in an operator's scope.
void begin_use();
/// Holds the block around `pointer` until end_use(). Returns the error; empty when all is well.
std::string use_memory(const void* pointer);
void end_use();
/// This thread enqueues something on `stream`, within an operator or before operators are observed.
void note_enqueued(CUstream stream, Runtime::ContextOf context);
/// Shows the engine that these blocks are tensors.
void touch_results(ThreadScopes& scopes, const c10::IValue& result);

}  // namespace firn::pytorch
