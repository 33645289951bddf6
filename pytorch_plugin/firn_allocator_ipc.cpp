// Tensors that several processes share (torch.multiprocessing).
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstdlib>
#include <unordered_map>

#include "allocator/memory/exported_memory.h"
#include "firn/ranked_mutex.h"
#include "pytorch_plugin/firn_allocator.h"
#include "pytorch_plugin/recipes/writes.h"

namespace firn::pytorch {

namespace {
const char* const reason = "shared with another process";

/// Memory of other processes, by handle: a tensor that comes twice is mapped once.
struct Received {
  std::mutex mutex;
  std::unordered_map<std::string, std::weak_ptr<void>> memory;
};
Received& received() {
  static Received& all = *new Received;
  return all;
}

/// Only kernels that are already enqueued may still use the memory.
void give_up(ImportedMemory* memory, const std::string& handle, Engine* engine,
             const Driver* driver) {
  {
    std::lock_guard lock(received().mutex);
    const auto it = received().memory.find(handle);
    if (it != received().memory.end() && it->second.expired()) received().memory.erase(it);
  }
  if (exit_has_begun()) return;  // the driver is not called then; the process ends
  Driver::ContextGuard context(*driver, engine->context());
  none_held("cuCtxSynchronize");
  (void)driver->ctx_synchronize();
  delete memory;
}
}  // namespace

native::ShareableHandle FirnAllocator::shareIpcHandle(void* pointer) {
  Runtime* runtime = Runtime::get();
  Engine* engine = runtime ? runtime->around(pointer) : nullptr;
  TORCH_CHECK(engine, "firn: ", pointer, " cannot be shared with another process: it is outside "
              "Firn's memory (allocated while caching was off?)");
  Result<std::shared_ptr<const ExportedMemory>> exported = engine->export_memory(pointer, reason);
  TORCH_CHECK(exported, "firn: cannot share a tensor with another process: ",
              exported.error().text);
  Writes::all().give_up(pointer);  // another process may write it
  const auto base = static_cast<ptrdiff_t>((*exported)->base());
  return {reinterpret_cast<ptrdiff_t>(pointer) - base, (*exported)->handle()};
}

std::shared_ptr<void> FirnAllocator::getIpcDevPtr(std::string handle) {
  const c10::DeviceIndex device = c10::cuda::current_device();
  Engine* const own = &engine(device);
  const Driver* const driver = &Runtime::get()->driver();
  std::lock_guard lock(received().mutex);
  if (const auto known = received().memory.find(handle); known != received().memory.end())
    if (std::shared_ptr<void> there = known->second.lock()) return there;
  Driver::ContextGuard context(*driver, own->context());
  Result<std::unique_ptr<ImportedMemory>> opened = ImportedMemory::open(*driver, device, handle);
  TORCH_CHECK(opened, "firn: a tensor of another process: ", opened.error().text);
  ImportedMemory* const memory = opened->release();
  const std::shared_ptr<void> made(
      reinterpret_cast<void*>(memory->base()),
      [memory, handle, own, driver](void*) { give_up(memory, handle, own, driver); });
  received().memory[handle] = made;
  return made;
}

}  // namespace firn::pytorch
