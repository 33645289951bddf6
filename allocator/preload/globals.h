// Variables of modules: memory outside the arenas, which kernels reach without a parameter. Known
// addresses in them count for every launch; this list says which ranges end with which module.
//
// Owns the list of ranges. Lock: one.
#pragma once

#include "allocator/preload/tables.h"
#include "firn/cuda_abi.h"

namespace firn::preload {

/// `module` or library: any handle; null: memory that ends unseen.
void add_global(const void* module, Range variable);
/// The module was unloaded: its variables hold nothing any more.
void forget_globals(const void* module);
/// Reads them all into the tables; skips those that cannot be read any more.
void look_at_globals();
/// Contexts end with all their modules.
void forget_all_globals();

template <class Call>
CUresult note_global(const void* module, CUdeviceptr* address, size_t* bytes, Call&& call) {
  CUdeviceptr at = 0;
  size_t size = 0;
  const CUresult result = call(&at, &size);
  if (result != CUDA_SUCCESS) return result;
  add_global(module, {at, size});
  if (address) *address = at;
  if (bytes) *bytes = size;
  return result;
}

}  // namespace firn::preload
