// Kernels' parameters by their modules' own metadata (images.h), where the driver does not tell
// them. Owns the layouts of each module, by kernel. Lock: one.
#pragma once

#include <vector>

#include "allocator/preload/parameters.h"

namespace firn::preload {

/// Must images be looked at? Not where the driver tells the parameters.
bool images_needed();
/// As ParameterQueries::metadata.
bool metadata_of(CUfunction function, std::vector<Slot>& slots);
/// The module, or the library, was unloaded.
void forget_image(const void* module);

}  // namespace firn::preload
