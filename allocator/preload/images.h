// Kernels' parameters, read from their modules' images: drivers before CUDA 12.4 cannot tell them.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "allocator/preload/parameters.h"

namespace firn::preload {

/// By kernel: its parameters. Left out: kernels that the image does not describe, or describes in
/// two ways.
using Layouts = std::map<std::string, std::vector<Slot>, std::less<>>;

/// The layouts in an image as cuModuleLoadData takes it: an ELF file, a container of them
/// ("fatbin"), or nvcc's wrapper of one, readable as far as its own headers say, `most` bytes at
/// most. Empty for other forms: PTX, which the driver compiles, and compressed images.
Layouts layouts_of(const void* image, size_t most = SIZE_MAX);

}  // namespace firn::preload
