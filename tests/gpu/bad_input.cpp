// Wrong calls: prints what the driver answers, one line each, which must be the same with and
// without Firn, and a crash in neither. Lines that begin with ~ may differ: under Firn a device's
// primary context, on which its engine stands, is emptied and lives on.
#include <cstdint>
#include <cstring>

#include "tests/gpu/program.h"

namespace {
void say(const char* what, CUresult result) {
  const char* name = "?";
  (void)cuGetErrorName(result, &name);
  std::printf("%s: %s\n", what, name);
}
CUresult run(CUfunction kernel, void** arguments, void** extra, CUstream stream = nullptr) {
  return cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, extra);
}

void blocks(const Block& block, CUdeviceptr freed) {
  std::vector<char> host(1 << 20);
  CUdeviceptr address = 0;
  size_t bytes = 0;
  say("no room for the address", cuMemAlloc(nullptr, 64));
  say("no bytes", cuMemAlloc(&address, 0));
  say("more than there is", cuMemAlloc(&address, size_t{1} << 45));
  say("element of 3", cuMemAllocPitch(&address, &bytes, 64, 64, 3));
  say("no rows", cuMemAllocPitch(&address, &bytes, 64, 0, 4));
  say("free nothing", cuMemFree(0));
  say("free within", cuMemFree(block.address + 512));
  say("free again", cuMemFree(freed));
  say("free again on a stream", cuMemFreeAsync(freed, nullptr));
  say("free the host's", cuMemFree(reinterpret_cast<CUdeviceptr>(host.data())));
  say("copy past the end",
      cuMemcpyHtoD(block.address + block.bytes() - 8, host.data(), 4096));
  say("copy from past the end",
      cuMemcpyDtoH(host.data(), block.address + block.bytes() - 8, 4096));
  say("copy within past the end",
      cuMemcpyDtoD(block.address, block.address + block.bytes() - 8, 4096));
  say("copy to freed memory", cuMemcpyHtoD(freed, host.data(), 64));
  say("copy from freed memory", cuMemcpyDtoH(host.data(), freed, 64));
  say("fill freed memory", cuMemsetD32(freed, 1, 16));
  say("fill past the end", cuMemsetD32(block.address + block.bytes() - 8, 1, 1 << 20));
  say("fill at an odd place", cuMemsetD32(block.address + 2, 1, 16));
  say("copy from null", cuMemcpyHtoD(block.address, nullptr, 64));
  say("copy to null", cuMemcpyDtoH(nullptr, block.address, 64));
  say("copy nothing from null", cuMemcpyHtoD(block.address, nullptr, 0));
  say("copy to null on the device", cuMemcpyHtoD(0, host.data(), 64));
  say("no structure", cuMemcpy2D(nullptr));
  unsigned type = 0;
  say("attribute of freed memory",
      cuPointerGetAttribute(&type, static_cast<CUpointer_attribute>(2), freed));
  say("attribute of nobody's number",
      cuPointerGetAttribute(&type, static_cast<CUpointer_attribute>(2), 12345));
  say("unknown attribute",
      cuPointerGetAttribute(&type, static_cast<CUpointer_attribute>(12345), block.address));
  say("host pointer of device memory",
      cuPointerGetAttribute(&type, static_cast<CUpointer_attribute>(4), block.address));
  say("attribute", cuPointerGetAttribute(&type, static_cast<CUpointer_attribute>(2),
                                         block.address + 100));
  EXPECT(type == 2);
  say("range of freed memory", cuMemGetAddressRange(&address, &bytes, freed));
  say("range", cuMemGetAddressRange(&address, &bytes, block.address + 100));
  EXPECT(address == block.address && bytes == block.bytes());
}

/// Sizes whose products and sums are more than a number holds.
void overflows(const Block& block) {
  constexpr auto host_memory = static_cast<CUmemorytype>(1);
  constexpr auto device_memory = static_cast<CUmemorytype>(2);
  std::vector<char> host(4096);
  CUdeviceptr address = 0;
  size_t bytes = 0;
  say("a width that rounds up to nothing", cuMemAllocPitch(&address, &bytes, SIZE_MAX, 1, 4));
  say("rows that come to nothing",
      cuMemAllocPitch(&address, &bytes, size_t{1} << 30, size_t{1} << 34, 4));
  say("fill as wide as nothing", cuMemsetD32(block.address, 1, size_t{1} << 62));
  say("fill rows as wide as nothing",
      cuMemsetD2D32(block.address, 64, 1, (size_t{1} << 62) + 1, 2));
  say("fill rows that end where they began",
      cuMemsetD2D8(block.address, size_t{1} << 63, 1, 64, 3));
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = host_memory, rows.srcHost = host.data(), rows.srcPitch = 64;
  rows.dstMemoryType = device_memory, rows.dstDevice = block.address;
  rows.WidthInBytes = 64, rows.Height = 3, rows.dstPitch = size_t{1} << 63;
  say("copy of rows that end where they began", cuMemcpy2D(&rows));
  CUDA_MEMCPY3D slices{};
  slices.srcMemoryType = host_memory, slices.srcHost = host.data(), slices.srcPitch = 64;
  slices.dstMemoryType = device_memory, slices.dstDevice = block.address;
  slices.WidthInBytes = 64, slices.Height = 1, slices.Depth = 2, slices.srcHeight = 1;
  slices.dstPitch = 1u << 30, slices.dstHeight = size_t{1} << 34;
  say("copy of slices that end where they began", cuMemcpy3D(&slices));
  say("then", cuCtxSynchronize());
}

/// How wide the driver's answers are about a pointer: callers read as much, and have room for no more.
void widths(const Block& block) {
  constexpr int attributes_last = 20, p2p_tokens = 5;
  for (int attribute = 1; attribute <= attributes_last; ++attribute) {
    if (attribute == p2p_tokens) continue;  // of pinned memory for old kernel modules
    size_t wide = 0;
    CUresult result = CUDA_SUCCESS;
    for (const int canary : {0xa5, 0x5a}) {
      unsigned char answer[64];
      std::memset(answer, canary, sizeof answer);
      result = cuPointerGetAttribute(answer, static_cast<CUpointer_attribute>(attribute),
                                     block.address + 100);
      for (size_t i = 0; i < sizeof answer; ++i)
        if (answer[i] != canary && i + 1 > wide) wide = i + 1;
    }
    char name[64];
    std::snprintf(name, sizeof name, "attribute %d, %zu bytes", attribute, wide);
    say(name, result);
  }
}

void launches(const Gpu& gpu, const Block& block, CUdeviceptr freed) {
  CUfunction kernel = gpu.kernel("fill");
  unsigned long long none = 0, count = 16;
  Word seed = 1;
  CUdeviceptr address = block.address;
  say("no function", run(nullptr, nullptr, nullptr));
  void* missing[] = {&address, &count, nullptr};
  say("a parameter is missing", run(kernel, missing, nullptr));
  say("all parameters are missing", run(kernel, nullptr, nullptr));
  void* all[] = {&address, &none, &seed};
  size_t bytes = 4;
  void* extra[] = {reinterpret_cast<void*>(1), &address, reinterpret_cast<void*>(2), &bytes,
                   nullptr};
  say("both ways of parameters", run(kernel, all, extra));
  say("too short a buffer", run(kernel, nullptr, extra));
  void* odd[] = {reinterpret_cast<void*>(9), &address, nullptr};
  say("an unknown mark", run(kernel, nullptr, odd));
  say("empty grid", cuLaunchKernel(kernel, 0, 1, 1, 1, 1, 1, 0, nullptr, all, nullptr));
  // Addresses that the kernel is given and does not use.
  for (CUdeviceptr unused : {freed, block.address + block.bytes(), block.address - 4,
                             CUdeviceptr{7}, ~CUdeviceptr{0}}) {
    address = unused;
    say("an address of nothing", run(kernel, all, nullptr));
  }
  say("then", cuCtxSynchronize());
}

void state(const char* what, CUdevice device) {
  unsigned flags = 0;
  int active = -1;
  say(what, cuDevicePrimaryCtxGetState(device, &flags, &active));
  std::printf("active: %d\n", active);
}

void contexts(const Gpu& gpu, const Block& block) {
  CUcontext other = nullptr;
  CUstream theirs = nullptr;
  CUdeviceptr memory = 0;
  DO(MAKE_CONTEXT(&other, gpu.device));
  DO(cuStreamCreate(&theirs, CU_STREAM_NON_BLOCKING));
  say("memory of another context", cuMemAlloc(&memory, 4 << 20));
  say("used there", cuMemsetD32(memory, 1, 64));
  DO(cuCtxSetCurrent(gpu.context));
  unsigned long long count = 16;
  Word seed = 1;
  CUdeviceptr address = block.address;
  void* all[] = {&address, &count, &seed};
  say("another context's stream", run(gpu.kernel("fill"), all, nullptr, theirs));
  say("copied there", cuMemcpyDtoDAsync(block.address, memory, 256, theirs));
  say("and waited for", cuStreamSynchronize(theirs));
  say("freed from here", cuMemFree(memory));
  say("destroyed", cuCtxDestroy(other));
  say("and freed then", cuMemFree(memory));
  say("and used then", cuMemsetD32(memory, 1, 64));
  say("the primary one is not destroyed so", cuCtxDestroy(gpu.context));
  DO(cuCtxSetCurrent(gpu.context));
}
}  // namespace

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  Block block = make(1 << 20), freed = make(1 << 20), small = make(64);
  const CUdeviceptr gone = freed.address;
  fill(gpu, block, 1);
  fill(gpu, small, 1);
  end(freed);
  overflows(block);
  blocks(block, gone);
  widths(block);
  launches(gpu, block, gone);
  contexts(gpu, block);
  DO(cuMemFree(small.address));
  // All goes with the context; then everything begins anew.
  say("reset", cuDevicePrimaryCtxReset(gpu.device));
  say("~ freed after that", cuMemFree(block.address));
  Gpu again(kernels_of(argc, argv));
  Block fresh = make(1 << 20);
  fill(again, fresh, 5);
  add_to_digest(fresh);
  state("a context in use", gpu.device);
  for (int i = 0; i < 3; ++i) {
    say("~ released", cuDevicePrimaryCtxRelease(gpu.device));
    say("~ copied", cuMemsetD32(fresh.address, 1, 16));
  }
  state("and released by all", gpu.device);
  return finish();
}
