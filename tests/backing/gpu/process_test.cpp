// Errors on demand, settings from the environment, fork, exit, cuGetProcAddress.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>

#include "fixture.h"
#include "tests/backing/store/children.h"

namespace {

using Faults = SoftwareGpu;

TEST_F(Faults, nth_call_fails_and_does_nothing) {
  firnGpuFailAt("cuMemCreate", 2, CUDA_ERROR_OUT_OF_MEMORY);
  const CUmemAllocationProp p = prop();
  CUmemGenericAllocationHandle handle = 0;
  OK(cuMemCreate(&handle, granule, &p, 0));
  handle = 77;
  EXPECT_EQ(cuMemCreate(&handle, granule, &p, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(handle, 77u);
  EXPECT_EQ(counts().frames, 1u);
  OK(cuMemCreate(&handle, granule, &p, 0));
  firnGpuFailAt("cuMemCreate", 1, CUDA_ERROR_UNKNOWN);
  firnGpuFailAt("cuMemCreate", 0, 0);  // cleared
  OK(cuMemCreate(&handle, granule, &p, 0));
}

TEST_F(Faults, any_call) {
  const uint64_t before = firnGpuFallibleCalls();
  const CUstream s = stream();
  const CUevent e = event();
  EXPECT_EQ(firnGpuFallibleCalls(), before + 2);
  firnGpuFailAt("*", 3, CUDA_ERROR_LAUNCH_FAILED);
  OK(cuEventRecord(e, s));
  OK(cuEventQuery(e));
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_ERROR_LAUNCH_FAILED);
  OK(cuStreamSynchronize(s));
}

TEST_F(Faults, rate_is_drawn_from_the_seed) {
  auto pattern = [](uint64_t seed) {
    firnGpuFailRate("cuStreamQuery", 0.3, seed, CUDA_ERROR_UNKNOWN);
    std::string result;
    for (int i = 0; i < 200; ++i) result += cuStreamQuery(nullptr) == CUDA_SUCCESS ? '.' : 'x';
    firnGpuFailRate("cuStreamQuery", 0, 0, 0);
    return result;
  };
  const std::string first = pattern(1);
  EXPECT_EQ(first, pattern(1));
  EXPECT_NE(first, pattern(2));
  const auto failures = std::count(first.begin(), first.end(), 'x');
  EXPECT_GT(failures, 30);
  EXPECT_LT(failures, 95);
  OK(cuStreamQuery(nullptr));
}

// Runs in a child so that cuInit reads the environment afresh; the child's exit status is 0 or the
// line of what failed.
template <class Body>
int in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
#define CHILD(condition) \
  if (!(condition)) return __LINE__ % 200 + 1

class Environment : public SoftwareGpu {
 protected:
  void SetUp() override { firnGpuReset(); }
};

TEST_F(Environment, settings) {
  EXPECT_EXIT(
      {
        ::setenv("FIRN_GPU_DEVICES", "2", 1);
        ::setenv("FIRN_GPU_MEMORY", "48MiB", 1);
        ::setenv("FIRN_GPU_LINK", "1GiB/s", 1);
        ::setenv("FIRN_GPU_CLOCK", "virtual", 1);
        ::setenv("FIRN_GPU_FAIL", "cuMemAlloc:2:2", 1);
        const int status = [] {
          CHILD(cuInit(0) == CUDA_SUCCESS);
          int count = 0;
          CHILD(cuDeviceGetCount(&count) == CUDA_SUCCESS && count == 2);
          CUcontext c = nullptr;
          CHILD(cuDevicePrimaryCtxRetain(&c, 1) == CUDA_SUCCESS);
          CHILD(cuCtxSetCurrent(c) == CUDA_SUCCESS);
          size_t total = 0;
          CHILD(cuMemGetInfo_v2(nullptr, &total) == CUDA_SUCCESS && total == 48 * MiB);
          CUdeviceptr address = 0;
          CHILD(cuMemAlloc_v2(&address, MiB) == CUDA_SUCCESS);
          CUdeviceptr second = 0;
          CHILD(cuMemAlloc_v2(&second, MiB) == CUDA_ERROR_OUT_OF_MEMORY);
          CHILD(cuMemAlloc_v2(&second, MiB) == CUDA_SUCCESS);
          std::vector<char> host(MiB);
          CHILD(cuMemcpyHtoD_v2(address, host.data(), MiB) == CUDA_SUCCESS);
          CHILD(firnGpuNow() == 1'000'000'000 / 1024);
          return 0;
        }();
        ::_exit(status);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(Environment, nonsense_is_named) {
  EXPECT_EXIT(
      {
        ::setenv("FIRN_GPU_MEMORY", "much", 1);
        ::_exit(cuInit(0) == CUDA_ERROR_INVALID_VALUE ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "FIRN_GPU_MEMORY=much is not a size");
  EXPECT_EXIT(
      {
        ::setenv("FIRN_GPU_FAIL", "cuMemMap:0:2", 1);
        ::_exit(cuInit(0) == CUDA_ERROR_INVALID_VALUE ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "FIRN_GPU_FAIL=cuMemMap:0:2 is not");
}

/// Work on four streams where no thread can be started any more: after one had to be, or before.
int works_without_threads(bool one_before) {
  ::alarm(30);
  CUcontext c = nullptr;
  CHILD(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&c, 0) == CUDA_SUCCESS);
  CHILD(cuCtxSetCurrent(c) == CUDA_SUCCESS);
  CUstream streams[4] = {};
  for (CUstream& s : streams) CHILD(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  static std::atomic<int> done{0};
  const CUhostFn slow = [](void*) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it has the others wait
    ++done;
  };
  if (one_before) CHILD(cuLaunchHostFunc(streams[0], slow, nullptr) == CUDA_SUCCESS);
  for (const long call : {SYS_clone3, SYS_clone})
    if (!firn::testing_store::refuse_call(call, EAGAIN)) return firn::testing_store::cannot;
  if (!one_before) {  // nobody could ever do it: no work is taken
    CHILD(cuLaunchHostFunc(streams[0], slow, nullptr) == CUDA_ERROR_OUT_OF_MEMORY);
    return 0;
  }
  for (CUstream s : streams) CHILD(cuLaunchHostFunc(s, slow, nullptr) == CUDA_SUCCESS);
  for (CUstream s : streams) CHILD(cuStreamSynchronize(s) == CUDA_SUCCESS);
  CHILD(done == 5);
  return 0;
}

TEST_F(Environment, without_further_threads_work_is_done_one_after_the_other) {
  const auto refused = [] {
    return firn::testing_store::refuse_call(SYS_clone3, EAGAIN) ? 0 : firn::testing_store::cannot;
  };
  if (in_child(refused) != 0) GTEST_SKIP() << "system calls cannot be refused here";
  for (const bool one_before : {false, true})
    EXPECT_EXIT(::_exit(works_without_threads(one_before)), ::testing::ExitedWithCode(0), "");
}

using Fork = SoftwareGpu;

// The child is refused at once, whatever its parent was doing; the parent's bytes stay its own.
TEST_F(Fork, child_is_refused_and_parent_goes_on) {
  const CUdeviceptr address = mapped();
  const CUstream s = stream();
  OK(cuMemsetD8Async(address, 5, granule, s));
  OK(cuStreamSynchronize(s));
  OK(static_cast<CUresult>(firnGpuBusy(s, 5'000'000)));  // a worker is at work while forking
  const int status = in_child([&] {
    int count = 0;
    CHILD(cuInit(0) == CUDA_ERROR_NOT_INITIALIZED);
    CHILD(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED);
    CHILD(cuStreamSynchronize(s) == CUDA_ERROR_NOT_INITIALIZED);
    CHILD(cuMemsetD8Async(address, 6, granule, s) == CUDA_ERROR_NOT_INITIALIZED);
    FirnGpuCounts none{};
    CHILD(firnGpuCounts(0, &none) == -1);
    return 0;
  });
  EXPECT_EQ(status, 0);
  OK(cuStreamSynchronize(s));
  EXPECT_EQ(*reinterpret_cast<char*>(address), 5);
}

TEST_F(Fork, child_does_not_reach_the_gpus_memory) {
  const CUdeviceptr frames = mapped();
  CUdeviceptr linear = 0;
  OK(cuMemAlloc_v2(&linear, granule));
  for (CUdeviceptr address : {frames, linear})
    EXPECT_EQ(in_child([&] {
      ::signal(SIGSEGV, SIG_DFL);
      *reinterpret_cast<volatile char*>(address) = 1;
      return 0;
    }), -SIGSEGV);
}

using Exit = SoftwareGpu;

TEST_F(Exit, with_work_queued_and_running) {
  EXPECT_EXIT(
      {
        const CUstream s = stream();
        for (int i = 0; i < 100; ++i) (void)firnGpuBusy(s, 50'000'000);
        CUdeviceptr address = 0;
        if (cuMemAlloc_v2(&address, MiB) != CUDA_SUCCESS) ::_exit(1);
        (void)cuMemsetD8Async(address, 1, MiB, s);
        std::exit(7);
      },
      ::testing::ExitedWithCode(7), "^$");
}

TEST_F(Exit, calls_after_it_began_are_answered) {
  EXPECT_EXIT(
      {
        static CUresult answer = CUDA_SUCCESS;
        std::atexit([] { ::_exit(answer == CUDA_ERROR_DEINITIALIZED ? 3 : 4); });
        firnGpuReset();
        if (cuInit(0) != CUDA_SUCCESS) ::_exit(1);
        struct Late {
          ~Late() { answer = cuCtxSynchronize(); }
        };
        static Late late;
        // atexit handlers and destructors of statics run in reverse order of registration; the
        // GPU's own was registered by this process's first cuInit, or just now.
        std::exit(0);
      },
      [](int status) { return WIFEXITED(status) && WEXITSTATUS(status) >= 3; }, "");
}

using Addresses = SoftwareGpu;

TEST_F(Addresses, by_version) {
  auto get = [](const char* name, int version, uint64_t flags = 0) {
    void* entry = nullptr;
    int status = -1;
    EXPECT_EQ(cuGetProcAddress_v2(name, &entry, version, flags, &status), CUDA_SUCCESS);
    EXPECT_EQ(entry != nullptr, status == 0) << name;
    return std::pair{entry, status};
  };
  auto symbol = [](const char* name) { return ::dlsym(RTLD_DEFAULT, name); };
  EXPECT_EQ(get("cuMemAlloc", 12000).first, symbol("cuMemAlloc_v2"));
  EXPECT_EQ(get("cuMemAlloc", 2000).second, 2);  // there before, in a version that is not done
  EXPECT_EQ(get("cuMemCreate", 10020).first, symbol("cuMemCreate"));
  EXPECT_EQ(get("cuMemCreate", 10010).second, 2);
  EXPECT_EQ(get("cuMemAlloc_v2", 12000).second, 1);  // base names only
  EXPECT_EQ(get("cuNoSuchEntry", 12000).second, 1);
  EXPECT_EQ(get("cuCtxCreate", 12000).second, 1);  // its version of 11.4 is not done
  EXPECT_EQ(get("cuCtxCreate", 13000).first, symbol("cuCtxCreate_v4"));
  EXPECT_EQ(get("cuStreamGetCaptureInfo", 12000).first, symbol("cuStreamGetCaptureInfo_v2"));
  EXPECT_EQ(get("cuStreamGetCaptureInfo", 12030).first, symbol("cuStreamGetCaptureInfo_v3"));
  EXPECT_EQ(get("cuGetProcAddress", 11030).first, symbol("cuGetProcAddress"));
  EXPECT_EQ(get("cuGetProcAddress", 12000).first, symbol("cuGetProcAddress_v2"));
  constexpr uint64_t per_thread = 2;
  EXPECT_EQ(get("cuLaunchKernel", 12000, per_thread).first, symbol("cuLaunchKernel_ptsz"));
  EXPECT_EQ(get("cuMemcpy", 12000, per_thread).first, symbol("cuMemcpy_ptds"));
  EXPECT_EQ(get("cuEventQuery", 12000, per_thread).first, symbol("cuEventQuery"));
  void* entry = nullptr;
  EXPECT_EQ(cuGetProcAddress("cuNoSuchEntry", &entry, 12000, 0), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuGetProcAddress_v2("cuInit", &entry, 14000, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Addresses, a_program_with_nvidias_runtime_is_told_once) {
  EXPECT_EXIT(
      {
        void* entry = &entry;
        for (int time = 0; time < 2; ++time)
          if (cuGetProcAddress("cuGetExportTable", &entry, 3000, 0) != CUDA_ERROR_NOT_FOUND || entry)
            std::exit(1);
        std::exit(0);
      },
      testing::ExitedWithCode(0), "^firn software GPU: [^\n]*needs a real GPU\n$");
}

// Every row of the table: found by name and version, and the symbol's own address.
TEST_F(Addresses, whole_table) {
  struct Row {
    const char *base, *symbol, *own;
    int version;
  };
  const Row rows[] = {
#define X(base, version, symbol) {#base, #symbol, nullptr, version},
#define Y(base, version, symbol, own) {#base, #symbol, #own, version},
#define N(base, version)
#include "backing/gpu/software/entries.inc"
#undef X
#undef Y
#undef N
  };
  for (const Row& row : rows) {
    void *entry = nullptr, *own = nullptr;
    OK(cuGetProcAddress_v2(row.base, &entry, row.version, 1, nullptr));
    EXPECT_EQ(entry, ::dlsym(RTLD_DEFAULT, row.symbol)) << row.symbol;
    OK(cuGetProcAddress_v2(row.base, &own, row.version, 2, nullptr));
    EXPECT_EQ(own, ::dlsym(RTLD_DEFAULT, row.own ? row.own : row.symbol)) << row.symbol;
  }
}

TEST_F(Addresses, per_thread_entries_use_the_threads_stream) {
  void* entry = nullptr;
  OK(cuGetProcAddress_v2("cuLaunchHostFunc", &entry, 12000, 2, nullptr));
  auto launch = reinterpret_cast<decltype(&cuLaunchHostFunc)>(entry);
  OK(static_cast<CUresult>(firnGpuBusy(CU_STREAM_PER_THREAD, 1'000'000)));
  std::thread([&] {  // another thread's null stream is not busy
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    ASSERT_EQ(launch(nullptr, [](void*) {}, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  }).join();
  OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  EXPECT_EQ(counts().streams, 3u);  // legacy and two threads' own
}

TEST_F(Addresses, errors_have_names_and_words) {
  const char* text = nullptr;
  OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
  EXPECT_STREQ(text, "CUDA_ERROR_OUT_OF_MEMORY");
  OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
  EXPECT_STREQ(text, "out of memory");
  EXPECT_EQ(cuGetErrorName(static_cast<CUresult>(55), &text), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(text, nullptr);
}

}  // namespace
