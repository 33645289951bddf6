// Batches of waits and writes: in their order, at once for a stream and at every launch of a graph.
#include "fixture.h"

namespace {

using namespace firn::software;

enum : unsigned { wait_32 = 1, write_32 = 2, wait_64 = 4, write_64 = 5 };

CUstreamBatchMemOpParams operation(unsigned kind, CUdeviceptr address, uint64_t value) {
  CUstreamBatchMemOpParams is{};
  is.operation = kind;
  is.address = address;
  is.value = value;
  is.flags = kind == wait_32 || kind == wait_64;  // waits: equal
  return is;
}

class MemoryOperations : public SoftwareGpu {
 protected:
  void SetUp() override {
    start(FirnGpuConfig{});
    OK(cuMemAlloc_v2(&at_, 64));
    OK(cuMemsetD8_v2(at_, 0, 64));
    OK(cuCtxSynchronize());
  }
  uint64_t value(unsigned index) const {
    return __atomic_load_n(reinterpret_cast<uint64_t*>(at_) + index, __ATOMIC_ACQUIRE);
  }
  CUdeviceptr at_ = 0;
};

TEST_F(MemoryOperations, come_in_their_order) {
  const CUstream a = stream(), b = stream();
  // Each stream waits for what the other one writes in between.
  CUstreamBatchMemOpParams one[] = {operation(write_64, at_, 1), operation(wait_64, at_ + 8, 1),
                                    operation(write_64, at_, 2)};
  CUstreamBatchMemOpParams two[] = {operation(wait_64, at_, 1), operation(write_64, at_ + 8, 1),
                                    operation(wait_64, at_, 2),
                                    operation(write_32, at_ + 16, 0x100000003)};
  OK(cuStreamBatchMemOp_v2(b, 4, two, 0));
  EXPECT_EQ(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
  OK(cuStreamBatchMemOp_v2(a, 3, one, 0));
  OK(cuStreamSynchronize(a));
  OK(cuStreamSynchronize(b));
  EXPECT_EQ(value(0), 2u);
  EXPECT_EQ(value(1), 1u);
  EXPECT_EQ(value(2), 3u);  // 32 bits of it
}

TEST_F(MemoryOperations, of_a_node_come_again_at_every_launch) {
  const CUstream s = stream();
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
  CUcontext context = nullptr;
  OK(cuCtxGetCurrent(&context));
  CUstreamBatchMemOpParams both[] = {operation(wait_64, at_, 1), operation(write_64, at_, 7)};
  CUDA_BATCH_MEM_OP_NODE_PARAMS is{context, 2, both, 0};
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &is));
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  both[1].value = 8;  // read when the node was added
  for (int i = 0; i < 3; ++i) {
    OK(cuGraphLaunch(exec, s));
    EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    EXPECT_NE(value(0), 1u);
    __atomic_store_n(reinterpret_cast<uint64_t*>(at_), 1, __ATOMIC_RELEASE);
    OK(cuStreamSynchronize(s));
    EXPECT_EQ(value(0), 7u);
  }
}

TEST_F(MemoryOperations, that_are_none_are_refused) {
  const CUstream s = stream();
  CUstreamBatchMemOpParams odd = operation(write_64, at_ + 4, 1), kind = operation(99, at_, 1),
                           nowhere = operation(wait_32, 4096, 1);
  for (CUstreamBatchMemOpParams* wrong : {&odd, &kind, &nowhere})
    EXPECT_EQ(cuStreamBatchMemOp_v2(s, 1, wrong, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamBatchMemOp_v2(s, 0, &odd, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamBatchMemOp_v2(s, 1, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
