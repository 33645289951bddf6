// Entries that launch kernels.
#include <array>
#include <cstring>

#include "graph.h"
#include "gpu.h"
#include "module.h"

namespace firn::software {

namespace {
struct Launch {
  std::shared_ptr<Function> function;
  std::shared_ptr<Module> module;  // keeps the code
  std::vector<uint64_t> packed;    // parameters as the kernel sees them; 8-byte aligned
  std::array<unsigned, 3> grid, block;
};

// The parameters, packed as the layout says, from pointers to each or from a packed buffer.
CUresult pack(Launch& launch, void** parameters, void** extra) {
  const Function& function = *launch.function;
  launch.packed.assign(round_up(function.packed_bytes, 8) / 8, 0);
  auto* to = reinterpret_cast<char*>(launch.packed.data());
  if (parameters && extra) return CUDA_ERROR_INVALID_VALUE;
  if (extra) {
    const void* buffer = nullptr;
    size_t bytes = 0;
    for (; *extra != launch_param_end; extra += 2) {
      if (*extra == launch_param_buffer_pointer)
        buffer = extra[1];
      else if (*extra == launch_param_buffer_bytes)
        bytes = *static_cast<size_t*>(extra[1]);
      else
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (bytes < function.packed_bytes || (!buffer && function.packed_bytes))
      return CUDA_ERROR_INVALID_VALUE;
    if (function.packed_bytes) std::memcpy(to, buffer, function.packed_bytes);
    return CUDA_SUCCESS;
  }
  if (!parameters && !function.layout.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < function.layout.size(); ++i) {
    const auto [offset, bytes] = function.layout[i];
    if (!parameters[i]) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(to + offset, parameters[i], bytes);
  }
  return CUDA_SUCCESS;
}

// Every aligned word of the parameters that is an address of this GPU stands for memory in use.
std::vector<Range> addresses_in(const std::vector<uint64_t>& words) {
  std::vector<Range> ranges;
  for (uint64_t word : words)
    if (word >= granule_bytes && gpu().space.of_device(word)) ranges.push_back({word, 1});
  return ranges;
}

void run(Launch& launch) {
  std::vector<void*> pointers;
  auto* packed = reinterpret_cast<char*>(launch.packed.data());
  for (const auto& [offset, bytes] : launch.function->layout) pointers.push_back(packed + offset);
  launch.function->run(pointers.data(), launch.grid.data(), launch.block.data());
}

CUresult launch_kernel(const char* entry, CUfunction handle, std::array<unsigned, 3> grid,
                       std::array<unsigned, 3> block, CUstream on, void** parameters,
                       void** extra) {
  return enter(entry, Need::context, [&](Gate& gate) -> CUresult {
    auto launch = std::make_shared<Launch>();
    launch->function = gpu().functions.find(entry, handle);
    if (!launch->function) return CUDA_ERROR_INVALID_HANDLE;
    std::shared_ptr<Stream> stream;
    if (CUresult result = find_stream(gate, on, &stream)) return result;
    if (stream->context.lock() != gate.context()) return CUDA_ERROR_INVALID_HANDLE;
    launch->module = launch->function->module.lock();
    if (launch->module && !launch->module->of_library &&
        launch->module->context.lock() != gate.context())
      return CUDA_ERROR_INVALID_HANDLE;
    for (unsigned n : {grid[0], grid[1], grid[2], block[0], block[1], block[2]})
      if (n == 0) return CUDA_ERROR_INVALID_VALUE;
    if (uint64_t{block[0]} * block[1] * block[2] > 1024) return CUDA_ERROR_INVALID_VALUE;
    launch->grid = grid;
    launch->block = block;
    if (CUresult result = pack(*launch, parameters, extra)) return result;
    Body body{.entry = entry, .type = node_kernel};
    body.ranges = addresses_in(launch->packed);
    body.run = [launch] {
      Launch own = *launch;  // a replayed kernel may write to its parameters
      run(own);
    };
    const int device = stream->device;
    body.settle = [device] { ++gpu().device(device).kernels; };
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
