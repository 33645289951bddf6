// Launches: every word of a kernel's parameters that lies in an arena is an address; the blocks
// around them, and what these lead to, are on the device before the kernel is enqueued.
#include <span>

#include "allocator/preload/captures.h"
#include "allocator/preload/engines.h"
#include "allocator/preload/frees.h"
#include "allocator/preload/give_way.h"
#include "allocator/preload/globals.h"
#include "allocator/preload/graphs.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/inspections.h"
#include "allocator/preload/modules.h"

namespace firn::preload {

namespace {
constexpr const char* a_launch = "a launch";

template <class Call>
CUresult launch(CUfunction function, CUstream stream, void** parameters, void** extra,
                Call&& call) {
  if (views().count() == 0 || !function) return call();
  const Enqueues enqueues(stream);
  note_enqueued(stream);  // a scan sees only what is in the parameters
  if (launch_covered()) return or_give_way(a_launch, call);
  Kernel* kernel = kernels().find(function);
  Work work(where_on(stream));
  Counters& counted = counters();
  counted.launches.store(counted.launches.load(std::memory_order_relaxed) + 1,
                         std::memory_order_relaxed);
  counted.parameters.store(
      counted.parameters.load(std::memory_order_relaxed) + kernel->slots.size(),
      std::memory_order_relaxed);
  const bool told =
      for_each_word(*kernel, parameters, extra, [&](uint64_t word) { work.see(word); });
  if (!told) [[unlikely]] {
    counted.unknown_kernels.fetch_add(1, std::memory_order_relaxed);
    note_unseen("kernels whose parameters the driver does not report: all memory was touched");
    work.see_all();
  }
  if (captures_under_way()) [[unlikely]]
    if (CUgraph graph = captured_into(stream)) {
      Uses uses;
      for (uint64_t word : work.seen()) uses.add(word);
      uses.everything = !told;
      note_captured(graph, uses);
      return or_give_way(a_launch, call);
    }
  if (work.empty() && !tables().foreign()) return or_give_way(a_launch, call);
  if (CUresult result = work.hold(true)) return result;
  const CUresult result = or_give_way(a_launch, call, &work);
  if (result == CUDA_SUCCESS && inspections().wanted(*kernel, work.followed())) [[unlikely]]
    inspections().add(kernel->kept ? *kernel : unkept_kernel(), work.followed(), stream,
                      work.reached());
  work.release(result == CUDA_SUCCESS);
  return result;
}

/// Launches whose parameters were set by earlier calls, or lie in obsolete lists.
template <class Call>
CUresult launch_unknown(CUstream stream, Call&& call) {
  if (views().count() == 0) return call();
  const Enqueues enqueues(stream);
  note_enqueued(stream);  // a scan sees only what is in the parameters
  if (launch_covered()) return or_give_way(a_launch, call);
  counters().launches.fetch_add(1, std::memory_order_relaxed);
  counters().unknown_kernels.fetch_add(1, std::memory_order_relaxed);
  note_unseen("launches by the calls of CUDA 3: all memory was touched");
  Work work(where_on(stream));
  work.see_all();
  if (CUresult result = work.hold(false)) return result;
  const CUresult result = or_give_way(a_launch, call, &work);
  if (result == CUDA_SUCCESS && inspections().begun())
    inspections().add(unkept_kernel(), true, stream, work.reached());
  work.release(result == CUDA_SUCCESS);
  return result;
}
}  // namespace

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z,
                        unsigned shared_bytes, CUstream stream, void** parameters, void** extra) {
  return launch(function, stream, parameters, extra, [&] {
    return real().cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                                 shared_bytes, stream, parameters, extra);
  });
}
CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y,
                             unsigned grid_z, unsigned block_x, unsigned block_y,
                             unsigned block_z, unsigned shared_bytes, CUstream stream,
                             void** parameters, void** extra) {
  return launch(function, own(stream), parameters, extra, [&] {
    return real().cuLaunchKernel_ptsz(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                                      shared_bytes, stream, parameters, extra);
  });
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                   unsigned grid_z, unsigned block_x, unsigned block_y,
                                   unsigned block_z, unsigned shared_bytes, CUstream stream,
                                   void** parameters) {
  return launch(function, stream, parameters, nullptr, [&] {
    return real().cuLaunchCooperativeKernel(function, grid_x, grid_y, grid_z, block_x, block_y,
                                            block_z, shared_bytes, stream, parameters);
  });
}
CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y,
                                        unsigned grid_z, unsigned block_x, unsigned block_y,
                                        unsigned block_z, unsigned shared_bytes, CUstream stream,
                                        void** parameters) {
  return launch(function, own(stream), parameters, nullptr, [&] {
    return real().cuLaunchCooperativeKernel_ptsz(function, grid_x, grid_y, grid_z, block_x,
                                                 block_y, block_z, shared_bytes, stream,
                                                 parameters);
  });
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                          void** extra) {
  return launch(function, config ? config->hStream : nullptr, parameters, extra, [&] {
    return real().cuLaunchKernelEx(config, function, parameters, extra);
  });
}
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction function,
                               void** parameters, void** extra) {
  return launch(function, own(config ? config->hStream : nullptr), parameters, extra, [&] {
    return real().cuLaunchKernelEx_ptsz(config, function, parameters, extra);
  });
}

CUresult cuLaunchCooperativeKernelMultiDevice(void* launches, unsigned count, unsigned flags) {
  const CUresult result = launch_unknown(nullptr, [&] {
    return real().cuLaunchCooperativeKernelMultiDevice(launches, count, flags);
  });
  enqueued_somewhere();
  return result;
}
CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
  return launch_unknown(stream, [&] {
    return real().cuLaunchGridAsync(function, width, height, stream);
  });
}
CUresult cuLaunchGrid(CUfunction function, int width, int height) {
  return launch_unknown(nullptr, [&] { return real().cuLaunchGrid(function, width, height); });
}
CUresult cuLaunch(CUfunction function) {
  return launch_unknown(nullptr, [&] { return real().cuLaunch(function); });
}

CUresult cuModuleUnload(CUmodule module) {
  const CUresult result = real().cuModuleUnload(module);
  if (result == CUDA_SUCCESS) {
    kernels().forget();
    forget_globals(module);
    forget_image(module);
  }
  return result;
}
CUresult cuLibraryUnload(CUlibrary library) {
  const CUresult result = real().cuLibraryUnload(library);
  if (result == CUDA_SUCCESS) {
    kernels().forget();
    forget_globals(library);
    forget_image(library);
  }
  return result;
}

// A module's variables may hold addresses that the host copies there. The tables know these by the
// variables' addresses; this notes when the variables end.
CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module,
                              const char* name) {
  return note_global(module, address, bytes, [&](CUdeviceptr* at, size_t* size) {
    return real().cuModuleGetGlobal_v2(at, size, module, name);
  });
}
CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library,
                            const char* name) {
  return note_global(library, address, bytes, [&](CUdeviceptr* at, size_t* size) {
    return real().cuLibraryGetGlobal(at, size, library, name);
  });
}

}  // namespace firn::preload
