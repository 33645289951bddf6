// Graphs within graphs: what they do comes between what is before and behind their node, and is
// changed as a whole.
#include "fixture.h"

namespace {

using namespace firn::software;

class Children : public SoftwareGpu {
 protected:
  void SetUp() override {
    start(FirnGpuConfig{});
    OK(cuCtxGetCurrent(&context_));
    OK(cuMemAlloc_v2(&words_, 4 * count));
    OK(cuMemsetD8_v2(words_, 0, 4 * count));
    OK(cuCtxSynchronize());
  }
  static constexpr unsigned count = 1024;

  CUDA_MEMSET_NODE_PARAMS fills(unsigned first, unsigned number, unsigned value) const {
    CUDA_MEMSET_NODE_PARAMS is{};
    is.dst = words_ + 4 * first;
    is.value = value;
    is.elementSize = 4;
    is.width = number;
    is.height = 1;
    return is;
  }
  CUgraphNode fill(CUgraph graph, std::vector<CUgraphNode> after, unsigned first, unsigned number,
                   unsigned value) {
    CUgraphNode node = nullptr;
    const CUDA_MEMSET_NODE_PARAMS is = fills(first, number, value);
    EXPECT_EQ(cuGraphAddMemsetNode(&node, graph, after.data(), after.size(), &is, context_),
              CUDA_SUCCESS);
    return node;
  }
  CUgraph graph() {
    CUgraph made = nullptr;
    EXPECT_EQ(cuGraphCreate(&made, 0), CUDA_SUCCESS);
    return made;
  }
  CUgraphNode child(CUgraph graph, std::vector<CUgraphNode> after, CUgraph of) {
    CUgraphNode node = nullptr;
    EXPECT_EQ(cuGraphAddChildGraphNode(&node, graph, after.data(), after.size(), of),
              CUDA_SUCCESS);
    return node;
  }
  CUgraphExec executable(CUgraph graph) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    return exec;
  }
  void run(CUgraphExec exec, CUstream s) {
    OK(cuGraphLaunch(exec, s));
    OK(cuStreamSynchronize(s));
  }
  unsigned word(unsigned index) const { return reinterpret_cast<unsigned*>(words_)[index]; }

  CUcontext context_ = nullptr;
  CUdeviceptr words_ = 0;
};

TEST_F(Children, run_between_what_is_before_and_behind) {
  const CUstream s = stream();
  CUgraph inner = graph(), middle = graph(), outer = graph();
  // Each overwrites a part of what the one before wrote: their order can be read off.
  fill(inner, {fill(inner, {}, 0, 400, 1)}, 0, 300, 2);
  fill(middle, {child(middle, {}, inner)}, 0, 200, 3);
  const CUgraphNode first = fill(outer, {}, 0, 500, 9);
  const CUgraphNode nested = child(outer, {first}, middle);
  fill(outer, {nested}, 0, 100, 4);
  fill(inner, {}, 900, 10, 77);  // after it was put in: not part of the copy
  const CUgraphExec exec = executable(outer);
  OK(cuGraphDestroy(inner));
  for (int i = 0; i < 3; ++i) {
    OK(cuMemsetD8Async(words_, 0, 4 * count, s));
    run(exec, s);
    EXPECT_EQ(word(50), 4u);
    EXPECT_EQ(word(150), 3u);
    EXPECT_EQ(word(250), 2u);
    EXPECT_EQ(word(350), 1u);
    EXPECT_EQ(word(450), 9u);
    EXPECT_EQ(word(905), 0u);
  }
}

TEST_F(Children, one_without_nodes_orders_what_is_around_it) {
  const CUstream s = stream();
  CUgraph outer = graph();
  const CUgraphNode first = fill(outer, {}, 0, 100, 1);
  fill(outer, {child(outer, {first}, graph())}, 0, 50, 2);
  run(executable(outer), s);
  EXPECT_EQ(word(25), 2u);
  EXPECT_EQ(word(75), 1u);
}

TEST_F(Children, change_by_node_and_as_a_whole) {
  const CUstream s = stream();
  CUgraph inner = graph(), outer = graph();
  fill(inner, {}, 0, 10, 1);
  const CUgraphNode node = child(outer, {}, inner);
  CUgraph own = nullptr;
  OK(cuGraphChildGraphNodeGetGraph(node, &own));
  EXPECT_NE(own, inner);
  size_t number = 1;
  CUgraphNode within = nullptr;
  OK(cuGraphGetNodes(own, &within, &number));
  ASSERT_EQ(number, 1u);
  const CUgraphExec exec = executable(outer);
  run(exec, s);
  EXPECT_EQ(word(5), 1u);
  CUDA_MEMSET_NODE_PARAMS other = fills(20, 10, 2);
  OK(cuGraphExecMemsetNodeSetParams(exec, within, &other, context_));
  run(exec, s);
  EXPECT_EQ(word(25), 2u);
  CUgraph third = graph(), longer = graph();
  fill(third, {}, 40, 10, 3);
  fill(longer, {fill(longer, {}, 0, 1, 1)}, 0, 1, 2);
  OK(cuGraphExecChildGraphNodeSetParams(exec, node, third));
  run(exec, s);
  EXPECT_EQ(word(45), 3u);
  EXPECT_EQ(cuGraphExecChildGraphNodeSetParams(exec, node, longer), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphAddChildGraphNode(nullptr, outer, nullptr, 0, inner), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphChildGraphNodeGetGraph(within, &own), CUDA_ERROR_INVALID_VALUE);
  OK(cuGraphDestroy(outer));
  EXPECT_DEATH((void)cuGraphDestroy(own), "used after destruction");
}

TEST_F(Children, a_capture_may_go_into_a_graph) {
  const CUstream s = stream();
  CUgraph whole = graph(), ended = nullptr;
  const CUgraphNode first = fill(whole, {}, 0, 100, 1);
  fill(whole, {}, 200, 10, 5);  // which the capture does not follow
  OK(cuStreamBeginCaptureToGraph(s, whole, &first, nullptr, 1, capture_relaxed));
  OK(cuMemsetD32Async(words_, 2, 50, s));
  OK(cuStreamEndCapture(s, &ended));
  EXPECT_EQ(ended, whole);
  const CUgraphExec exec = executable(whole);
  run(exec, s);
  EXPECT_EQ(word(25), 2u);
  EXPECT_EQ(word(75), 1u);
  EXPECT_EQ(word(205), 5u);
  // One that goes wrong leaves the graph as it was.
  size_t before = 0, after = 0;
  OK(cuGraphGetNodes(whole, nullptr, &before));
  OK(cuStreamBeginCaptureToGraph(s, whole, &first, nullptr, 1, capture_relaxed));
  OK(cuMemsetD32Async(words_, 3, 50, s));
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuStreamEndCapture(s, &ended), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(cuGraphGetNodes(whole, nullptr, &after));
  EXPECT_EQ(after, before);
}

}  // namespace
