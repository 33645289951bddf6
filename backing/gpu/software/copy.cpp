// Entries that copy and fill. On the wall clock bytes move when the copy begins, on the virtual
// clock when it ends; in both the copy is complete no sooner than its modelled time.
#include <cstring>

#include "arrivals.h"
#include "bodies.h"
#include "graph.h"
#include "gpu.h"

namespace firn::software {

namespace {
constexpr size_t staged_bytes_max = 1u << 20;  // of pageable memory, per asynchronous copy
constexpr size_t inline_bytes_max = 1u << 20;  // of a synchronous copy on an idle GPU

bool quiet(const Stream& stream) {
  if (!stream.queue.empty()) return false;
  auto context = stream.context.lock();
  if (!context) return false;
  if (!stream.legacy) return !stream.blocking() || context->legacy->queue.empty();
  for (const auto& [serial, other] : context->streams)
    if (other->blocking() && !other->queue.empty()) return false;
  return true;
}

CUresult copy(Gate& gate, Rows rows, CUstream handle, bool wait, Side to_side, Side from_side) {
  std::shared_ptr<Stream> stream;
  if (CUresult result = find_stream(gate, handle, &stream)) return result;
  if (!rows.total()) return CUDA_SUCCESS;
  Body body{.entry = gate.entry()};
  MemoryKind to{}, from{};
  if (CUresult result =
          copy_body(rows, to_side, from_side, stream->device, &body, &to, &from))
    return result;
  if (wait && !stream->capture && rows.total() <= inline_bytes_max && !body.link_ns &&
      !body.latency_ns && !gpu().scheduler.virtual_clock && quiet(*stream)) {
    if (CUresult result = submit(gate, stream, Body{.entry = gate.entry()})) return result;
    if (from == MemoryKind::device && to != MemoryKind::device)
      depart(rows);
    else
      move_rows(rows);
    body.settle();
    return CUDA_SUCCESS;
  }
  // Pageable memory: the source may be reused on return, the destination is complete on return.
  if (!wait && !stream->capture) {
    if (from == MemoryKind::pageable && rows.total() <= staged_bytes_max && rows.rows == 1 &&
        rows.slices == 1 && to != MemoryKind::pageable && !body.tags) {
      body.ranges.pop_back();
      if (body.run) {
        auto staged = std::make_shared<std::vector<char>>(
            reinterpret_cast<const char*>(rows.from),
            reinterpret_cast<const char*>(rows.from) + rows.bytes);
        Rows from_staged = rows;
        from_staged.from = reinterpret_cast<uint64_t>(staged->data());
        body.run = [from_staged, staged, arrival = body.arrival] {
          if (arrival)
            arrive(from_staged, *arrival);
          else
            move_rows(from_staged);
        };
      }
    } else {
      wait = from == MemoryKind::pageable || to == MemoryKind::pageable;
    }
  }
  std::shared_ptr<Work> work;
  if (CUresult result = submit(gate, stream, std::move(body), &work)) return result;
  close_at_once(work);
  if (wait) gpu().scheduler.wait_for(gate.lock(), gate.entry(), work);
  return CUDA_SUCCESS;
}

CUresult copy_linear(const char* entry, uint64_t to, uint64_t from, size_t bytes, CUstream stream,
                     bool wait, Side to_side = Side::any, Side from_side = Side::any) {
  return enter(entry, Need::context, [&](Gate& gate) {
    return copy(gate, {.to = to, .from = from, .bytes = bytes}, stream, wait, to_side, from_side);
  });
}

/// Each side is reached by its own context, and the bytes are staged where the two cannot meet.
CUresult copy_peer(const char* entry, Rows rows, CUcontext to_context, CUcontext from_context,
                   CUstream stream, bool wait) {
  return enter(entry, Need::context, [&](Gate& gate) -> CUresult {
    const auto device_of = [&](CUcontext handle) {
      const auto context = handle ? gpu().contexts.find(gate.entry(), handle) : nullptr;
      return context ? context->device : -1;
    };
    rows.to_reach = device_of(to_context);
    rows.from_reach = device_of(from_context);
    if (rows.to_reach < 0 || rows.from_reach < 0) return CUDA_ERROR_INVALID_CONTEXT;
    return copy(gate, rows, stream, wait, Side::device, Side::device);
  });
}

uint64_t number(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

CUresult copy_2d(const char* entry, const CUDA_MEMCPY2D* what, CUstream stream, bool wait) {
  return enter(entry, Need::context, [&](Gate& gate) -> CUresult {
    if (!what) return CUDA_ERROR_INVALID_VALUE;
    if (what->srcMemoryType == memory_array || what->dstMemoryType == memory_array)
      return CUDA_ERROR_NOT_SUPPORTED;
    Rows rows{.bytes = what->WidthInBytes, .rows = what->Height, .to_pitch = what->dstPitch,
              .from_pitch = what->srcPitch};
    if (rows.to_pitch > size_t{pitch_most} || rows.from_pitch > size_t{pitch_most} ||
        (rows.rows > 1 &&
         (rows.to_pitch < saturating_add(what->dstXInBytes, rows.bytes) ||
          rows.from_pitch < saturating_add(what->srcXInBytes, rows.bytes))))
      return CUDA_ERROR_INVALID_VALUE;
    rows.to = (what->dstMemoryType == memory_host ? number(what->dstHost) : what->dstDevice) +
              what->dstY * what->dstPitch + what->dstXInBytes;
    rows.from = (what->srcMemoryType == memory_host ? number(what->srcHost) : what->srcDevice) +
                what->srcY * what->srcPitch + what->srcXInBytes;
    return copy(gate, rows, stream, wait,
                what->dstMemoryType == memory_device ? Side::device : Side::any,
                what->srcMemoryType == memory_device ? Side::device : Side::any);
  });
}

CUresult copy_3d(const char* entry, const CUDA_MEMCPY3D* what, CUstream stream, bool wait) {
  return enter(entry, Need::context, [&](Gate& gate) -> CUresult {
    Rows rows;
    Side to = Side::any, from = Side::any;
    if (CUresult result = read_rows(what, &rows, &to, &from)) return result;
    return copy(gate, rows, stream, wait, to, from);
  });
}

CUresult copy_3d_peer(const char* entry, const CUDA_MEMCPY3D_PEER* what, CUstream stream) {
  Rows rows;
  Side to = Side::any, from = Side::any;
  if (CUresult result = read_rows(what, &rows, &to, &from)) return result;
  return copy_peer(entry, rows, static_cast<CUcontext>(what->reserved1),
                   static_cast<CUcontext>(what->reserved0), stream, false);
}

CUresult fill(const char* entry, uint64_t to, size_t pitch, unsigned value, size_t unit_bytes,
              size_t width, size_t height, CUstream handle, bool wait) {
  return enter(entry, Need::context, [&](Gate& gate) -> CUresult {
    std::shared_ptr<Stream> stream;
    if (CUresult result = find_stream(gate, handle, &stream)) return result;
    if (!width || !height) return CUDA_SUCCESS;
    Body body{.entry = gate.entry()};
    if (CUresult result =
            fill_body(to, pitch, value, unit_bytes, width, height, stream->device, &body))
      return result;
    std::shared_ptr<Work> work;
    if (CUresult result = submit(gate, stream, std::move(body), &work)) return result;
    if (wait) gpu().scheduler.wait_for(gate.lock(), gate.entry(), work);
    return CUDA_SUCCESS;
  });
}

/// Many copies in one call: the first that fails ends it.
CUresult batch(const char* entry, const std::vector<Rows>& copies, CUstream stream,
               size_t* failed) {
  return enter(entry, Need::context, [&](Gate& gate) -> CUresult {
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;  // not for default streams
    for (size_t i = 0; i < copies.size(); ++i)
      if (CUresult result = copy(gate, copies[i], stream, false, Side::any, Side::any)) {
        if (failed) *failed = i;
        return result;
      }
    return CUDA_SUCCESS;
  });
}

std::vector<Rows> linear(const CUdeviceptr* to, const CUdeviceptr* from, const size_t* bytes,
                         size_t count) {
  std::vector<Rows> copies;
  for (size_t i = 0; to && from && bytes && i < count; ++i)
    copies.push_back({.to = to[i], .from = from[i], .bytes = bytes[i]});
  return copies;
}

std::vector<Rows> boxes(const CUDA_MEMCPY3D_BATCH_OP* list, size_t count) {
  std::vector<Rows> copies;
  for (size_t i = 0; list && i < count; ++i) {
    const CUDA_MEMCPY3D_BATCH_OP& box = list[i];
    Rows rows{.to = box.dst.ptr, .from = box.src.ptr, .bytes = box.width, .rows = box.height,
              .slices = box.depth};
    const auto pitch = [&](const CUmemcpy3DOperand& side) {
      return side.rowLength ? side.rowLength : box.width;
    };
    const auto slice = [&](const CUmemcpy3DOperand& side) {
      return pitch(side) * (side.layerHeight ? side.layerHeight : box.height);
    };
    rows.to_pitch = pitch(box.dst), rows.from_pitch = pitch(box.src);
    rows.to_slice = slice(box.dst), rows.from_slice = slice(box.src);
    copies.push_back(rows);
  }
  return copies;
}
}  // namespace

FIRN_GPU_ENTRY_PTDS(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes)) {
  return copy_linear("cuMemcpy", to, from, bytes, nullptr, true);
}
FIRN_GPU_ENTRY_PTDS(cuMemcpyHtoD_v2, (CUdeviceptr to, const void* from, size_t bytes),
                    (to, from, bytes)) {
  return copy_linear("cuMemcpyHtoD", to, number(from), bytes, nullptr, true, Side::device);
}
FIRN_GPU_ENTRY_PTDS(cuMemcpyDtoH_v2, (void* to, CUdeviceptr from, size_t bytes),
                    (to, from, bytes)) {
  return copy_linear("cuMemcpyDtoH", number(to), from, bytes, nullptr, true, Side::any,
                     Side::device);
}
// Device to device does not wait for the copy, whatever its name says.
FIRN_GPU_ENTRY_PTDS(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
                    (to, from, bytes)) {
  return copy_linear("cuMemcpyDtoD", to, from, bytes, nullptr, false, Side::device, Side::device);
}
FIRN_GPU_ENTRY_PTDS(cuMemcpyPeer,
                    (CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                     CUcontext from_context, size_t bytes),
                    (to, to_context, from, from_context, bytes)) {
  return copy_peer("cuMemcpyPeer", {.to = to, .from = from, .bytes = bytes}, to_context,
                   from_context, nullptr, false);
}

FIRN_GPU_ENTRY_PTSZ(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                    CUstream stream), (to, from, bytes, stream)) {
  return copy_linear("cuMemcpyAsync", to, from, bytes, stream, false);
}
FIRN_GPU_ENTRY_PTSZ(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void* from, size_t bytes,
                                           CUstream stream), (to, from, bytes, stream)) {
  return copy_linear("cuMemcpyHtoDAsync", to, number(from), bytes, stream, false, Side::device);
}
FIRN_GPU_ENTRY_PTSZ(cuMemcpyDtoHAsync_v2, (void* to, CUdeviceptr from, size_t bytes,
                                           CUstream stream), (to, from, bytes, stream)) {
  return copy_linear("cuMemcpyDtoHAsync", number(to), from, bytes, stream, false, Side::any,
                     Side::device);
}
FIRN_GPU_ENTRY_PTSZ(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                           CUstream stream), (to, from, bytes, stream)) {
  return copy_linear("cuMemcpyDtoDAsync", to, from, bytes, stream, false, Side::device,
                     Side::device);
}
FIRN_GPU_ENTRY_PTSZ(cuMemcpyPeerAsync,
                    (CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                     CUcontext from_context, size_t bytes, CUstream stream),
                    (to, to_context, from, from_context, bytes, stream)) {
  return copy_peer("cuMemcpyPeerAsync", {.to = to, .from = from, .bytes = bytes}, to_context,
                   from_context, stream, false);
}

FIRN_GPU_ENTRY_PTDS(cuMemcpy2D_v2, (const CUDA_MEMCPY2D* what), (what)) {
  return copy_2d("cuMemcpy2D", what, nullptr, true);
}
FIRN_GPU_ENTRY_PTDS(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D* what), (what)) {
  return copy_2d("cuMemcpy2DUnaligned", what, nullptr, true);
}
FIRN_GPU_ENTRY_PTSZ(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D* what, CUstream stream),
                    (what, stream)) {
  return copy_2d("cuMemcpy2DAsync", what, stream, false);
}

FIRN_GPU_ENTRY_PTDS(cuMemcpy3D_v2, (const CUDA_MEMCPY3D* what), (what)) {
  return copy_3d("cuMemcpy3D", what, nullptr, true);
}
FIRN_GPU_ENTRY_PTSZ(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D* what, CUstream stream),
                    (what, stream)) {
  return copy_3d("cuMemcpy3DAsync", what, stream, false);
}
FIRN_GPU_ENTRY_PTDS(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER* what), (what)) {
  return copy_3d_peer("cuMemcpy3DPeer", what, nullptr);
}
FIRN_GPU_ENTRY_PTSZ(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER* what, CUstream stream),
                    (what, stream)) {
  return copy_3d_peer("cuMemcpy3DPeerAsync", what, stream);
}
FIRN_GPU_ENTRY_PTSZ(cuMemcpyBatchAsync,
                    (CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                     void* attributes, size_t* indices, size_t attribute_count, size_t* failed,
                     CUstream stream),
                    (to, from, bytes, count, attributes, indices, attribute_count, failed,
                     stream)) {
  (void)attributes, (void)indices, (void)attribute_count;
  return batch("cuMemcpyBatchAsync", linear(to, from, bytes, count), stream, failed);
}
FIRN_GPU_ENTRY_PTSZ(cuMemcpyBatchAsync_v2,
                    (CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                     void* attributes, size_t* indices, size_t attribute_count,
                     CUstream stream),
                    (to, from, bytes, count, attributes, indices, attribute_count, stream)) {
  (void)attributes, (void)indices, (void)attribute_count;
  return batch("cuMemcpyBatchAsync", linear(to, from, bytes, count), stream, nullptr);
}
FIRN_GPU_ENTRY_PTSZ(cuMemcpy3DBatchAsync,
                    (size_t count, CUDA_MEMCPY3D_BATCH_OP* list, size_t* failed,
                     unsigned long long flags, CUstream stream),
                    (count, list, failed, flags, stream)) {
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  return batch("cuMemcpy3DBatchAsync", boxes(list, count), stream, failed);
}
FIRN_GPU_ENTRY_PTSZ(cuMemcpy3DBatchAsync_v2,
                    (size_t count, CUDA_MEMCPY3D_BATCH_OP* list, unsigned long long flags,
                     CUstream stream),
                    (count, list, flags, stream)) {
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  return batch("cuMemcpy3DBatchAsync", boxes(list, count), stream, nullptr);
}

FIRN_GPU_ENTRY_PTDS(cuMemsetD8_v2, (CUdeviceptr to, unsigned char value, size_t count),
                    (to, value, count)) {
  return fill("cuMemsetD8", to, 0, value, 1, count, 1, nullptr, false);
}
FIRN_GPU_ENTRY_PTDS(cuMemsetD16_v2, (CUdeviceptr to, unsigned short value, size_t count),
                    (to, value, count)) {
  return fill("cuMemsetD16", to, 0, value, 2, count, 1, nullptr, false);
}
FIRN_GPU_ENTRY_PTDS(cuMemsetD32_v2, (CUdeviceptr to, unsigned value, size_t count),
                    (to, value, count)) {
  return fill("cuMemsetD32", to, 0, value, 4, count, 1, nullptr, false);
}
FIRN_GPU_ENTRY_PTDS(cuMemsetD2D8_v2, (CUdeviceptr to, size_t pitch, unsigned char value,
                                      size_t width, size_t height),
                    (to, pitch, value, width, height)) {
  return fill("cuMemsetD2D8", to, pitch, value, 1, width, height, nullptr, false);
}
FIRN_GPU_ENTRY_PTDS(cuMemsetD2D32_v2, (CUdeviceptr to, size_t pitch, unsigned value, size_t width,
                                       size_t height), (to, pitch, value, width, height)) {
  return fill("cuMemsetD2D32", to, pitch, value, 4, width, height, nullptr, false);
}
FIRN_GPU_ENTRY_PTSZ(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t count,
                                      CUstream stream), (to, value, count, stream)) {
  return fill("cuMemsetD8Async", to, 0, value, 1, count, 1, stream, false);
}
FIRN_GPU_ENTRY_PTSZ(cuMemsetD16Async, (CUdeviceptr to, unsigned short value, size_t count,
                                       CUstream stream), (to, value, count, stream)) {
  return fill("cuMemsetD16Async", to, 0, value, 2, count, 1, stream, false);
}
FIRN_GPU_ENTRY_PTSZ(cuMemsetD32Async, (CUdeviceptr to, unsigned value, size_t count,
                                       CUstream stream), (to, value, count, stream)) {
  return fill("cuMemsetD32Async", to, 0, value, 4, count, 1, stream, false);
}
FIRN_GPU_ENTRY_PTSZ(cuMemsetD2D8Async, (CUdeviceptr to, size_t pitch, unsigned char value,
                                        size_t width, size_t height, CUstream stream),
                    (to, pitch, value, width, height, stream)) {
  return fill("cuMemsetD2D8Async", to, pitch, value, 1, width, height, stream, false);
}
FIRN_GPU_ENTRY_PTSZ(cuMemsetD2D32Async, (CUdeviceptr to, size_t pitch, unsigned value,
                                         size_t width, size_t height, CUstream stream),
                    (to, pitch, value, width, height, stream)) {
  return fill("cuMemsetD2D32Async", to, pitch, value, 4, width, height, stream, false);
}

}  // namespace firn::software
