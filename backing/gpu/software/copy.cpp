// Entries that copy and fill. On the wall clock bytes move when the copy begins, on the virtual
// clock when it ends; in both the copy is complete no sooner than its modelled time.
#include <cstring>

#include "graph.h"
#include "gpu.h"

namespace firn::software {

namespace {
constexpr size_t staged_bytes_max = 1u << 20;  // of pageable memory, per asynchronous copy
constexpr size_t inline_bytes_max = 1u << 20;  // of a synchronous copy on an idle GPU

struct Rows {  // a copy: `rows` rows of `bytes`; one row when it is linear
  uint64_t to = 0, from = 0;
  size_t bytes = 0, rows = 1, to_pitch = 0, from_pitch = 0;
  size_t to_span() const { return (rows - 1) * to_pitch + bytes; }
  size_t from_span() const { return (rows - 1) * from_pitch + bytes; }
};

void move_rows(const Rows& copy) {
  for (size_t i = 0; i < copy.rows; ++i)
    std::memmove(reinterpret_cast<void*>(copy.to + i * copy.to_pitch),
                 reinterpret_cast<const void*>(copy.from + i * copy.from_pitch), copy.bytes);
}

uint64_t duration_ns(size_t bytes, double bytes_s) {
  return bytes_s > 0 ? static_cast<uint64_t>(static_cast<double>(bytes) / bytes_s * 1e9) : 0;
}

// Which resource the bytes pass through, and for how long.
void model(Body& body, size_t bytes, int to_device, int from_device) {
  const FirnGpuConfig& config = gpu().config;
  if (to_device < 0 && from_device < 0) return;
  if (to_device == from_device) {
    body.link = &gpu().device(to_device).within;
    body.link_ns = duration_ns(bytes, config.memory_bytes_s);
    return;
  }
  body.link = to_device >= 0 ? &gpu().device(to_device).to_device
                             : &gpu().device(from_device).to_host;
  body.link_ns = duration_ns(bytes, config.link_bytes_s);
  body.latency_ns = config.link_latency_ns;
}

bool quiet(const Stream& stream) {
  if (!stream.queue.empty()) return false;
  auto context = stream.context.lock();
  if (!context) return false;
  if (!stream.legacy) return !stream.blocking() || context->legacy->queue.empty();
  for (const auto& [serial, other] : context->streams)
    if (other->blocking() && !other->queue.empty()) return false;
  return true;
}

void count(int device, size_t bytes) {
  Device& of = gpu().device(device);
  ++of.copies;
  of.copied_bytes += bytes;
}

enum class Side : uint8_t { any, device };  // device: pinned host memory will do, pageable will not

CUresult copy(Gate& gate, Rows rows, CUstream handle, bool wait, Side to_side, Side from_side) {
  std::shared_ptr<Stream> stream;
  if (CUresult result = find_stream(gate, handle, &stream)) return result;
  if (!rows.bytes || !rows.rows) return CUDA_SUCCESS;
  int to_device = -1, from_device = -1;
  const Place to = gpu().space.place(rows.to, rows.to_span(), &to_device);
  const Place from = gpu().space.place(rows.from, rows.from_span(), &from_device);
  if (!rows.to || !rows.from || to == Place::invalid || from == Place::invalid ||
      (to_side == Side::device && to == Place::pageable) ||
      (from_side == Side::device && from == Place::pageable))
    return CUDA_ERROR_INVALID_VALUE;
  const size_t total = rows.bytes * rows.rows;
  const int counted = to_device >= 0 ? to_device : from_device >= 0 ? from_device : stream->device;
  Body body{.entry = gate.entry(), .type = node_memcpy};
  model(body, total, to_device, from_device);
  body.bytes = total;
  if (wait && !stream->capture && total <= inline_bytes_max && !body.link_ns && !body.latency_ns &&
      !gpu().scheduler.virtual_clock && quiet(*stream)) {
    if (CUresult result = submit(gate, stream, Body{.entry = gate.entry()})) return result;
    move_rows(rows);
    count(counted, total);
    return CUDA_SUCCESS;
  }
  body.ranges = {{rows.to, rows.to_span()}, {rows.from, rows.from_span()}};
  body.settle = [counted, total] { count(counted, total); };
  const bool moves = !gpu().config.no_bytes;
  if (moves) body.run = [rows] { move_rows(rows); };
  // Pageable memory: the source may be reused on return, the destination is complete on return.
  if (!wait && !stream->capture) {
    if (from == Place::pageable && total <= staged_bytes_max && rows.rows == 1 &&
        to != Place::pageable) {
      body.ranges.pop_back();
      if (moves) {
        auto staged = std::make_shared<std::vector<char>>(
            reinterpret_cast<const char*>(rows.from),
            reinterpret_cast<const char*>(rows.from) + rows.bytes);
        body.run = [rows, staged]() mutable {
          rows.from = reinterpret_cast<uint64_t>(staged->data());
          move_rows(rows);
        };
      }
    } else {
      wait = from == Place::pageable || to == Place::pageable;
    }
  }
  std::shared_ptr<Work> work;
  if (CUresult result = submit(gate, stream, std::move(body), &work)) return result;
  if (wait) gpu().scheduler.wait_for(gate.lock(), gate.entry(), work);
  return CUDA_SUCCESS;
}

CUresult copy_linear(const char* entry, uint64_t to, uint64_t from, size_t bytes, CUstream stream,
                     bool wait, Side to_side = Side::any, Side from_side = Side::any) {
  return enter(entry, Need::context, [&](Gate& gate) {
    return copy(gate, {.to = to, .from = from, .bytes = bytes}, stream, wait, to_side, from_side);
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
    if (rows.rows > 1 && (rows.to_pitch < what->dstXInBytes + rows.bytes ||
                          rows.from_pitch < what->srcXInBytes + rows.bytes))
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

// `unit_bytes` of `value`, repeated.
CUresult fill(const char* entry, uint64_t to, size_t pitch, unsigned value, size_t unit_bytes,
              size_t width, size_t height, CUstream handle, bool wait) {
  return enter(entry, Need::context, [&](Gate& gate) -> CUresult {
    std::shared_ptr<Stream> stream;
    if (CUresult result = find_stream(gate, handle, &stream)) return result;
    if (!width || !height) return CUDA_SUCCESS;
    const size_t row_bytes = width * unit_bytes;
    if (to % unit_bytes || (height > 1 && (pitch < row_bytes || pitch % unit_bytes)))
      return CUDA_ERROR_INVALID_VALUE;
    const size_t span = (height - 1) * pitch + row_bytes;
    int device = -1;
    const Place place = gpu().space.place(to, span, &device);
    if (place != Place::device && place != Place::pinned) return CUDA_ERROR_INVALID_VALUE;
    Body body{.entry = gate.entry(), .type = node_memset};
    body.ranges = {{to, span}};
    body.link = &gpu().device(device >= 0 ? device : stream->device).within;
    body.link_ns = duration_ns(row_bytes * height, gpu().config.memory_bytes_s);
    if (!gpu().config.no_bytes) body.run = [=] {
      for (size_t row = 0; row < height; ++row) {
        char* at = reinterpret_cast<char*>(to + row * pitch);
        if (unit_bytes == 1) {
          std::memset(at, static_cast<int>(value), row_bytes);
          continue;
        }
        for (size_t i = 0; i < row_bytes; i += unit_bytes) std::memcpy(at + i, &value, unit_bytes);
      }
    };
    std::shared_ptr<Work> work;
    if (CUresult result = submit(gate, stream, std::move(body), &work)) return result;
    if (wait) gpu().scheduler.wait_for(gate.lock(), gate.entry(), work);
    return CUDA_SUCCESS;
  });
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
FIRN_GPU_ENTRY_PTDS(cuMemcpyPeer, (CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext,
                                   size_t bytes), (to, nullptr, from, nullptr, bytes)) {
  return copy_linear("cuMemcpyPeer", to, from, bytes, nullptr, false, Side::device, Side::device);
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
FIRN_GPU_ENTRY_PTSZ(cuMemcpyPeerAsync, (CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext,
                                        size_t bytes, CUstream stream),
                    (to, nullptr, from, nullptr, bytes, stream)) {
  return copy_linear("cuMemcpyPeerAsync", to, from, bytes, stream, false, Side::device,
                     Side::device);
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
