// Entries that launch kernels.
#include <array>
#include <cstring>

#include "bodies.h"
#include "graph.h"
#include "gpu.h"
#include "module.h"

namespace firn::software {

namespace {
CUresult launch_kernel(const char* entry, CUfunction handle, std::array<unsigned, 3> grid,
                       std::array<unsigned, 3> block, CUstream on, void** parameters,
                       void** extra) {
  return enter(entry, Need::context, [&](Gate& gate) -> CUresult {
    std::shared_ptr<Stream> stream;
    if (CUresult result = find_stream(gate, on, &stream)) return result;
    if (stream->context.lock() != gate.context()) return CUDA_ERROR_INVALID_HANDLE;
    Body body{.entry = entry};
    if (CUresult result = kernel_body(gate, handle, grid, block, parameters, extra, &body))
      return result;
    if (CUresult none = load_for_launch(*gpu().functions.find(entry, handle), stream->device))
      return none;
    return submit(gate, stream, std::move(body));
  });
}
}  // namespace

FIRN_GPU_ENTRY_PTSZ(cuLaunchKernel,
                    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                     CUstream stream, void** parameters, void** extra),
                    (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                     stream, parameters, extra)) {
  (void)shared_bytes;
  return launch_kernel("cuLaunchKernel", function, {grid_x, grid_y, grid_z},
                       {block_x, block_y, block_z}, stream, parameters, extra);
}

FIRN_GPU_ENTRY_PTSZ(cuLaunchCooperativeKernel,
                    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                     CUstream stream, void** parameters),
                    (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                     stream, parameters)) {
  (void)shared_bytes;
  return launch_kernel("cuLaunchCooperativeKernel", function, {grid_x, grid_y, grid_z},
                       {block_x, block_y, block_z}, stream, parameters, nullptr);
}

FIRN_GPU_ENTRY_PTSZ(cuLaunchKernelEx,
                    (const CUlaunchConfig* config, CUfunction function, void** parameters,
                     void** extra),
                    (config, function, parameters, extra)) {
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  return launch_kernel("cuLaunchKernelEx", function,
                       {config->gridDimX, config->gridDimY, config->gridDimZ},
                       {config->blockDimX, config->blockDimY, config->blockDimZ}, config->hStream,
                       parameters, extra);
}

/// A form of our own: the address and the first extent, then 1 where the address is in disguise (as
/// in maps of interleaved tensors here, so that both can be tried).
FIRN_GPU_API CUresult cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* address,
                                             const uint64_t* dim, const uint64_t* strides,
                                             const unsigned* box, const unsigned* element_strides,
                                             int interleave, int swizzle, int promotion,
                                             int out_of_bounds) {
  (void)type, (void)swizzle, (void)promotion, (void)out_of_bounds;
  return enter("cuTensorMapEncodeTiled", Need::initialised, [&](Gate&) -> CUresult {
    const auto number = reinterpret_cast<uint64_t>(address);
    if (!map || !dim || !box || !element_strides || rank == 0 || rank > 5 || number % 16 ||
        (rank > 1 && !strides))
      return CUDA_ERROR_INVALID_VALUE;
    const uint64_t words[16] = {interleave ? ~number : number, dim[0], interleave != 0};
    std::memcpy(map, words, sizeof words);
    return CUDA_SUCCESS;
  });
}

FIRN_GPU_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function,
                                                                  int block_size, size_t) {
  return enter("cuOccupancyMaxActiveBlocksPerMultiprocessor", Need::initialised,
               [&](Gate& gate) -> CUresult {
    if (!gpu().functions.find(gate.entry(), function)) return CUDA_ERROR_INVALID_HANDLE;
    if (!blocks || block_size <= 0) return CUDA_ERROR_INVALID_VALUE;
    constexpr int threads_per_multiprocessor = 2048, blocks_max = 32;
    *blocks = std::min(blocks_max, threads_per_multiprocessor / block_size);
    return CUDA_SUCCESS;
  }, false);
}

}  // namespace firn::software
