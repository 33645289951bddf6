// The classic calls for device memory, and the driver's queries about it.
#include "allocator/preload/memory.h"

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "allocator/preload/captures.h"
#include "allocator/preload/engines.h"
#include "allocator/preload/frees.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/host_memory.h"
#include "allocator/preload/inspections.h"
#include "allocator/preload/pool_words.h"
#include "firn/saturating.h"

namespace firn::preload {

namespace {
constexpr size_t pitch_alignment = 512;
// tell_of_pool() ignores smaller blocks.
constexpr size_t pool_bytes_least = 8u << 20;
void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

/// The allocations' numbers (CU_POINTER_ATTRIBUTE_BUFFER_ID), given when they are asked for: no two
/// allocations of the process have the same, whatever their addresses.
class Numbers {
 public:
  uint64_t of(uint64_t base) {
    // Frees of another front end's memory are not seen: a new number for each question.
    if (!serving()) return next_.fetch_add(1, std::memory_order_relaxed);
    std::lock_guard lock(mutex_);
    uint64_t& number = known_[base];
    if (number == 0) {
      number = next_.fetch_add(1, std::memory_order_relaxed);
      any_.store(true, std::memory_order_release);
    }
    return number;
  }
  void forget(uint64_t base) {
    if (!any_.load(std::memory_order_acquire)) return;
    std::lock_guard lock(mutex_);
    known_.erase(base);
  }

 private:
  // Apart from the driver's own, which count from one.
  std::atomic<uint64_t> next_{uint64_t{1} << 62};
  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::unordered_map<uint64_t, uint64_t> known_;  // by base
};
Numbers& numbers() {
  static Numbers& all = *new Numbers;
  return all;
}
}  // namespace

CUresult allocate(Engine& engine, CUdeviceptr* address, size_t bytes, CUstream stream) {
  const bool may_leave = inspections().ready();
  Result<void*> made = engine.allocate(bytes, stream);
  // The first time that memory is short: from here on blocks may leave the device.
  if (!made && made.error().code == Code::out_of_memory && !may_leave) {
    inspections().begin();
    if (!inspections().ready())
      note_unseen("memory ran short for the first time during a graph's capture, when nothing can "
                  "leave the device: FIRN_WATCH=0 watches memory from the start");
    made = engine.allocate(bytes, stream);
  }
  // Even if refused: a block that does not fit at all needs the hint most.
  if (bytes >= pool_bytes_least) tell_of_pool(bytes, engine.budget_bytes());
  if (!made) {
    static std::atomic<bool> said{false};
    if (Runtime* runtime = runtime_here()) runtime->refused(engine, made.error());
    if (!is_beyond_device(bytes))
      say_why(made.error(), "an allocation failed", said);
    return result_of(made.error());
  }
  *address = reinterpret_cast<CUdeviceptr>(*made);
  return CUDA_SUCCESS;
}

bool is_beyond_device(uint64_t bytes) {
  size_t free_bytes = 0, total_bytes = 0;
  return real().cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS || bytes > total_bytes;
}

std::optional<Reached> block_at(CUdeviceptr address) {
  View* view = views().at(address);
  Reached block;
  if (!view || !block_around(*view, address, block) || block.base != address) return std::nullopt;
  return block;
}

CUresult release_block(const Reached& block, Behind behind) {
  pool_gave_back(block.base);
  inspections().forget(block.base);
  tables().forget(block.base, block.bytes);
  numbers().forget(block.base);
  Engine& engine = *block.view->engine;
  Result<void> done =
      behind.fence ? engine.free_behind(pointer(block.base), behind.fence, behind.given)
                   : engine.free(pointer(block.base));
  return done ? CUDA_SUCCESS : result_of(done.error());
}

CUresult wait_for_context(CUcontext context) {
  CUcontext current = nullptr;
  if (real().cuCtxGetCurrent(&current) == CUDA_SUCCESS && current) {
    const CUresult result = real().cuCtxSynchronize();
    if (result != CUDA_SUCCESS || current == context) return result;
  }
  if (CUresult result = real().cuCtxPushCurrent_v2(context)) return result;
  const CUresult result = real().cuCtxSynchronize();
  (void)real().cuCtxPopCurrent_v2(&current);
  return result;
}

void release_all(View& view) {
  (void)wait_for_context(view.context);
  for (const BlockInfo& info : view.engine->blocks())
    if (info.live)
      if (auto block = block_at(reinterpret_cast<CUdeviceptr>(info.base)))
        (void)release_block(*block);
}

// Memory of a blocking call is for every stream at once: it comes from, and goes back to, a stream
// without work, so that it is unused when it is handed out again.
CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  Engine* engine = address && bytes > 0 ? engine_here() : nullptr;
  if (!engine) return others(bytes, [&] { return real().cuMemAlloc_v2(address, bytes); });
  if (CUresult refused = unsafe_call()) return refused;
  return allocate(*engine, address, bytes, views().of(*engine).plain);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width_bytes, size_t height,
                            unsigned element_bytes) {
  const bool fine = address && pitch && width_bytes > 0 && height > 0 &&
                    (element_bytes == 4 || element_bytes == 8 || element_bytes == 16) &&
                    width_bytes <= SIZE_MAX - pitch_alignment;
  const size_t row = (width_bytes + pitch_alignment - 1) / pitch_alignment * pitch_alignment;
  Engine* engine = fine && row <= SIZE_MAX / height ? engine_here() : nullptr;
  if (!engine)
    return others(saturating_multiply(row, height), [&] {
      return real().cuMemAllocPitch_v2(address, pitch, width_bytes, height, element_bytes);
    });
  if (CUresult refused = unsafe_call()) return refused;
  const CUresult result =
      allocate(*engine, address, row * height, views().of(*engine).plain);
  if (result == CUDA_SUCCESS) *pitch = row;
  return result;
}

// Enqueued work may use the memory, which is reused only after that.
CUresult cuMemFree_v2(CUdeviceptr address) {
  View* view = views().at(address);
  if (!view) {
    if (host_memory().may_be(address)) host_memory().remove(pointer(address));  // managed
    return real().cuMemFree_v2(address);
  }
  if (exiting()) return CUDA_SUCCESS;  // left to the operating system
  if (CUresult refused = unsafe_call()) return refused;
  if (!block_at(address)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result; free_after_captures(address, result)) return result;
  Behind behind;
  if (CUresult result = before_free(*view, behind)) return result;
  const auto block = block_at(address);
  if (block && behind.fence) counters().frees_deferred.fetch_add(1, std::memory_order_relaxed);
  return block ? release_block(*block, behind) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  const CUresult result = real().cuMemGetInfo_v2(free_bytes, total_bytes);
  Engine* engine = result == CUDA_SUCCESS && free_bytes && total_bytes ? engine_here() : nullptr;
  if (!engine) return result;
  const EngineStats stats = engine->stats();
  const uint64_t held = stats.allocated_bytes;
  Runtime* runtime = runtime_here();
  const uint64_t wished = runtime ? runtime->config().memory_info_bytes : 0;
  const uint64_t told = wished ? wished : stats.budget_bytes;
  *total_bytes = told;
  *free_bytes = told > held ? told - held : 0;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  View* view = views().at(address);
  if (!view) return real().cuMemGetAddressRange_v2(base, bytes, address);
  const auto info = view->engine->find(pointer(address));
  if (!info) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = reinterpret_cast<CUdeviceptr>(info->base);
  if (bytes) *bytes = info->requested_bytes;
  return CUDA_SUCCESS;
}

namespace {
// CUpointer_attribute.
enum : int {
  a_context = 1, a_memory_type = 2, a_device_pointer = 3, a_host_pointer = 4, a_p2p_tokens = 5,
  a_sync_memops = 6, a_buffer_id = 7, a_is_managed = 8, a_device_ordinal = 9,
  a_legacy_ipc = 10, a_range_start = 11, a_range_bytes = 12, a_mapped = 13,
  a_handle_types = 14, a_rdma = 15, a_access = 16, a_pool = 17, a_mapping_bytes = 18,
  a_mapping_base = 19, a_block_id = 20, a_decompress = 21,
};

/// An attribute of a block of Firn's, wherever its bytes are. Truth values are as wide as the
/// driver's: four bytes, whatever its documentation calls them.
CUresult attribute_of(View& view, const BlockInfo& block, CUdeviceptr address, int attribute,
                      void* value) {
  auto* wide = static_cast<uint64_t*>(value);
  auto* narrow = static_cast<int*>(value);
  const auto base = reinterpret_cast<uint64_t>(block.base);
  switch (attribute) {
    case a_context: *static_cast<CUcontext*>(value) = view.context; break;
    case a_memory_type: *narrow = memory_device; break;
    case a_device_pointer: *wide = address; break;
    case a_is_managed:
    case a_legacy_ipc:
    case a_rdma:
    case a_decompress:
    case a_sync_memops: *narrow = 0; break;
    case a_mapped: *narrow = 1; break;
    case a_buffer_id:
    case a_block_id: *wide = numbers().of(base); break;
    case a_device_ordinal: *narrow = view.device; break;
    case a_range_start:
    case a_mapping_base: *wide = base; break;
    case a_range_bytes: *wide = block.requested_bytes; break;
    case a_mapping_bytes: *wide = block.capacity; break;
    case a_handle_types: *wide = 0; break;
    case a_access: *narrow = CU_MEM_ACCESS_FLAGS_PROT_READWRITE; break;
    case a_pool: *static_cast<void**>(value) = pool_of_block(base); break;
    default: return CUDA_ERROR_INVALID_VALUE;  // among them the host's pointer: there is none
  }
  return CUDA_SUCCESS;
}
}  // namespace

CUresult cuPointerGetAttribute(void* value, int attribute, CUdeviceptr address) {
  View* view = views().at(address);
  if (!view || !value) return real().cuPointerGetAttribute(value, attribute, address);
  const auto block = view->engine->find(pointer(address));
  return block ? attribute_of(*view, *block, address, attribute, value)
               : CUDA_ERROR_INVALID_VALUE;
}

// Here an attribute without an answer is null, not an error.
CUresult cuPointerGetAttributes(unsigned count, int* attributes, void** values,
                                CUdeviceptr address) {
  View* view = views().at(address);
  const auto block = view ? view->engine->find(pointer(address)) : std::nullopt;
  if (!block || !attributes || !values)
    return real().cuPointerGetAttributes(count, attributes, values, address);
  for (unsigned i = 0; i < count; ++i) {
    if (!values[i]) return CUDA_ERROR_INVALID_VALUE;
    if (attributes[i] == a_host_pointer)
      *static_cast<void**>(values[i]) = nullptr;
    else if (CUresult result =
                 attribute_of(*view, *block, address, attributes[i], values[i]))
      return result;
  }
  return CUDA_SUCCESS;
}

// A program that asks for synchronous copies reaches the memory by other means than CUDA.
CUresult cuPointerSetAttribute(const void* value, int attribute, CUdeviceptr address) {
  View* view = views().at(address);
  if (!view) return real().cuPointerSetAttribute(value, attribute, address);
  if (!value || attribute != a_sync_memops || !view->engine->find(pointer(address)))
    return CUDA_ERROR_INVALID_VALUE;
  Result<void> stays = view->engine->give_address(pointer(address),
                                                  "copies to it are to be waited for (RDMA)");
  return stays ? real().cuPointerSetAttribute(value, attribute, address)
               : result_of(stays.error());
}

}  // namespace firn::preload
