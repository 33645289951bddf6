// The software CUDA runtime: streams, events, capture and graphs. The runtime's handles are the
// driver's.
#include <atomic>

#include "backing/gpu/software/cudart/runtime.h"

using namespace firn::cudart;

namespace {
std::atomic<void (*)(unsigned long long)> on_capture_end{nullptr};
}  // namespace

extern "C" {

/// Not of the CUDA runtime: has `function` called with the number of each capture that has ended.
void firn_cudart_on_capture_end(void (*function)(unsigned long long)) {
  on_capture_end.store(function);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return FIRN_CALL(cuStreamCreate, stream, 0u); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return FIRN_CALL(cuStreamCreate, stream, flags);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return FIRN_CALL(cuStreamCreateWithPriority, stream, flags, priority);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return FIRN_CALL(cuStreamDestroy, stream); }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return FIRN_CALL(cuStreamQuery, stream); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return FIRN_CALL(cuStreamSynchronize, stream);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return FIRN_CALL(cuStreamWaitEvent, stream, event, flags);
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return FIRN_CALL(cuStreamGetPriority, stream, priority);
}
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  return FIRN_CALL(cuStreamGetFlags, stream, flags);
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  return FIRN_CALL(cuStreamGetId, stream, id);
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return FIRN_CALL(cuStreamGetDevice, stream, device);
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                  unsigned flags) {
  // The two callback types differ in the name of the error's enumeration alone.
  return FIRN_CALL(cuStreamAddCallback, stream, reinterpret_cast<CUstreamCallback>(callback), data,
                   flags);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return FIRN_CALL(cuLaunchHostFunc, stream, function, data);
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return FIRN_CALL(cuEventCreate, event, 0u); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return FIRN_CALL(cuEventCreate, event, flags);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return FIRN_CALL(cuEventDestroy, event); }
cudaError_t cudaEventQuery(cudaEvent_t event) { return FIRN_CALL(cuEventQuery, event); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return FIRN_CALL(cuEventRecord, event, stream);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return flags == 0 ? cudaEventRecord(event, stream)
                    : FIRN_CALL(cuEventRecordWithFlags, event, stream, flags);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return FIRN_CALL(cuEventSynchronize, event); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  return FIRN_CALL(cuEventElapsedTime, ms, begin, end);
}
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  return FIRN_CALL(cuIpcGetEventHandle, reinterpret_cast<CUipcEventHandle*>(handle), event);
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  CUipcEventHandle passed{};
  static_assert(sizeof passed == sizeof handle);
  __builtin_memcpy(&passed, &handle, sizeof passed);
  return FIRN_CALL(cuIpcOpenEventHandle, event, passed);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return FIRN_CALL(cuStreamBeginCapture, stream, static_cast<CUstreamCaptureMode>(mode));
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  unsigned long long id = 0;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t known =
      cudaStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr, nullptr);
  const cudaError_t ended = FIRN_CALL(cuStreamEndCapture, stream, graph);
  const auto watcher = on_capture_end.load();
  if (known == cudaSuccess && id != 0 && watcher != nullptr) watcher(id);
  return ended;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return FIRN_CALL(cuStreamIsCapturing, stream, reinterpret_cast<CUstreamCaptureStatus*>(status));
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     size_t* count) {
  return FIRN_CALL(cuStreamGetCaptureInfo, stream, reinterpret_cast<CUstreamCaptureStatus*>(status),
                   reinterpret_cast<cuuint64_t*>(id), graph, nodes,
                   reinterpret_cast<const CUgraphEdgeData**>(edges), count);
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* nodes,
                                                const cudaGraphEdgeData* edges, size_t count,
                                                unsigned flags) {
  return FIRN_CALL(cuStreamUpdateCaptureDependencies, stream, nodes,
                   reinterpret_cast<const CUgraphEdgeData*>(edges), count, flags);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return FIRN_CALL(cuThreadExchangeStreamCaptureMode, reinterpret_cast<CUstreamCaptureMode*>(mode));
}

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  return FIRN_CALL(cuGraphCreate, graph, flags);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return FIRN_CALL(cuGraphDestroy, graph); }
cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t graph) {
  return FIRN_CALL(cuGraphClone, clone, graph);
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return FIRN_CALL(cuGraphGetNodes, graph, nodes, count);
}
cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return FIRN_CALL(cuGraphGetRootNodes, graph, nodes, count);
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  return FIRN_CALL(cuGraphNodeGetType, node, reinterpret_cast<CUgraphNodeType*>(type));
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* nodes,
                                         cudaGraphEdgeData* edges, size_t* count) {
  return FIRN_CALL(cuGraphNodeGetDependencies, node, nodes,
                   reinterpret_cast<CUgraphEdgeData*>(edges), count);
}
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                  const cudaGraphNode_t* nodes, size_t count) {
  return FIRN_CALL(cuGraphAddEmptyNode, node, graph, nodes, count);
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                          unsigned long long flags) {
  return FIRN_CALL(cuGraphInstantiate, exec, graph, flags);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(exec, graph, flags);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return FIRN_CALL(cuGraphLaunch, exec, stream);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  return FIRN_CALL(cuGraphUpload, exec, stream);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return FIRN_CALL(cuGraphExecDestroy, exec);
}
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path, unsigned flags) {
  return FIRN_CALL(cuGraphDebugDotPrint, graph, path, flags);
}

}  // extern "C"
