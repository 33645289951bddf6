// Kernels and their launches: see launch.h.
#include "backing/gpu/software/nccl/launch.h"

#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <string>

namespace firn::nccl {
namespace {

// NCCL's kernels take 4 KiB of parameters.
constexpr size_t parameters_most = 4096;

struct Parameters {
  ncclComm* comm;
  const Work* list;  // null: the work follows
  uint64_t taken;    // elements of the list to give back; 0: it is kept (a graph's)
  uint32_t works;
  uint32_t counted;  // the communicator counts this launch: it is no graph's
  Work inlined[(parameters_most - 32) / sizeof(Work)];
};
constexpr size_t inlined_most = std::size(Parameters{}.inlined);
static_assert(sizeof(Parameters) <= parameters_most);

size_t bytes_with(size_t inlined) { return offsetof(Parameters, inlined) + inlined * sizeof(Work); }

void run_kernel(void** parameters, const unsigned*, const unsigned*) {
  const auto& given = *static_cast<const Parameters*>(parameters[0]);
  ncclComm* const comm = given.comm;
  std::vector<Work> works(given.works);
  std::memcpy(static_cast<void*>(works.data()), given.list != nullptr ? given.list : given.inlined,
              given.works * sizeof(Work));
  if (given.taken != 0) comm->list.has_read(given.taken);
  const auto begin = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(comm->one_kernel);
    try {
      if (!comm->signals.abort.load(std::memory_order_acquire))
        run(*comm->shared, comm->signals, works);
    } catch (const Aborted&) {
    }
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  comm->moving_ns += static_cast<uint64_t>(std::chrono::nanoseconds(took).count());
  for (const Work& work : works) comm->moved_bytes += bytes_of(work, comm->shared->ranks());
  // Its last act: a thread that waits for it may then free the communicator.
  if (given.counted != 0) comm->ended.fetch_add(1, std::memory_order_acq_rel);
}

/// Kernels by name and pieces of work inlined (rounded up to limit their number).
ncclResult_t kernel_of(const char* name, size_t inlined, CUfunction* kernel) {
  static std::mutex mutex;
  static auto& kernels = *new std::map<std::pair<std::string, size_t>, CUfunction>;
  const std::lock_guard lock(mutex);
  CUfunction& known = kernels[{name, inlined}];
  if (known == nullptr) {
    const unsigned layout[][2] = {{0, static_cast<unsigned>(bytes_with(inlined))}, {0, 0}};
    void* made = nullptr;
    FIRN_NCCL_TRY(checked("firnGpuKernelCreate",
                          static_cast<CUresult>(driver().kernel_create(
                              (std::string("ncclDevKernel_") + name).c_str(), run_kernel, layout,
                              &made))));
    known = static_cast<CUfunction>(made);
  }
  *kernel = known;
  return ncclSuccess;
}

ncclResult_t is_captured(CUstream stream, bool* captured) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  FIRN_NCCL_TRY(
      checked("cuStreamIsCapturing", driver().cuStreamIsCapturing(stream, &status)));
  *captured = status != CU_STREAM_CAPTURE_STATUS_NONE;
  return ncclSuccess;
}

/// `stream` waits for the present work of `other`.
ncclResult_t follow(CUstream stream, CUstream other) {
  CUevent event = nullptr;
  FIRN_NCCL_TRY(checked("cuEventCreate",
                        driver().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING)));
  CUresult result = driver().cuEventRecord(event, other);
  if (result == CUDA_SUCCESS) result = driver().cuStreamWaitEvent(stream, event, 0);
  (void)driver().cuEventDestroy(event);
  return checked("cuStreamWaitEvent", result);
}

ncclResult_t place_works(ncclComm_t comm, std::span<const Work> works, bool captured,
                         Parameters& parameters) {
  parameters.comm = comm;
  parameters.works = static_cast<uint32_t>(works.size());
  parameters.counted = !captured;
  if (works.size() <= inlined_most) {
    std::memcpy(static_cast<void*>(parameters.inlined), works.data(), works.size_bytes());
    return ncclSuccess;
  }
  if (!captured) return comm->list.write(works, &parameters.list, &parameters.taken);
  comm->captured.emplace_back(new char[works.size_bytes()]);
  std::memcpy(comm->captured.back().get(), works.data(), works.size_bytes());
  parameters.list = reinterpret_cast<const Work*>(comm->captured.back().get());
  return ncclSuccess;
}

ncclResult_t launch_on(ncclComm_t comm, CUstream stream, std::span<const Work> works,
                       bool captured) {
  Parameters parameters{};
  FIRN_NCCL_TRY(place_works(comm, works, captured, parameters));
  size_t inlined = 0;
  if (parameters.list == nullptr)
    for (inlined = 1; inlined < works.size();) inlined *= 2;
  inlined = std::min(inlined, inlined_most);
  CUfunction kernel = nullptr;
  FIRN_NCCL_TRY(kernel_of(name_of(works.front().function), inlined, &kernel));
  size_t bytes = bytes_with(inlined);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &parameters, CU_LAUNCH_PARAM_BUFFER_SIZE,
                   &bytes, CU_LAUNCH_PARAM_END};
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 512;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  if (!captured) comm->enqueued.fetch_add(1, std::memory_order_acq_rel);
  const CUresult result = driver().cuLaunchKernelEx(&config, kernel, nullptr, extra);
  if (result == CUDA_SUCCESS) return ncclSuccess;
  if (!captured) comm->ended.fetch_add(1, std::memory_order_acq_rel);
  if (parameters.taken != 0) comm->list.has_read(parameters.taken);
  return checked("cuLaunchKernelEx", result);
}

}  // namespace

ncclResult_t launch(ncclComm_t comm, std::span<const CUstream> streams,
                    std::span<const Work> works) {
  const InContext in(comm->context);
  const CUstream stream = streams.front();
  bool captured = false;
  FIRN_NCCL_TRY(is_captured(stream, &captured));
  for (CUstream other : streams.subspan(1)) FIRN_NCCL_TRY(follow(stream, other));
  // One communicator's kernels run in the order of their launches, whatever their streams.
  if (!captured && comm->launched && comm->last_stream != stream)
    FIRN_NCCL_TRY(checked("cuStreamWaitEvent",
                          driver().cuStreamWaitEvent(stream, comm->behind, 0)));
  FIRN_NCCL_TRY(launch_on(comm, stream, works, captured));
  if (!captured) {
    FIRN_NCCL_TRY(checked("cuEventRecord", driver().cuEventRecord(comm->behind, stream)));
    comm->launched = true;
    comm->last_stream = stream;
  }
  for (CUstream other : streams.subspan(1)) FIRN_NCCL_TRY(follow(other, stream));
  return ncclSuccess;
}

}  // namespace firn::nccl
