// Of what copies move, how much crosses the link to the host, and which way: by every entry that
// copies, and of every kind of memory.
#include "fixture.h"

extern "C" {
CUresult cuMemHostAlloc(void**, size_t, unsigned);
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D*, CUstream);
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D*);
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D*);
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D*, CUstream);
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER*, CUstream);
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, void*, size_t*, size_t,
                               CUstream);
CUresult cuMemcpy3DBatchAsync_v2(size_t, CUDA_MEMCPY3D_BATCH_OP*, unsigned long long, CUstream);
}

namespace {

constexpr size_t wide = 48, high = 5, deep = 3;  // of a copy in rows

class Copies : public VirtualGpu {
 protected:
  void SetUp() override { start_at(true); }
  void start_at(bool virtual_clock) {
    FirnGpuConfig config{};
    config.devices = 2;
    config.virtual_clock = virtual_clock;
    start(config);
    device_ = mapped();
    OK(cuMemHostAlloc(&pinned_, granule, 0));
    on_ = stream();
  }
  CUdeviceptr pinned() const { return reinterpret_cast<CUdeviceptr>(pinned_); }
  CUdeviceptr pageable() { return reinterpret_cast<CUdeviceptr>(pageable_.data()); }

  /// `copy` moves so many bytes over the link each way, and `all` of them altogether.
  template <class Copy>
  void moves(uint64_t to_device, uint64_t to_host, uint64_t all, Copy copy) {
    const FirnGpuCounts before = counts();
    OK(copy());
    OK(cuCtxSynchronize());
    const FirnGpuCounts after = counts();
    EXPECT_EQ(after.copied_to_device_bytes - before.copied_to_device_bytes, to_device);
    EXPECT_EQ(after.copied_to_host_bytes - before.copied_to_host_bytes, to_host);
    EXPECT_EQ(after.copied_bytes - before.copied_bytes, all);
  }
  template <class Copy>
  void in(uint64_t bytes, Copy copy) { moves(bytes, 0, bytes, copy); }
  template <class Copy>
  void out(uint64_t bytes, Copy copy) { moves(0, bytes, bytes, copy); }
  template <class Copy>
  void within(uint64_t bytes, Copy copy) { moves(0, 0, bytes, copy); }

  /// A box of high rows in deep slices, to or from the device.
  template <class What>
  What box(bool to_device) {
    What what{};
    what.WidthInBytes = wide, what.Height = high;
    what.srcPitch = what.dstPitch = 64;
    what.srcMemoryType = to_device ? firn::memory_host : firn::memory_device;
    what.dstMemoryType = to_device ? firn::memory_device : firn::memory_host;
    what.srcHost = what.dstHost = pinned_;
    what.srcDevice = what.dstDevice = device_;
    if constexpr (requires { what.Depth; })
      what.Depth = deep, what.srcHeight = what.dstHeight = high;
    return what;
  }

  CUdeviceptr device_ = 0;
  void* pinned_ = nullptr;
  CUstream on_ = nullptr;
  std::vector<char> pageable_ = std::vector<char>(granule);
};

TEST_F(Copies, of_one_piece) {
  for (const bool virtual_clock : {true, false}) {  // (that one copies small pieces at once)
    start_at(virtual_clock);
    for (const uint64_t host : {pinned(), pageable()}) {
      auto* const at = reinterpret_cast<void*>(host);
      in(8, [&] { return cuMemcpy(device_, host, 8); });
      out(16, [&] { return cuMemcpy(host, device_, 16); });
      in(24, [&] { return cuMemcpyAsync(device_, host, 24, on_); });
      out(32, [&] { return cuMemcpyAsync(host, device_, 32, on_); });
      in(40, [&] { return cuMemcpyHtoD_v2(device_, at, 40); });
      out(48, [&] { return cuMemcpyDtoH_v2(at, device_, 48); });
      in(granule, [&] { return cuMemcpyHtoDAsync_v2(device_, at, granule, on_); });
      out(granule, [&] { return cuMemcpyDtoHAsync_v2(at, device_, granule, on_); });
    }
  }
}

TEST_F(Copies, in_rows) {
  const auto in2 = box<CUDA_MEMCPY2D>(true), out2 = box<CUDA_MEMCPY2D>(false);
  const auto in3 = box<CUDA_MEMCPY3D>(true), out3 = box<CUDA_MEMCPY3D>(false);
  in(wide * high, [&] { return cuMemcpy2D_v2(&in2); });
  out(wide * high, [&] { return cuMemcpy2DAsync_v2(&out2, on_); });
  out(wide * high, [&] { return cuMemcpy2DUnaligned_v2(&out2); });
  in(wide * high * deep, [&] { return cuMemcpy3D_v2(&in3); });
  out(wide * high * deep, [&] { return cuMemcpy3DAsync_v2(&out3, on_); });
}

TEST_F(Copies, in_batches) {
  CUdeviceptr to[] = {device_, pinned(), device_ + MiB}, from[] = {pinned(), device_, device_};
  size_t bytes[] = {100, 30, 7}, at[] = {0};
  char attributes[64] = {};
  moves(100, 30, 137, [&] {
    return cuMemcpyBatchAsync_v2(to, from, bytes, 3, attributes, at, 1, on_);
  });
  CUDA_MEMCPY3D_BATCH_OP boxes[2]{};
  for (CUDA_MEMCPY3D_BATCH_OP& each : boxes) each.width = wide, each.height = high, each.depth = 2;
  boxes[0].src.ptr = boxes[1].dst.ptr = pinned();
  boxes[0].dst.ptr = boxes[1].src.ptr = device_;
  const uint64_t box = wide * high * 2;
  moves(box, box, 2 * box, [&] { return cuMemcpy3DBatchAsync_v2(2, boxes, 0, on_); });
}

TEST_F(Copies, between_devices_and_within_one_cross_no_link_to_the_host) {
  CUdeviceptr other = 0;
  CUcontext second = nullptr;
  OK(cuDevicePrimaryCtxRetain(&second, 1));
  OK(cuCtxSetCurrent(second));
  OK(cuMemAlloc_v2(&other, MiB));
  OK(cuCtxSetCurrent(context));
  CUdeviceptr first = 0;
  OK(cuMemAlloc_v2(&first, MiB));
  within(100, [&] { return cuMemcpyDtoD_v2(device_ + MiB, device_, 100); });
  within(200, [&] { return cuMemcpyPeerAsync(first, context, other, second, 200, on_); });
  EXPECT_EQ(counts(1).copied_to_device_bytes + counts(1).copied_to_host_bytes, 0u);
  within(64, [&] { return cuMemcpy(pinned() + MiB, pinned(), 64); });
}

/// Firn's blocks that are used in host memory lie at such addresses.
TEST_F(Copies, to_host_memory_at_device_addresses_cross_the_link) {
  CUmemAllocationProp p = prop();
  p.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  CUmemGenericAllocationHandle handle = 0;
  OK(cuMemCreate(&handle, granule, &p, 0));
  const CUdeviceptr hosted = reserve(granule);
  OK(cuMemMap(hosted, granule, 0, handle, 0));
  const CUmemAccessDesc a = access();
  OK(cuMemSetAccess(hosted, granule, &a, 1));
  out(100, [&] { return cuMemcpyAsync(hosted, device_, 100, on_); });
  in(200, [&] { return cuMemcpyAsync(device_, hosted, 200, on_); });
  within(300, [&] { return cuMemcpyAsync(hosted, pinned(), 300, on_); });
}

TEST_F(Copies, of_a_graph_count_at_every_launch) {
  OK(cuStreamBeginCapture_v2(on_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuMemcpyAsync(device_, pinned(), 10, on_));
  OK(cuMemcpyAsync(pinned(), device_, 20, on_));
  CUgraph graph = nullptr;
  OK(cuStreamEndCapture(on_, &graph));
  CUgraphExec exec = nullptr;
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  EXPECT_EQ(counts().copied_bytes, 0u);
  for (int launch = 0; launch < 2; ++launch)
    moves(10, 20, 30, [&] { return cuGraphLaunch(exec, on_); });
}

}  // namespace
