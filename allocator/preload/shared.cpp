// Memory that leaves Firn's sight, or was never in it. Memory that is exported, registered or
// reached by a handle stays on the device, with the reason; memory that the driver keeps is
// counted.
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "allocator/preload/engines.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/memory.h"
#include "allocator/preload/pool_words.h"

namespace firn::preload {

namespace {
/// The memory has a handle of its own, whose uses are not seen.
void stay(CUdeviceptr address, const char* reason) {
  if (View* view = views().at(address))
    (void)view->engine->give_address(reinterpret_cast<void*>(address), reason);
}

/// CUDA_RESOURCE_DESC of linear memory or of a pitched plane.
CUdeviceptr memory_of(const void* resource) {
  constexpr int linear = 2, pitched = 3;
  int type = 0;
  CUdeviceptr address = 0;
  if (!resource) return 0;
  std::memcpy(&type, resource, sizeof type);
  if (type == linear || type == pitched)
    std::memcpy(&address, static_cast<const char*>(resource) + 8, sizeof address);
  return address;
}

/// A tensor map travels by value among a kernel's parameters. Where it holds the address as it is,
/// the scan of the parameters finds it.
void stay_unless_seen(const void* map, const void* address) {
  constexpr size_t map_words = 16;
  uint64_t words[map_words];
  std::memcpy(words, map, sizeof words);
  for (uint64_t word : words)
    if (word == reinterpret_cast<uint64_t>(address)) return;
  stay(reinterpret_cast<CUdeviceptr>(address), "a tensor map holds its address in disguise");
}
}  // namespace

void passed_on(const char* reason, uint64_t bytes) {
  static std::mutex mutex;
  static auto& by_reason = *new std::map<std::string, uint64_t>;
  counters().passed_on_bytes.fetch_add(bytes, std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex);
    by_reason[reason] += bytes;
  }
  note_unseen(reason);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  const auto call = [&] { return real().cuMemCreate(handle, bytes, prop, flags); };
  const bool on_device = prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  const CUresult result = on_device ? others(bytes, call) : call();
  if (result != CUDA_SUCCESS) return result;
  passed_on("memory that the program maps by itself", bytes);
  if (Engine* engine = on_device ? engine_here() : nullptr)
    tell_of_own_memory(bytes, engine->budget_bytes());
  return result;
}
CUresult cuArrayCreate_v2(CUarray* array, const void* descriptor) {
  const CUresult result = others(0, [&] { return real().cuArrayCreate_v2(array, descriptor); });
  if (result == CUDA_SUCCESS) passed_on("arrays: no plain memory", 0);
  return result;
}
CUresult cuArray3DCreate_v2(CUarray* array, const void* descriptor) {
  const CUresult result = others(0, [&] { return real().cuArray3DCreate_v2(array, descriptor); });
  if (result == CUDA_SUCCESS) passed_on("arrays: no plain memory", 0);
  return result;
}
CUresult cuMipmappedArrayCreate(void** array, const void* descriptor, unsigned levels) {
  const CUresult result = real().cuMipmappedArrayCreate(array, descriptor, levels);
  if (result == CUDA_SUCCESS) passed_on("arrays: no plain memory", 0);
  return result;
}
CUresult cuImportExternalMemory(void** memory, const void* descriptor) {
  const CUresult result = real().cuImportExternalMemory(memory, descriptor);
  if (result == CUDA_SUCCESS) passed_on("external memory: another library's", 0);
  return result;
}
CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr* address, void* memory,
                                         const void* descriptor) {
  const CUresult result = real().cuExternalMemoryGetMappedBuffer(address, memory, descriptor);
  if (result == CUDA_SUCCESS) passed_on("external memory: another library's", 0);
  return result;
}
CUresult cuMulticastCreate(CUmemGenericAllocationHandle* handle, const void* prop) {
  const CUresult result = real().cuMulticastCreate(handle, prop);
  if (result == CUDA_SUCCESS) passed_on("multicast objects", 0);
  return result;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset,
                             CUdeviceptr address, size_t bytes, unsigned long long flags) {
  stay(address, "bound to a multicast object");
  return real().cuMulticastBindAddr(handle, offset, address, bytes, flags);
}
// No pool of Firn's memory can be shared: the driver says so.
CUresult cuMemPoolExportPointer(void* data, CUdeviceptr address) {
  return real().cuMemPoolExportPointer(data, address);
}
CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, size_t bytes, int type,
                                       unsigned long long flags) {
  stay(address, "registered with another device (DMA-BUF)");
  return real().cuMemGetHandleForAddressRange(handle, address, bytes, type, flags);
}
// As the driver answers for memory that it has allocated itself.
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return views().at(reinterpret_cast<CUdeviceptr>(address))
             ? CUDA_ERROR_INVALID_VALUE
             : real().cuMemRetainAllocationHandle(handle, address);
}
CUresult cuTexObjectCreate(unsigned long long* texture, const void* resource,
                           const void* description, const void* view) {
  stay(memory_of(resource), "a texture reads it");
  return real().cuTexObjectCreate(texture, resource, description, view);
}
CUresult cuSurfObjectCreate(unsigned long long* surface, const void* resource) {
  stay(memory_of(resource), "a surface reaches it");
  return real().cuSurfObjectCreate(surface, resource);
}
CUresult cuTexRefSetAddress_v2(size_t* offset, void* texture, CUdeviceptr address, size_t bytes) {
  stay(address, "a texture reads it");
  return real().cuTexRefSetAddress_v2(offset, texture, address, bytes);
}
CUresult cuTexRefSetAddress2D_v2(void* texture, const void* descriptor, CUdeviceptr address,
                                 size_t pitch) {
  stay(address, "a texture reads it");
  return real().cuTexRefSetAddress2D_v2(texture, descriptor, address, pitch);
}
CUresult cuTexRefSetAddress2D_v3(void* texture, const void* descriptor, CUdeviceptr address,
                                 size_t pitch) {
  stay(address, "a texture reads it");
  return real().cuTexRefSetAddress2D_v3(texture, descriptor, address, pitch);
}

CUresult cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* address,
                                const uint64_t* dim, const uint64_t* strides, const unsigned* box,
                                const unsigned* element_strides, int interleave, int swizzle,
                                int promotion, int fill) {
  const CUresult result = real().cuTensorMapEncodeTiled(map, type, rank, address, dim, strides, box,
                                                        element_strides, interleave, swizzle,
                                                        promotion, fill);
  if (result == CUDA_SUCCESS) stay_unless_seen(map, address);
  return result;
}
CUresult cuTensorMapEncodeIm2col(void* map, int type, unsigned rank, void* address,
                                 const uint64_t* dim, const uint64_t* strides, const int* lower,
                                 const int* upper, unsigned channels, unsigned pixels,
                                 const unsigned* element_strides, int interleave, int swizzle,
                                 int promotion, int fill) {
  const CUresult result = real().cuTensorMapEncodeIm2col(
      map, type, rank, address, dim, strides, lower, upper, channels, pixels, element_strides,
      interleave, swizzle, promotion, fill);
  if (result == CUDA_SUCCESS) stay_unless_seen(map, address);
  return result;
}
CUresult cuTensorMapEncodeIm2colWide(void* map, int type, unsigned rank, void* address,
                                     const uint64_t* dim, const uint64_t* strides, int lower,
                                     int upper, unsigned channels, unsigned pixels,
                                     const unsigned* element_strides, int interleave, int mode,
                                     int swizzle, int promotion, int fill) {
  const CUresult result = real().cuTensorMapEncodeIm2colWide(
      map, type, rank, address, dim, strides, lower, upper, channels, pixels, element_strides,
      interleave, mode, swizzle, promotion, fill);
  if (result == CUDA_SUCCESS) stay_unless_seen(map, address);
  return result;
}
CUresult cuTensorMapReplaceAddress(void* map, void* address) {
  const CUresult result = real().cuTensorMapReplaceAddress(map, address);
  if (result == CUDA_SUCCESS) stay_unless_seen(map, address);
  return result;
}

}  // namespace firn::preload
