// The machine has no memory for an entry's own needs: the entry answers so, nothing was done, and the
// same call works when there is memory again. Every nth operator new of each entry fails.
#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>

#include "fixture.h"

namespace {
thread_local int fails_in = 0;  // of this thread's operator new; 0: none

std::atomic<bool> none_left{false};     // for any thread

void* take(size_t bytes) {
  if (none_left) return nullptr;
  if (fails_in > 0 && --fails_in == 0) return nullptr;
  return std::malloc(bytes ? bytes : 1);
}
}  // namespace

void* operator new(size_t bytes) {
  if (void* const memory = take(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

/// Calls `call` with its first operator new failing, then its second, until none is left to fail;
/// how many failed.
int each_fails(const std::function<CUresult()>& call) {
  for (int n = 1;; ++n) {
    fails_in = n;
    const CUresult result = call();
    const bool failed = fails_in == 0;
    fails_in = 0;
    if (!failed) {
      EXPECT_EQ(result, CUDA_SUCCESS);
      return n - 1;
    }
    // (An allocation may be one that the entry does without.)
    if (result == CUDA_SUCCESS) continue;
    EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY) << "operator new " << n;
    if (n > 1000) return n;
  }
}

void add_one(void* memory) { ++*static_cast<unsigned*>(memory); }

class NoMemory : public SoftwareGpu {};
class NoMemoryVirtual : public VirtualGpu {};

void work_is_enqueued_whole_or_not_at_all() {
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  unsigned calls = 0, done = 0;
  const auto host = [&] {
    const CUresult result = cuLaunchHostFunc(stream, add_one, &done);
    calls += result == CUDA_SUCCESS;
    return result;
  };
  int failed = 0;
  for (int i = 0; i < 20; ++i) failed += each_fails(host);
  EXPECT_GT(failed, 0);
  OK(cuStreamSynchronize(stream));
  EXPECT_EQ(done, calls);
}

TEST_F(NoMemory, work_is_enqueued_whole_or_not_at_all) { work_is_enqueued_whole_or_not_at_all(); }
TEST_F(NoMemoryVirtual, work_is_enqueued_whole_or_not_at_all) {
  work_is_enqueued_whole_or_not_at_all();
}

TEST_F(NoMemory, copies_and_events) {
  const CUdeviceptr memory = mapped();
  const CUstream on = stream(), other = stream();
  const CUevent mark = event();
  std::vector<unsigned char> from(granule, 7), to(granule);
  int failed = each_fails([&] { return cuMemcpyHtoDAsync_v2(memory, from.data(), granule, on); });
  failed += each_fails([&] { return cuEventRecord(mark, on); });
  failed += each_fails([&] { return cuStreamWaitEvent(other, mark, 0); });
  failed += each_fails([&] { return cuMemcpyDtoHAsync_v2(to.data(), memory, granule, other); });
  EXPECT_GT(failed, 3);
  OK(cuStreamSynchronize(other));
  EXPECT_EQ(from, to);
}

/// A GPU needs none of the machine's memory to end its work and to begin what waits for that.
TEST_F(NoMemory, work_completes_without_any) {
  struct Shared {
    std::atomic<bool> go{false}, over{false};
    std::atomic<int> ran{0};
  } shared;
  constexpr int streams = 12, rounds = 20;
  std::vector<CUstream> others;
  for (int i = 0; i < streams; ++i) others.push_back(stream());
  const CUstream first = stream();
  OK(cuLaunchHostFunc(first, [](void* at) {
    while (!static_cast<Shared*>(at)->go) {
    }
    none_left = true;
  }, &shared));
  const CUevent begun = event();
  OK(cuEventRecord(begun, first));
  const auto ran = [](void* at) { ++static_cast<Shared*>(at)->ran; };
  for (const CUstream other : others) OK(cuStreamWaitEvent(other, begun, 0));
  for (int round = 0; round < rounds; ++round) {
    std::vector<CUevent> marks;
    for (const CUstream other : others) {
      OK(cuLaunchHostFunc(other, ran, &shared));
      marks.push_back(event());
      OK(cuEventRecord(marks.back(), other));
    }
    for (size_t i = 0; i < others.size(); ++i)  // each waits for its neighbour, too
      OK(cuStreamWaitEvent(others[i], marks[(i + 1) % marks.size()], 0));
  }
  for (const CUstream other : others) {
    const CUevent mark = event();
    OK(cuEventRecord(mark, other));
    OK(cuStreamWaitEvent(first, mark, 0));
  }
  OK(cuLaunchHostFunc(first, [](void* at) {
    none_left = false;
    static_cast<Shared*>(at)->over = true;
  }, &shared));
  shared.go = true;
  while (!shared.over) {
  }
  OK(cuStreamSynchronize(first));
  EXPECT_EQ(shared.ran, streams * rounds);
}

TEST_F(NoMemory, memory) {
  OK(cuMemRelease(frame()));  // (The device's memory is made when it is asked for first.)
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp p = prop();
  CUdeviceptr address = 0;
  const CUmemAccessDesc open = access();
  int failed = each_fails([&] { return cuMemCreate(&handle, granule, &p, 0); });
  failed += each_fails([&] { return cuMemAddressReserve(&address, granule, 0, 0, 0); });
  failed += each_fails([&] { return cuMemMap(address, granule, 0, handle, 0); });
  failed += each_fails([&] { return cuMemSetAccess(address, granule, &open, 1); });
  EXPECT_GT(failed, 1);
  OK(cuMemsetD8_v2(address, 3, granule));
  OK(cuCtxSynchronize());
  (void)each_fails([&] { return cuMemUnmap(address, granule); });
  (void)each_fails([&] { return cuMemRelease(handle); });
  (void)each_fails([&] { return cuMemAddressFree(address, granule); });
  EXPECT_EQ(counts().frame_bytes, 0u);
}

}  // namespace
