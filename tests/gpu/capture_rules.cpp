// What may be called while a stream is captured: prints what the driver answers and how each
// capture ends, which must be the same with and without Firn.
#include <cstdint>
#include <thread>

#include "tests/gpu/program.h"

namespace {
constexpr int modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                         CU_STREAM_CAPTURE_MODE_RELAXED};

void say(const char* what, int a, int b, CUresult result) {
  const char* name = "?";
  (void)cuGetErrorName(result, &name);
  std::printf("%s %d %d: %s\n", what, a, b, name);
}

/// Calls within a capture of `mode`, by a thread whose own mode is `own`.
template <class Call>
void within(const Gpu& gpu, const char* what, int mode, int own, bool other_thread, Call&& call) {
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  DO(cuStreamBeginCapture(stream, static_cast<CUstreamCaptureMode>(mode)));
  CUresult answer = CUDA_SUCCESS;
  const auto do_it = [&] {
    DO(cuCtxSetCurrent(gpu.context));
    auto before = static_cast<CUstreamCaptureMode>(own);
    DO(cuThreadExchangeStreamCaptureMode(&before));
    answer = call();
    DO(cuThreadExchangeStreamCaptureMode(&before));
  };
  if (other_thread)
    std::thread(do_it).join();
  else
    do_it();
  say(what, mode, own, answer);
  say("  and the capture", mode, own, cuStreamEndCapture(stream, &graph));
  if (graph) DO(cuGraphDestroy(graph));
  DO(cuStreamDestroy(stream));
}
}  // namespace

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  Block block = make(1 << 20);
  fill(gpu, block, 1);
  DO(cuCtxSynchronize());
  CUdeviceptr made = 0;
  size_t pitch = 0;
  for (int mode : modes)
    for (int own : modes)
      for (bool other : {false, true}) {
        std::printf("another thread: %d\n", other);
        within(gpu, "allocate", mode, own, other, [&] { return cuMemAlloc(&made, 4 << 20); });
        if (made) DO(cuMemFree(made));
        made = 0;
        within(gpu, "rows", mode, own, other,
               [&] { return cuMemAllocPitch(&made, &pitch, 1000, 1000, 4); });
        if (made) DO(cuMemFree(made));
        made = 0;
        Block freed = make(1 << 20);
        CUresult first = CUDA_SUCCESS;
        within(gpu, "free", mode, own, other, [&] { return first = cuMemFree(freed.address); });
        if (first != CUDA_SUCCESS) end(freed);
        DO(cuCtxSynchronize());
        say("it is gone", mode, own, cuMemsetD32(freed.address, 1, 16));
        within(gpu, "free nothing", mode, own, other, [&] { return cuMemFree(12345); });
        within(gpu, "wait", mode, own, other, [&] { return cuCtxSynchronize(); });
      }
  // A capture that ends with its stream is none any more.
  CUstream stream = nullptr;
  DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  DO(cuStreamDestroy(stream));
  say("allocate then", 0, 0, cuMemAlloc(&made, 4 << 20));
  add_to_digest(block);
  return finish();
}
