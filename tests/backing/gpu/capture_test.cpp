// Stream capture and graphs: what is recorded runs at every launch, in the order of its edges, and
// nothing runs while it is recorded.
#include <atomic>

#include "fixture.h"

namespace {

using namespace firn::software;

class Capturing : public SoftwareGpu, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    FirnGpuConfig config{};
    config.virtual_clock = GetParam();
    start(config);
  }
  static void count(CUstream s, std::atomic<int>& counter) {
    OK(cuLaunchHostFunc(s, [](void* data) { ++*static_cast<std::atomic<int>*>(data); }, &counter));
  }
  static CUstreamCaptureStatus status(CUstream s) {
    CUstreamCaptureStatus value = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    EXPECT_EQ(cuStreamIsCapturing(s, &value), CUDA_SUCCESS);
    return value;
  }
  static CUgraphExec finish(CUstream s) {
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    EXPECT_EQ(cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    return exec;
  }
};

TEST_P(Capturing, replays) {
  const CUstream s = stream();
  CUdeviceptr address = 0;
  OK(cuMemAlloc_v2(&address, MiB));
  OK(cuMemsetD8_v2(address, 1, MiB));
  OK(cuCtxSynchronize());
  void* host = nullptr;
  OK(cuMemAllocHost_v2(&host, MiB));
  std::atomic<int> runs{0};
  OK(cuStreamBeginCapture_v2(s, capture_global));
  EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(cuMemsetD8Async(address, 7, MiB, s));
  OK(cuMemcpyDtoHAsync_v2(host, address, MiB, s));
  count(s, runs);
  const CUgraphExec exec = finish(s);
  OK(cuStreamSynchronize(s));
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(*reinterpret_cast<char*>(address), 1);
  for (int i = 1; i <= 3; ++i) {
    static_cast<char*>(host)[5] = 0;
    OK(cuGraphLaunch(exec, s));
    OK(cuStreamSynchronize(s));
    EXPECT_EQ(runs, i);
    EXPECT_EQ(static_cast<char*>(host)[5], 7);
  }
  OK(cuGraphExecDestroy(exec));
  EXPECT_DEATH(cuGraphLaunch(exec, s), "executable graph 0x.* used after destruction");
}

TEST_P(Capturing, spreads_through_events_and_keeps_their_order) {
  const CUstream a = stream(), b = stream();
  const CUevent fork = event(), join = event();
  CUdeviceptr address = 0;
  OK(cuMemAlloc_v2(&address, MiB));
  OK(cuStreamBeginCapture_v2(a, capture_global));
  OK(cuMemsetD8Async(address, 1, MiB, a));
  OK(cuEventRecord(fork, a));
  OK(cuStreamWaitEvent(b, fork, 0));
  EXPECT_EQ(status(b), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(cuMemsetD8Async(address, 2, MiB, b));
  OK(cuEventRecord(join, b));
  OK(cuStreamWaitEvent(a, join, 0));
  OK(cuMemsetD8Async(address + 1, 3, 1, a));
  CUgraph graph = nullptr;
  OK(cuStreamEndCapture(a, &graph));
  EXPECT_EQ(status(b), CU_STREAM_CAPTURE_STATUS_NONE);
  size_t count = 0;
  OK(cuGraphGetNodes(graph, nullptr, &count));
  ASSERT_EQ(count, 3u);
  CUgraphNode nodes[3];
  OK(cuGraphGetNodes(graph, nodes, &count));
  size_t before = 0;
  OK(cuGraphNodeGetDependencies(nodes[2], nullptr, &before));
  EXPECT_EQ(before, 2u);  // b's memset and, transitively known, a's own
  CUgraphExec exec = nullptr;
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  OK(cuGraphLaunch(exec, a));
  OK(cuCtxSynchronize());
  const auto* bytes = reinterpret_cast<const char*>(address);
  EXPECT_EQ(bytes[0], 2);
  EXPECT_EQ(bytes[1], 3);
  EXPECT_EQ(bytes[MiB - 1], 2);
}

TEST_P(Capturing, unjoined_stream) {
  const CUstream a = stream(), b = stream();
  const CUevent fork = event();
  std::atomic<int> runs{0};
  OK(cuStreamBeginCapture_v2(a, capture_global));
  OK(cuEventRecord(fork, a));
  OK(cuStreamWaitEvent(b, fork, 0));
  count(b, runs);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(b, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  EXPECT_EQ(cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(cuStreamEndCapture(a, &graph), CUDA_ERROR_ILLEGAL_STATE);
}

TEST_P(Capturing, what_waits_invalidates) {
  const CUstream s = stream();
  CUgraph graph = nullptr;
  OK(cuStreamBeginCapture_v2(s, capture_relaxed));
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(cuMemsetD8Async(mapped(), 1, 1, s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cuStreamEndCapture(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_NONE);
}

TEST_P(Capturing, captured_event_cannot_be_queried) {
  const CUstream s = stream();
  const CUevent e = event();
  OK(cuStreamBeginCapture_v2(s, capture_relaxed));
  OK(cuEventRecord(e, s));
  EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_CAPTURED_EVENT);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_P(Capturing, modes) {
  const CUstream s = stream();
  CUdeviceptr address = 0;
  CUgraph graph = nullptr;
  OK(cuStreamBeginCapture_v2(s, capture_global));
  int mode = capture_relaxed;
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  OK(cuMemAlloc_v2(&address, MiB));  // allowed in this thread now
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, capture_relaxed);
  EXPECT_EQ(cuMemAlloc_v2(&address, MiB), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuStreamEndCapture(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_P(Capturing, legacy_stream) {
  const CUstream blocking = stream(CU_STREAM_DEFAULT), apart = stream();
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamBeginCapture_v2(nullptr, capture_relaxed),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  OK(cuStreamBeginCapture_v2(apart, capture_relaxed));
  EXPECT_EQ(status(nullptr), CU_STREAM_CAPTURE_STATUS_NONE);
  OK(cuMemsetD8Async(mapped(), 1, 1, nullptr));
  OK(cuStreamEndCapture(apart, &graph));
  // To ask is refused, too, and harms nobody.
  for (const int mode : {capture_global, capture_thread_local, capture_relaxed}) {
    OK(cuStreamBeginCapture_v2(blocking, mode));
    CUstreamCaptureStatus said = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(cuStreamIsCapturing(nullptr, &said), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT_EQ(status(blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuStreamEndCapture(blocking, &graph));
    EXPECT_EQ(status(nullptr), CU_STREAM_CAPTURE_STATUS_NONE);
  }
  OK(cuStreamBeginCapture_v2(blocking, capture_relaxed));
  EXPECT_EQ(cuMemsetD8Async(mapped(), 1, 1, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

/// As an H100's driver answers: whether it is done depends on what is captured.
TEST_P(Capturing, whether_the_legacy_stream_is_done) {
  const CUstream blocking = stream(CU_STREAM_DEFAULT), apart = stream();
  CUgraph graph = nullptr;
  for (const auto& ask : {&cuStreamQuery, &cuStreamSynchronize}) {
    for (const int mode : {capture_global, capture_thread_local, capture_relaxed}) {
      OK(cuStreamBeginCapture_v2(blocking, mode));
      EXPECT_EQ(ask(nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
      EXPECT_EQ(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
      OK(cuStreamBeginCapture_v2(apart, mode));
      const bool harmless = mode == capture_relaxed;
      EXPECT_EQ(ask(nullptr),
                harmless ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
      EXPECT_EQ(cuStreamEndCapture(apart, &graph),
                harmless ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
  }
}

TEST_P(Capturing, work_outside_the_capture) {
  const CUstream a = stream(), b = stream();
  const CUevent outside = event();
  OK(cuMemsetD8Async(mapped(), 1, granule, b));
  OK(cuEventRecord(outside, b));
  OK(cuStreamBeginCapture_v2(a, capture_relaxed));
  EXPECT_EQ(cuStreamWaitEvent(a, outside, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_P(Capturing, event_of_a_capture_that_ended) {
  const CUstream s = stream(), other = stream();
  const CUevent e = event();
  OK(cuStreamBeginCapture_v2(s, capture_relaxed));
  OK(cuEventRecord(e, s));
  finish(s);
  EXPECT_EQ(cuStreamWaitEvent(other, e, 0), CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_EQ(status(other), CU_STREAM_CAPTURE_STATUS_NONE);
  OK(cuEventRecord(e, s));
  OK(cuStreamWaitEvent(other, e, 0));
}

TEST_P(Capturing, stream_destroyed_under_its_capture) {
  const CUstream s = stream(CU_STREAM_DEFAULT);
  OK(cuStreamBeginCapture_v2(s, capture_global));
  OK(cuStreamDestroy_v2(s));
  CUdeviceptr address = 0;
  OK(cuMemAlloc_v2(&address, MiB));  // nothing is captured any more
  OK(cuMemsetD8Async(address, 1, MiB, nullptr));
}

TEST_P(Capturing, launched_graph_holds_its_memory) {
  const CUstream s = stream();
  const CUdeviceptr address = mapped();
  CUdeviceptr flag = 0;
  OK(cuMemAlloc_v2(&flag, 4));
  OK(cuMemsetD32Async(flag, 0, 1, s));
  OK(cuStreamSynchronize(s));
  OK(cuStreamBeginCapture_v2(s, capture_relaxed));
  OK(cuStreamWaitValue32_v2(s, flag, 1, 1));
  OK(cuMemsetD8Async(address, 1, granule, s));
  const CUgraphExec exec = finish(s);
  OK(cuGraphLaunch(exec, s));
  EXPECT_DEATH(cuMemUnmap(address, granule), "still queued .cuMemsetD8Async");
  __atomic_store_n(reinterpret_cast<uint32_t*>(flag), 1u, __ATOMIC_RELEASE);
  OK(cuStreamSynchronize(s));
  OK(cuMemUnmap(address, granule));
}

TEST_P(Capturing, graph_within_a_capture) {
  const CUstream s = stream();
  std::atomic<int> runs{0};
  OK(cuStreamBeginCapture_v2(s, capture_relaxed));
  count(s, runs);
  const CUgraphExec inner = finish(s);
  OK(cuStreamBeginCapture_v2(s, capture_relaxed));
  OK(cuGraphLaunch(inner, s));
  OK(cuGraphLaunch(inner, s));
  count(s, runs);
  const CUgraphExec outer = finish(s);
  OK(cuGraphLaunch(outer, s));
  OK(cuStreamSynchronize(s));
  EXPECT_EQ(runs, 3);
}

INSTANTIATE_TEST_SUITE_P(Clock, Capturing, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "virtual_time" : "wall"; });

}  // namespace
