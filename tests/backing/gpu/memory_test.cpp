// Memory: capacity, counts, peaks, contents, several devices; a fuzz against a naive model.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>

#include "fixture.h"

namespace {

using Memory = SoftwareGpu;

TEST_F(Memory, terabyte_reservation) {
  const CUdeviceptr address = reserve(size_t{1} << 40);
  EXPECT_EQ(address % granule, 0u);
  OK(cuMemAddressFree(address, size_t{1} << 40));
}

TEST_F(Memory, reservation_at_a_hint_and_alignment) {
  const CUdeviceptr first = reserve(granule);
  OK(cuMemAddressFree(first, granule));
  CUdeviceptr again = 0;
  OK(cuMemAddressReserve(&again, granule, 0, first, 0));
  EXPECT_EQ(again, first);
  CUdeviceptr aligned = 0;
  OK(cuMemAddressReserve(&aligned, granule, size_t{1} << 30, 0, 0));
  EXPECT_EQ(aligned % (size_t{1} << 30), 0u);
}

TEST_F(Memory, capacity_is_shared_by_frames_and_linear_memory) {
  const auto first = frame(32 * MiB);
  CUdeviceptr linear = 0;
  OK(cuMemAlloc_v2(&linear, 30 * MiB));
  size_t free_bytes = 0, total = 0;
  OK(cuMemGetInfo_v2(&free_bytes, &total));
  EXPECT_EQ(free_bytes, granule);
  EXPECT_EQ(total, 64 * MiB);
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp p = prop();
  EXPECT_EQ(cuMemCreate(&handle, 2 * granule, &p, 0), CUDA_ERROR_OUT_OF_MEMORY);
  CUdeviceptr more = 0;
  EXPECT_EQ(cuMemAlloc_v2(&more, 3 * MiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc_v2(&more, size_t{1} << 62), CUDA_ERROR_OUT_OF_MEMORY);
  OK(cuMemCreate(&handle, granule, &p, 0));
  EXPECT_EQ(counts().used_bytes_peak, 64 * MiB);
  OK(cuMemRelease(handle));
  OK(cuMemRelease(first));
  OK(cuMemFree_v2(linear));
  EXPECT_EQ(counts().frame_bytes, 0u);
  EXPECT_EQ(counts().malloc_bytes, 0u);
  EXPECT_EQ(counts().frame_bytes_peak, 34 * MiB);
  firnGpuResetPeaks(0);
  EXPECT_EQ(counts().used_bytes_peak, 0u);
}

TEST_F(Memory, small_allocations_share_a_granule) {
  CUdeviceptr a = 0, b = 0;
  OK(cuMemAlloc_v2(&a, 1));
  OK(cuMemAlloc_v2(&b, 100));
  EXPECT_NE(a, b);
  EXPECT_EQ(counts().malloc_bytes, granule);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  OK(cuMemGetAddressRange_v2(&base, &bytes, b + 99));
  EXPECT_EQ(base, b);
  EXPECT_EQ(bytes, 100u);
  EXPECT_EQ(cuMemGetAddressRange_v2(&base, &bytes, b + 100), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuMemFree_v2(a + 1), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemFree_v2(a));
  OK(cuMemFree_v2(b));
  EXPECT_EQ(cuMemFree_v2(b), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(counts().malloc_bytes, 0u);
}

TEST_F(Memory, frames_come_back_without_old_bytes) {
  const CUdeviceptr first = mapped();
  std::memset(reinterpret_cast<void*>(first), 0xee, granule);
  OK(cuMemUnmap(first, granule));
  const CUdeviceptr second = mapped();
  const auto* bytes = reinterpret_cast<const unsigned char*>(second);
  for (size_t i = 0; i < granule; i += 511) ASSERT_EQ(bytes[i], 0) << i;
}

/// Bytes that the system holds for the frames of device 0, mapped or not.
uint64_t frame_file_bytes() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    struct stat about{};
    if (target.find("firn-gpu0-frames") != std::string::npos &&
        ::stat(entry.path().c_str(), &about) == 0)
      return static_cast<uint64_t>(about.st_blocks) * 512;
  }
  ADD_FAILURE() << "no file of frames";
  return 0;
}

// Pages of released frames serve the next ones, up to 256 MiB of them.
TEST_F(Memory, pages_of_released_frames_are_kept_up_to_a_limit) {
  FirnGpuConfig config{};
  config.memory_bytes = 1024 * MiB;
  start(config);
  std::vector<CUdeviceptr> frames;
  for (unsigned i = 0; i < 10; ++i) {
    frames.push_back(mapped(32 * MiB));
    std::memset(reinterpret_cast<void*>(frames.back()), 0xee, 32 * MiB);
  }
  EXPECT_EQ(frame_file_bytes(), 320 * MiB);
  for (const CUdeviceptr each : frames) OK(cuMemUnmap(each, 32 * MiB));
  EXPECT_EQ(counts().frame_bytes, 0u);
  EXPECT_EQ(frame_file_bytes(), 256 * MiB);
  const CUdeviceptr again = mapped(32 * MiB);  // the first of them
  EXPECT_EQ(frame_file_bytes(), 256 * MiB);
  OK(cuMemUnmap(again, 32 * MiB));
  // One that was never mapped leaves nothing behind.
  const auto handle = frame(320 * MiB);
  OK(cuMemRelease(handle));
  EXPECT_EQ(frame_file_bytes(), 0u);
}

// A released frame's memory goes back to the system: used far beyond capacity in turn, what the
// process holds stays flat.
TEST_F(Memory, released_memory_is_given_back) {
  auto shared_kib = [] {
    std::FILE* file = std::fopen("/proc/self/status", "r");
    char line[256];
    long kib = -1;
    while (file && std::fgets(line, sizeof line, file))
      if (std::sscanf(line, "RssShmem: %ld", &kib) == 1) break;
    if (file) std::fclose(file);
    return kib;
  };
  const long before = shared_kib();
  for (int i = 0; i < 40; ++i) {
    const CUdeviceptr address = mapped(32 * MiB);
    std::memset(reinterpret_cast<void*>(address), i, 32 * MiB);
    OK(cuMemUnmap(address, 32 * MiB));
    OK(cuMemAddressFree(address, 32 * MiB));
  }
  EXPECT_LT(shared_kib() - before, 1024);
}

TEST_F(Memory, one_frame_mapped_twice_is_one_memory) {
  const auto handle = frame();
  const CUdeviceptr a = reserve(granule), b = reserve(granule);
  const CUmemAccessDesc all = access();
  for (CUdeviceptr at : {a, b}) {
    OK(cuMemMap(at, granule, 0, handle, 0));
    OK(cuMemSetAccess(at, granule, &all, 1));
  }
  *reinterpret_cast<int*>(a) = 42;
  EXPECT_EQ(*reinterpret_cast<int*>(b), 42);
  EXPECT_EQ(counts().frame_bytes, granule);
  EXPECT_EQ(counts().mapped_bytes, 2 * granule);
}

TEST_F(Memory, host_numa_frames_are_not_the_devices) {
  CUmemAllocationProp p = prop();
  p.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  CUmemGenericAllocationHandle handle = 0;
  OK(cuMemCreate(&handle, 128 * MiB, &p, 0));  // twice the device's capacity
  EXPECT_EQ(counts().frame_bytes, 0u);
  const CUdeviceptr address = reserve(128 * MiB);
  OK(cuMemMap(address, 128 * MiB, 0, handle, 0));
  const CUmemAccessDesc a = access();
  OK(cuMemSetAccess(address, 128 * MiB, &a, 1));
  OK(cuMemsetD8_v2(address, 3, 128 * MiB));
  OK(cuCtxSynchronize());
  EXPECT_EQ(*reinterpret_cast<char*>(address + 128 * MiB - 1), 3);
  OK(cuMemUnmap(address, 128 * MiB));
  OK(cuMemRelease(handle));
}

TEST_F(Memory, exported_frames) {
  CUmemAllocationProp p = prop();
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0, imported = 0;
  OK(cuMemCreate(&handle, granule, &p, 0));
  int fd = -1;
  OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  OK(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  ASSERT_EQ(::close(fd), 0);
  const CUdeviceptr a = reserve(granule), b = reserve(granule);
  const CUmemAccessDesc all = access();
  OK(cuMemMap(a, granule, 0, handle, 0));
  OK(cuMemMap(b, granule, 0, imported, 0));
  OK(cuMemSetAccess(a, granule, &all, 1));
  OK(cuMemSetAccess(b, granule, &all, 1));
  *reinterpret_cast<int*>(a) = 7;
  EXPECT_EQ(*reinterpret_cast<int*>(b), 7);
  EXPECT_EQ(counts().frame_bytes, granule);
  // Whoever imported it has it as long as he wants.
  OK(cuMemUnmap(a, granule));
  OK(cuMemRelease(handle));
  mapped();
  EXPECT_EQ(*reinterpret_cast<int*>(b), 7);
  CUmemGenericAllocationHandle plain = frame();
  EXPECT_EQ(cuMemExportToShareableHandle(&fd, plain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_ERROR_NOT_PERMITTED);
}

TEST_F(Memory, pointer_attributes) {
  CUdeviceptr linear = 0;
  OK(cuMemAlloc_v2(&linear, 1000));
  void* host = nullptr;
  OK(cuMemAllocHost_v2(&host, 1000));
  const CUdeviceptr frames = mapped();
  using namespace firn;
  using namespace firn::software;
  auto type_of = [](CUdeviceptr address) {
    unsigned type = 0;
    return cuPointerGetAttribute(&type, pointer_memory_type, address) == CUDA_SUCCESS ? type : 0;
  };
  EXPECT_EQ(type_of(linear + 10), memory_device);
  EXPECT_EQ(type_of(frames + 10), memory_device);
  EXPECT_EQ(type_of(reinterpret_cast<CUdeviceptr>(host)), memory_host);
  EXPECT_EQ(type_of(reinterpret_cast<CUdeviceptr>(&linear)), 0u);
  EXPECT_EQ(type_of(reserve(granule)), 0u);
  CUcontext of = nullptr;
  OK(cuPointerGetAttribute(&of, pointer_context, linear));
  EXPECT_EQ(of, context);
  int ordinal = 5;
  unsigned type = 5;
  int wanted[] = {pointer_device_ordinal, pointer_memory_type};
  void* out[] = {&ordinal, &type};
  OK(cuPointerGetAttributes(2, wanted, out, reinterpret_cast<CUdeviceptr>(&linear)));
  EXPECT_EQ(ordinal, -2);
  EXPECT_EQ(type, 0u);
  OK(cuPointerGetAttributes(2, wanted, out, frames));
  EXPECT_EQ(ordinal, 0);
  EXPECT_EQ(type, unsigned{memory_device});
}

TEST_F(Memory, several_devices) {
  FirnGpuConfig config{};
  config.devices = 3;
  start(config);
  CUcontext second = nullptr;
  OK(cuDevicePrimaryCtxRetain(&second, 1));
  const CUdeviceptr here = mapped(granule, 0), there = mapped(granule, 1);
  EXPECT_EQ(counts(0).frame_bytes, granule);
  EXPECT_EQ(counts(1).frame_bytes, granule);
  EXPECT_EQ(counts(2).frame_bytes, 0u);
  OK(cuMemsetD8_v2(here, 9, granule));
  // Neither device may use the other's frames: only a copy between the contexts can.
  EXPECT_EQ(cuMemcpyDtoD_v2(there, here, granule), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyAsync(here, there, granule, nullptr), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemcpyPeerAsync(there, second, here, context, granule, nullptr));
  OK(cuCtxSynchronize());
  EXPECT_EQ(*reinterpret_cast<char*>(there + 77), 9);
  const CUmemAccessDesc opened = access(0);
  OK(cuMemSetAccess(there, granule, &opened, 1));
  OK(cuMemcpyDtoD_v2(there, here, granule));
  OK(cuCtxSynchronize());
  int can = 0;
  OK(cuDeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 1);
  OK(cuCtxEnablePeerAccess(second, 0));
  EXPECT_EQ(cuCtxEnablePeerAccess(second, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  OK(cuCtxDisablePeerAccess(second));
  EXPECT_EQ(cuCtxDisablePeerAccess(second), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  // A kernel goes to a stream of the current context only.
  void* kernel = nullptr;
  OK(static_cast<CUresult>(firnGpuKernelCreate(
      "nothing", [](void**, const unsigned*, const unsigned*) {}, nullptr, &kernel)));
  const CUstream mine = stream();
  OK(cuCtxSetCurrent(second));
  EXPECT_EQ(cuLaunchKernel(static_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, mine, nullptr,
                           nullptr),
            CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(Memory, primary_context_lives_by_its_references) {
  unsigned flags = 0;
  int active = 0;
  OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(active, 1);
  CUdeviceptr linear = 0;
  OK(cuMemAlloc_v2(&linear, MiB));
  OK(cuDevicePrimaryCtxRelease_v2(0));
  OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(active, 0);
  EXPECT_EQ(counts().malloc_bytes, 0u);
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuMemAlloc_v2(&linear, MiB), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

TEST_F(Memory, pitched_copies) {
  CUdeviceptr address = 0;
  size_t pitch = 0;
  OK(cuMemAllocPitch_v2(&address, &pitch, 100, 7, 4));
  EXPECT_EQ(pitch % 512, 0u);
  std::vector<char> from(100 * 7), to(100 * 7);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 7);
  CUDA_MEMCPY2D in{};
  in.srcMemoryType = firn::memory_host;
  in.srcHost = from.data();
  in.srcPitch = 100;
  in.dstMemoryType = firn::memory_device;
  in.dstDevice = address;
  in.dstPitch = pitch;
  in.WidthInBytes = 100;
  in.Height = 7;
  OK(cuMemcpy2D_v2(&in));
  CUDA_MEMCPY2D out{};
  out.srcMemoryType = firn::memory_device;
  out.srcDevice = address;
  out.srcPitch = pitch;
  out.dstMemoryType = firn::memory_host;
  out.dstHost = to.data();
  out.dstPitch = 100;
  out.WidthInBytes = 100;
  out.Height = 7;
  OK(cuMemcpy2D_v2(&out));
  EXPECT_EQ(from, to);
}

// Random reserve, create, map, unmap, release and linear allocations, checked after every step
// against what a list of them says: counts, peaks, contents. FIRN_TEST_SEED replays one.
TEST_F(Memory, fuzz_against_a_model) {
  struct Block {
    size_t bytes;
    unsigned char value;
    bool linear;
  };
  const char* replay = std::getenv("FIRN_TEST_SEED");
  const unsigned first = replay ? static_cast<unsigned>(std::atoi(replay)) : 1;
  for (unsigned seed = first; seed < first + (replay ? 1 : 30); ++seed) {
    SCOPED_TRACE("replay: FIRN_TEST_SEED=" + std::to_string(seed) +
                 " gpu_memory_test --gtest_filter=Memory.fuzz_against_a_model");
    start();
    std::mt19937 random(seed);
    std::map<CUdeviceptr, Block> live;
    size_t frames = 0, granules = 0, peak = 0;
    const CUmemAllocationProp p = prop();
    const CUmemAccessDesc a = access();
    for (int step = 0; step < 300; ++step) {
      if (random() % 2 || live.empty()) {
        const size_t bytes = (1 + random() % 6) * granule;
        const bool linear = random() % 3 == 0, fits = frames + granules + bytes <= 64 * MiB;
        CUdeviceptr address = 0;
        CUmemGenericAllocationHandle handle = 0;
        const CUresult result =
            linear ? cuMemAlloc_v2(&address, bytes) : cuMemCreate(&handle, bytes, &p, 0);
        ASSERT_EQ(result, fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
        if (!fits) continue;
        if (!linear) {
          address = reserve(bytes);
          OK(cuMemMap(address, bytes, 0, handle, 0));
          OK(cuMemSetAccess(address, bytes, &a, 1));
          OK(cuMemRelease(handle));
        }
        (linear ? granules : frames) += bytes;
        peak = std::max(peak, frames + granules);
        const auto value = static_cast<unsigned char>(random());
        for (CUdeviceptr at : {address, address + bytes - 4096})
          OK(cuMemsetD8_v2(at, value, 4096));
        OK(cuCtxSynchronize());
        live[address] = {bytes, value, linear};
      } else {
        auto it = std::next(live.begin(), static_cast<long>(random() % live.size()));
        const auto [address, block] = *it;
        const auto* bytes = reinterpret_cast<const unsigned char*>(address);
        for (size_t i = 0; i < 4096; i += 63) {
          ASSERT_EQ(bytes[i], block.value);
          ASSERT_EQ(bytes[block.bytes - 1 - i], block.value);
        }
        if (block.linear) {
          OK(cuMemFree_v2(address));
        } else {
          OK(cuMemUnmap(address, block.bytes));
          OK(cuMemAddressFree(address, block.bytes));
        }
        (block.linear ? granules : frames) -= block.bytes;
        live.erase(it);
      }
      const FirnGpuCounts now = counts();
      ASSERT_EQ(now.frame_bytes, frames);
      ASSERT_EQ(now.mapped_bytes, frames);
      ASSERT_EQ(now.malloc_bytes, granules);
      ASSERT_EQ(now.used_bytes_peak, peak);
    }
  }
}

}  // namespace
