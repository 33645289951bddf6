// Copies into mapped memory: nobody may look before they are complete; and memory that is mapped for
// reading only.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "fixture.h"

namespace {

constexpr int context_ended = 99;

/// Died, or its context did.
bool ended_badly(int status) {
  return WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == context_ended);
}
[[noreturn]] void end_by_context() {
  ::_exit(cuCtxSynchronize() == CUDA_SUCCESS ? 0 : context_ended);
}

class Arrivals : public SoftwareGpu {
 protected:
  void SetUp() override {
    FirnGpuConfig config{};
    config.link_bytes_s = 16. * MiB;  // a granule takes an eighth of a second
    start(config);
    constexpr unsigned layout[][2] = {{0, 8}, {8, 8}, {0, 0}};
    OK(static_cast<CUresult>(firnGpuKernelCreate("look", look, layout, &look_)));
    OK(static_cast<CUresult>(firnGpuKernelCreate("put", put, layout, &put_)));
    address = mapped();
    other = mapped();
    OK(cuMemAllocHost_v2(reinterpret_cast<void**>(&host), granule));
    std::fill_n(host, granule, 7);
  }
  static void look(void** params, const unsigned*, const unsigned*) {
    **static_cast<volatile char**>(params[1]) = **static_cast<volatile char**>(params[0]);
  }
  static void put(void** params, const unsigned*, const unsigned*) {
    **static_cast<volatile char**>(params[0]) = *static_cast<char*>(params[1]);
  }
  CUresult launch(void* kernel, CUdeviceptr first, uint64_t second, CUstream on) const {
    void* params[] = {&first, &second};
    return cuLaunchKernel(static_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, on, params,
                          nullptr);
  }
  /// One byte, by way of the other mapping.
  char byte_at(CUdeviceptr at) {
    char byte = 0;
    EXPECT_EQ(launch(look_, at, other, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoH_v2(&byte, other, 1), CUDA_SUCCESS);
    return byte;
  }

  void *look_ = nullptr, *put_ = nullptr;
  CUdeviceptr address = 0, other = 0;
  char* host = nullptr;
};

TEST_F(Arrivals, AKernelThatDoesNotWaitForTheCopyDies) {
  const CUstream in = stream(), work = stream();
  EXPECT_EXIT(
      {
        (void)cuMemcpyHtoDAsync_v2(address, host, granule, in);
        (void)launch(look_, address + 5000, other, work);
        end_by_context();
      },
      ended_badly, "");
}

TEST_F(Arrivals, SoDoesOneThatWrites) {
  const CUstream in = stream(), work = stream();
  EXPECT_EXIT(
      {
        (void)cuMemcpyHtoDAsync_v2(address, host, granule, in);
        (void)launch(put_, address + granule - 1, 1, work);
        end_by_context();
      },
      ended_badly, "");
}

TEST_F(Arrivals, ACopyOutThatDoesNotWaitGetsNobodysBytes) {
  const CUstream in = stream(), work = stream();
  constexpr size_t begin = 10000, bytes = 1 << 20;  // ends of no page
  OK(cuMemsetD8_v2(address, 3, granule));
  OK(cuCtxSynchronize());
  unsigned char* to = nullptr;
  OK(cuMemAllocHost_v2(reinterpret_cast<void**>(&to), granule));
  OK(cuMemcpyHtoDAsync_v2(address + begin, host, bytes, in));
  OK(cuMemcpyDtoHAsync_v2(to, address, granule, work));
  OK(cuStreamSynchronize(work));
  EXPECT_EQ(to[begin - 1], 3);
  EXPECT_EQ(to[begin + 5000], 0xFF);
  EXPECT_EQ(to[begin + bytes - 5000], 0xFF);
  EXPECT_EQ(to[begin + bytes], 3);
  OK(cuStreamSynchronize(in));
  OK(cuMemcpyDtoH_v2(to, address + begin, 4096));
  EXPECT_EQ(to[0], 7);
  EXPECT_EQ(to[4095], 7);
}

TEST_F(Arrivals, ACopyThatWaitsInItsStreamBehindAnotherIsClosedToo) {
  const CUstream in = stream(), work = stream();
  const CUdeviceptr second = mapped();
  EXPECT_EXIT(
      {
        (void)cuMemcpyHtoDAsync_v2(address, host, granule, in);
        (void)cuMemcpyHtoDAsync_v2(second, host, granule, in);
        (void)launch(look_, second, other, work);
        end_by_context();
      },
      ended_badly, "");
}

TEST_F(Arrivals, WhoDiesIsToldWhy) {
  const CUstream in = stream();
  EXPECT_DEATH(
      {
        (void)cuMemcpyHtoDAsync_v2(address, host, granule, in);
        *reinterpret_cast<volatile char*>(address + 8192) = 1;  // as PyTorch's operators here do
      },
      "fault at 0x.*a copy into it is not complete");
}

TEST_F(Arrivals, WhoWaitsFindsTheBytes) {
  const CUstream in = stream(), work = stream();
  const CUevent arrived = event(CU_EVENT_DISABLE_TIMING);
  OK(cuMemcpyHtoDAsync_v2(address, host, granule, in));
  OK(cuEventRecord(arrived, in));
  OK(cuStreamWaitEvent(work, arrived, 0));
  OK(launch(look_, address + granule - 1, other, work));
  OK(cuStreamSynchronize(work));
  char byte = 0;
  OK(cuMemcpyDtoH_v2(&byte, other, 1));
  EXPECT_EQ(byte, 7);
  OK(launch(put_, address, 3, work));
  OK(cuStreamSynchronize(work));
  EXPECT_EQ(byte_at(address), 3);
}

TEST_F(Arrivals, WorkBeforeTheCopyInItsStreamUsesTheMemory) {
  const CUstream in = stream();
  OK(cuMemsetD8_v2(address, 1, granule));
  OK(cuCtxSynchronize());
  // Its pointer is one that nobody sees: nothing in its parameters is an address of this GPU.
  static CUdeviceptr hidden;
  hidden = address;
  void* kernel = nullptr;
  constexpr unsigned layout[][2] = {{0, 8}, {0, 0}};
  static char seen;
  OK(static_cast<CUresult>(firnGpuKernelCreate(
      "look_by_table",
      [](void**, const unsigned*, const unsigned*) {
        seen = *reinterpret_cast<volatile char*>(hidden + 100000);
      },
      layout, &kernel)));
  OK(static_cast<CUresult>(firnGpuBusy(in, 50000000)));
  OK(launch(kernel, 0, 0, in));
  OK(cuMemcpyHtoDAsync_v2(address, host, granule, in));
  OK(cuStreamSynchronize(in));
  EXPECT_EQ(seen, 1);
  EXPECT_EQ(byte_at(address + 100000), 7);
}

TEST_F(Arrivals, WorkThatTheCopyWaitsForUsesTheMemory) {
  const CUstream in = stream(), work = stream();
  const CUevent used = event(CU_EVENT_DISABLE_TIMING);
  OK(static_cast<CUresult>(firnGpuBusy(work, 50000000)));
  OK(launch(put_, address, 3, work));
  OK(cuEventRecord(used, work));
  OK(cuStreamWaitEvent(in, used, 0));
  OK(cuMemcpyHtoDAsync_v2(address, host, granule, in));
  OK(cuCtxSynchronize());
  EXPECT_EQ(byte_at(address), 7);
}

TEST_F(Arrivals, WhatLiesBesideTheCopyStaysOpen) {
  const CUstream in = stream(), work = stream();
  constexpr size_t begin = 10000, bytes = 1 << 20;  // ends of no page
  OK(cuMemcpyHtoDAsync_v2(address + begin, host, bytes, in));
  OK(launch(put_, address + begin - 1, 3, work));
  OK(launch(put_, address + begin + bytes, 4, work));
  OK(cuCtxSynchronize());
  EXPECT_EQ(byte_at(address + begin - 1), 3);
  EXPECT_EQ(byte_at(address + begin), 7);
  EXPECT_EQ(byte_at(address + begin + bytes - 1), 7);
  EXPECT_EQ(byte_at(address + begin + bytes), 4);
}

TEST_F(Arrivals, AccessGivenMeanwhileWaitsForTheCopy) {
  const CUstream in = stream(), work = stream();
  const CUmemAccessDesc a = access();
  EXPECT_EXIT(
      {
        (void)cuMemcpyHtoDAsync_v2(address, host, granule, in);
        (void)cuMemSetAccess(address, granule, &a, 1);
        (void)launch(look_, address, other, work);
        end_by_context();
      },
      ended_badly, "");
  OK(cuMemcpyHtoDAsync_v2(address, host, granule, in));
  OK(cuCtxSynchronize());
  EXPECT_EQ(byte_at(address), 7);
}

TEST_F(Arrivals, TwoCopiesIntoOnePageOpenItTogether) {
  const CUstream one = stream(), two = stream();
  constexpr size_t half = 1 << 20;
  OK(cuMemcpyHtoDAsync_v2(address, host, granule, one));
  OK(cuMemcpyHtoDAsync_v2(address, host, half, one));
  OK(cuMemcpyHtoDAsync_v2(other, host, half, two));
  OK(cuCtxSynchronize());
  EXPECT_EQ(byte_at(address), 7);
  EXPECT_EQ(byte_at(address + granule - 1), 7);
}

TEST_F(Arrivals, AReplayedCopyIsOne) {
  const CUstream in = stream(), work = stream();
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  OK(cuStreamBeginCapture_v2(in, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuMemcpyHtoDAsync_v2(address, host, granule, in));
  OK(cuStreamEndCapture(in, &graph));
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  for (int i = 0; i < 2; ++i) {
    OK(cuGraphLaunch(exec, in));
    OK(cuStreamSynchronize(in));
    EXPECT_EQ(byte_at(address), 7);
    OK(cuMemsetD8_v2(address, 1, granule));
    OK(cuCtxSynchronize());
  }
  EXPECT_EXIT(
      {
        (void)cuGraphLaunch(exec, in);
        unsigned char found = 0;  // it closes its target when it begins
        while (found != 0xFF) {
          (void)cuMemcpyDtoHAsync_v2(&found, address + 8192, 1, work);
          (void)cuStreamSynchronize(work);
        }
        (void)launch(look_, address, other, work);
        end_by_context();
      },
      ended_badly, "");
}

class FastLink : public SoftwareGpu {
 protected:
  void SetUp() override {
    FirnGpuConfig config{};
    config.memory_bytes = 128 * MiB;
    start(config);
  }
};

TEST_F(FastLink, ACopyOutThatIsUnderWayReadsToItsEnd) {
  constexpr size_t large = 64 * MiB;
  CUdeviceptr big = 0;
  OK(cuMemAddressReserve(&big, large, 0, 0, 0));
  OK(cuMemMap(big, large, 0, frame(large), 0));
  const CUmemAccessDesc a = access();
  OK(cuMemSetAccess(big, large, &a, 1));
  OK(cuMemsetD8_v2(big, 3, large));
  OK(cuCtxSynchronize());
  unsigned char *out = nullptr, *in = nullptr;
  OK(cuMemAllocHost_v2(reinterpret_cast<void**>(&out), large));
  OK(cuMemAllocHost_v2(reinterpret_cast<void**>(&in), granule));
  std::fill_n(in, granule, 7);
  const CUstream leaving = stream(), arriving = stream();
  for (int i = 0; i < 10; ++i) {
    OK(cuMemcpyDtoHAsync_v2(out, big, large, leaving));
    for (size_t at = large; at > 0;) {  // some of them meet the copy
      at -= granule;
      OK(cuMemcpyHtoDAsync_v2(big + at, in, granule, arriving));
    }
    OK(cuCtxSynchronize());
    for (size_t at = 0; at < large; at += granule)
      EXPECT_TRUE(out[at] == 3 || out[at] == 7 || out[at] == 0xFF) << int{out[at]};
  }
}

class ReadOnly : public Arrivals {
 protected:
  void SetUp() override {
    Arrivals::SetUp();
    OK(cuMemsetD8_v2(address, 5, granule));
    OK(cuCtxSynchronize());
    reading.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    OK(cuMemSetAccess(address, granule, &reading, 1));
  }
  CUmemAccessDesc reading = access();
};

TEST_F(ReadOnly, IsRead) {
  EXPECT_EQ(byte_at(address + 12345), 5);
  char byte = 0;
  OK(cuMemcpyDtoH_v2(&byte, address, 1));
  EXPECT_EQ(byte, 5);
}

TEST_F(ReadOnly, AKernelThatWritesDies) {
  EXPECT_EXIT(
      {
        (void)launch(put_, address, 1, stream());
        end_by_context();
      },
      ended_badly, "");
}

TEST_F(ReadOnly, ACopyIntoItDiesAndSaysSo) {
  EXPECT_DEATH(
      {
        (void)cuMemcpyHtoDAsync_v2(address, host, granule, stream());
        (void)cuCtxSynchronize();
      },
      "cuMemcpyHtoDAsync: writes to 0x.*mapped for reading only");
}

TEST_F(ReadOnly, WhoWritesIsToldWhy) {
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(address) = 1,
               "fault at 0x.*mapped for reading only");
}

TEST_F(ReadOnly, IsOpenedAgain) {
  const CUmemAccessDesc a = access();
  OK(cuMemSetAccess(address, granule, &a, 1));
  OK(launch(put_, address, 9, stream()));
  OK(cuCtxSynchronize());
  EXPECT_EQ(byte_at(address), 9);
}

}  // namespace
