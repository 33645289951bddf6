// Memory that other processes open by a handle of 64 bytes. The driver has none for memory that is
// mapped piece by piece: for Firn's memory, the handle names a file of this process that tells how
// to find the frames (allocator/memory/exported_memory.h), and both processes need this library.
#include <unistd.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <string>

#include "allocator/memory/exported_identity.h"
#include "allocator/memory/exported_memory.h"
#include "allocator/preload/engines.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/memory.h"
#include "allocator/preload/shared_handle.h"
#include "firn/descriptor.h"

namespace firn::preload {

namespace {
const char* const reason = "given to other processes (cuIpcGetMemHandle)";
struct Opened {
  std::unique_ptr<ImportedMemory> memory;
  CUcontext context;
  unsigned times;
  std::string handle;
};
struct Shared {
  std::mutex mutex;
  std::map<CUdeviceptr, std::pair<std::string, Descriptor>> files;  // by frames' base: words, file
  std::map<CUdeviceptr, Opened> opened;                      // by the address that was answered
};
Shared& shared() {
  static Shared& all = *new Shared;
  return all;
}

CUresult refuse(const Error& error) {
  std::fprintf(stderr, "firn: cuIpcOpenMemHandle: %s\n", describe(error).c_str());
  return error.code == Code::driver ? result_of(error) : CUDA_ERROR_MAP_FAILED;
}

CUresult open(CUdeviceptr* address, const CUipcMemHandle& passed, const SharedHandle& told) {
  if (!address) return CUDA_ERROR_INVALID_VALUE;
  if (told.process == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;  // as the driver says
  Engine* engine = engine_here();
  CUdevice device = 0;
  if (!engine || real().cuCtxGetDevice(&device) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(shared().mutex);
  const std::string key(passed.reserved, sizeof passed.reserved);
  for (auto& [at, each] : shared().opened)
    if (each.handle == key && each.context == engine->context()) {
      ++each.times;
      *address = at;
      return CUDA_SUCCESS;
    }
  const Driver& driver = runtime_here()->driver();
  Driver::ContextGuard context(driver, engine->context());
  auto block = open_shared(driver, device, told);
  if (!block) return refuse(block.error());
  *address = block->address;
  shared().opened[*address] = {std::move(block->memory), engine->context(), 1, key};
  return CUDA_SUCCESS;
}
}  // namespace

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  const auto block = views().at(address) ? block_at(address) : std::nullopt;
  if (!block) return real().cuIpcGetMemHandle(handle, address);
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  auto exported =
      block->view->engine->export_memory(reinterpret_cast<const void*>(block->base), reason);
  if (!exported) return result_of(exported.error());
  const std::string words = (*exported)->handle();
  std::lock_guard lock(shared().mutex);
  auto& [known, file] = shared().files[(*exported)->base()];
  if (known != words || !file.ours()) {  // (of a block that was there before)
    known = words;
    file = words_file(words);
  }
  if (!file) return CUDA_ERROR_OUT_OF_MEMORY;
  SharedHandle told;
  told.process = ::getpid();
  told.file = file.get();
  told.offset = block->base - (*exported)->base();
  told.identity = identity_of(words).value_or(ExportedIdentity{});
  *handle = handle_of(told);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  if (const auto told = read_handle(handle)) return open(address, handle, *told);
  return real().cuIpcOpenMemHandle_v2(address, handle, flags);
}
CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  if (const auto told = read_handle(handle)) return open(address, handle, *told);
  return real().cuIpcOpenMemHandle(address, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  std::lock_guard lock(shared().mutex);
  const auto found = shared().opened.find(address);
  if (found == shared().opened.end()) return real().cuIpcCloseMemHandle(address);
  if (--found->second.times > 0) return CUDA_SUCCESS;
  if (CUresult result = wait_for_context(found->second.context)) return result;
  const Driver& driver = runtime_here()->driver();
  Driver::ContextGuard context(driver, found->second.context);
  shared().opened.erase(found);
  return CUDA_SUCCESS;
}

}  // namespace firn::preload
