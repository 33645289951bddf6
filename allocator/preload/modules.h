// Kernels' parameters from their modules' own metadata (images.h), for drivers that cannot tell
// them. Owns the layouts of each module, by kernel. Lock: one.
#pragma once

#include <vector>

#include "allocator/preload/parameters.h"

namespace firn::preload {

/// Must images be read? Not where the driver tells the parameters.
bool images_needed();
/// As ParameterQueries::metadata.
bool metadata_of(CUfunction function, std::vector<Slot>& slots);
/// The module, or the library, was unloaded.
void forget_image(const void* module);

}  // namespace firn::preload
