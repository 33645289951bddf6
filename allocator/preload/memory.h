// Blocks as the memory handlers make and end them. Owns the pools' tallies (pools.cpp).
#pragma once

#include <optional>

#include "allocator/preload/give_way.h"
#include "allocator/preload/work.h"
#include "firn/cuda_types.h"

namespace firn::preload {

/// Allocates from an engine, for work on `stream` (as the engine names it).
CUresult allocate(Engine& engine, CUdeviceptr* address, size_t bytes, CUstream stream);
/// The live block that begins there.
std::optional<Reached> block_at(CUdeviceptr address);
/// Frees the block and forgets all that is known of it. Its uses are over, or recorded, or
/// `behind`, a view's fence, waits for them.
CUresult release_block(const Reached& block, Behind behind = {});
/// Frees all blocks of a device whose primary context ends, as the program sees it.
void release_all(View& view);
/// More than the device has in all? Some programs ask for that to probe the answer.
bool is_beyond_device(uint64_t bytes);
/// Waits for the current context's work and for that one's.
CUresult wait_for_context(CUcontext context);

void pool_gave_back(uint64_t base);
/// The pool's handle; null for memory of no pool.
void* pool_of_block(uint64_t base);

/// A call that needs memory which is not Firn's.
template <class Call>
CUresult others(uint64_t bytes, Call&& call) {
  return or_give_way("memory that is not Firn's", call, nullptr, bytes);
}
/// Memory that the driver keeps, and why: for the statistics.
void passed_on(const char* reason, uint64_t bytes);

}  // namespace firn::preload
