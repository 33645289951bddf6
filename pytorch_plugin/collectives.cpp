#include "pytorch_plugin/collectives.h"

#include <ATen/core/ivalue_inl.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <exception>
#include <memory>
#include <utility>

#include "allocator/runtime.h"
#include "pytorch_plugin/torch_stream.h"

namespace firn::pytorch {

namespace {

constexpr const char* reason = "used by a collective whose launch was not seen";

/// Holds that any thread may let go of: at the latest when nobody remembers them.
class Apart {
 public:
  explicit Apart(std::vector<ThreadScopes::Apart> holds) : holds_(std::move(holds)) {}
  ~Apart() { let_go(false); }
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;

  /// `used`: on the calling thread's current streams.
  void let_go(bool used) {
    const auto holds = std::exchange(holds_, {});
    Runtime* const runtime = Runtime::get();
    for (int device = 0; runtime && device < runtime->device_count(); ++device) {
      Engine* const engine = runtime->opened(device);
      if (!engine) continue;
      CUstream stream = nullptr;
      if (used)
        stream = tell_stream(*engine, c10::cuda::getCurrentCUDAStream(
                                          static_cast<c10::DeviceIndex>(device)));
      for (const auto& each : holds) {
        if (each.engine != engine) continue;
        if (used) engine->used_on({&each.hold, 1}, stream);
        engine->release_apart(each.hold);
      }
    }
  }

 private:
  std::vector<ThreadScopes::Apart> holds_;
};

/// The collective's Work: null where the operator gave none. False: it is no Work.
bool work_of(const c10::IValue& result, c10::intrusive_ptr<c10d::Work>& work) {
  if (!result.isObject()) return false;
  const auto object = result.toObject();
  if (object->slots().empty() || !object->getSlot(0).isCapsule()) return false;
  const auto held = object->getSlot(0).toCapsule();
  work = c10::dynamic_intrusive_pointer_cast<c10d::Work>(held);
  return work || !held;
}

/// The callback runs at once where the kernels are enqueued, on streams that wait for them; or in
/// whichever thread has done the work.
bool hold_until_over(ThreadScopes& scopes, c10d::Work& work) try {
  const auto future = work.getFuture();
  if (!future) return false;
  const auto holds = std::make_shared<Apart>(scopes.hold_apart());
  future->addCallback([holds](c10::ivalue::Future&) { holds->let_go(true); });
  return true;
} catch (const std::exception&) {
  return false;  // a kind of Work that has no future
}

}  // namespace

void follow_collective(ThreadScopes& scopes, const std::vector<c10::IValue>& results) {
  Runtime* const runtime = Runtime::get();
  const bool launches_seen = runtime && runtime->driver().stand_in;
  for (const c10::IValue& result : results) {
    c10::intrusive_ptr<c10d::Work> work;
    if (!work_of(result, work)) continue;
    // (One that is done on the host copies by operators, which are seen.)
    if (work && launches_seen) continue;
    if (!work || !hold_until_over(scopes, *work)) scopes.keep_held(reason);
  }
}

}  // namespace firn::pytorch
