// What modules' images say of their kernels' parameters: drivers before CUDA 12.4 do not.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "allocator/preload/parameters.h"

namespace firn::preload {

/// By kernel: where its parameters lie. Kernels of which the image does not say, or says two
/// things, are not among them.
using Layouts = std::map<std::string, std::vector<Slot>, std::less<>>;

/// Of an image as cuModuleLoadData takes it: an ELF file, a container of such ("fatbin"), or nvcc's
/// wrapper of one, readable as far as its own headers say, but no further than `most`. Other forms
/// say nothing here: PTX, which the driver compiles, and what is compressed.
Layouts layouts_of(const void* image, size_t most = SIZE_MAX);

}  // namespace firn::preload
