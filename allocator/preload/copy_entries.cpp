// The driver's entries that copy and fill linear memory: each expressed as a Copy.
#include <vector>

#include "allocator/preload/copies.h"
#include "allocator/preload/handlers.h"
#include "firn/saturating.h"

namespace firn::preload {

namespace {
using Source = Copy::Source;

Copy fill(CUdeviceptr to, size_t pitch, size_t unit, size_t width, size_t height,
          CUstream stream) {
  return {.to = to, .bytes = saturating_multiply(unit, width), .source = Source::none, .rows = height,
          .to_pitch = pitch, .stream = stream};
}

template <class What, class Call>
CUresult structured(const What* what, CUstream stream, Call&& call) {
  Copy copy;
  if (!read_copy(what, copy)) return call();
  copy.stream = stream;
  return around(copy, call);
}
}  // namespace

// An entry and its variant whose null stream is the thread's own.
#define DEFAULT_STREAM(entry, parameters, arguments, ...)                                      \
  CUresult entry parameters {                                                                  \
    const CUstream stream = nullptr;                                                           \
    return around(__VA_ARGS__, [&] { return real().entry arguments; });                        \
  }                                                                                            \
  CUresult entry##_ptds parameters {                                                           \
    const CUstream stream = CU_STREAM_PER_THREAD;                                              \
    return around(__VA_ARGS__, [&] { return real().entry##_ptds arguments; });                 \
  }
#define ON_STREAM(entry, parameters, arguments, ...)                                           \
  CUresult entry parameters {                                                                  \
    return around(__VA_ARGS__, [&] { return real().entry arguments; });                        \
  }                                                                                            \
  CUresult entry##_ptsz parameters {                                                           \
    Copy copy = __VA_ARGS__;                                                                   \
    copy.stream = own(copy.stream);                                                            \
    return around(copy, [&] { return real().entry##_ptsz arguments; });                        \
  }

DEFAULT_STREAM(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes),
               Copy{.to = to, .from = from, .bytes = bytes, .stream = stream})
ON_STREAM(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
          (to, from, bytes, stream),
          Copy{.to = to, .from = from, .bytes = bytes, .stream = stream})
DEFAULT_STREAM(cuMemcpyHtoD_v2, (CUdeviceptr to, const void* from, size_t bytes),
               (to, from, bytes),
               Copy{.to = to, .from = number(from), .bytes = bytes, .source = Source::host,
                    .stream = stream})
ON_STREAM(cuMemcpyHtoDAsync_v2,
          (CUdeviceptr to, const void* from, size_t bytes, CUstream stream),
          (to, from, bytes, stream),
          Copy{.to = to, .from = number(from), .bytes = bytes, .source = Source::host,
               .stream = stream})
DEFAULT_STREAM(cuMemcpyDtoH_v2, (void* to, CUdeviceptr from, size_t bytes), (to, from, bytes),
               Copy{.to = number(to), .from = from, .bytes = bytes, .source = Source::device,
                    .to_host = true, .stream = stream})
ON_STREAM(cuMemcpyDtoHAsync_v2, (void* to, CUdeviceptr from, size_t bytes, CUstream stream),
          (to, from, bytes, stream),
          Copy{.to = number(to), .from = from, .bytes = bytes, .source = Source::device,
               .to_host = true, .stream = stream})
DEFAULT_STREAM(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
               (to, from, bytes),
               Copy{.to = to, .from = from, .bytes = bytes, .source = Source::device,
                    .stream = stream})
ON_STREAM(cuMemcpyDtoDAsync_v2,
          (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
          (to, from, bytes, stream),
          Copy{.to = to, .from = from, .bytes = bytes, .source = Source::device,
               .stream = stream})
DEFAULT_STREAM(cuMemcpyPeer,
               (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                size_t bytes),
               (to, to_context, from, from_context, bytes),
               Copy{.to = to, .from = from, .bytes = bytes, .source = Source::device,
                    .stream = stream, .to_context = to_context, .from_context = from_context})
ON_STREAM(cuMemcpyPeerAsync,
          (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
           size_t bytes, CUstream stream),
          (to, to_context, from, from_context, bytes, stream),
          Copy{.to = to, .from = from, .bytes = bytes, .source = Source::device,
               .stream = stream, .to_context = to_context, .from_context = from_context})
// From and into arrays, which hold no addresses.
DEFAULT_STREAM(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, size_t offset, size_t bytes),
               (to, from, offset, bytes),
               Copy{.to = to, .bytes = bytes, .source = Source::none, .stream = stream})
DEFAULT_STREAM(cuMemcpyDtoA_v2, (CUarray to, size_t offset, CUdeviceptr from, size_t bytes),
               (to, offset, from, bytes),
               Copy{.from = from, .bytes = bytes, .source = Source::device, .stream = stream})

#define STRUCTURED(entry, what)                                                                \
  CUresult entry(const what* copy) {                                                           \
    return structured(copy, nullptr, [&] { return real().entry(copy); });                      \
  }                                                                                            \
  CUresult entry##_ptds(const what* copy) {                                                    \
    return structured(copy, CU_STREAM_PER_THREAD, [&] { return real().entry##_ptds(copy); });  \
  }
#define STRUCTURED_ASYNC(entry, what)                                                          \
  CUresult entry(const what* copy, CUstream stream) {                                          \
    return structured(copy, stream, [&] { return real().entry(copy, stream); });               \
  }                                                                                            \
  CUresult entry##_ptsz(const what* copy, CUstream stream) {                                   \
    return structured(copy, own(stream), [&] { return real().entry##_ptsz(copy, stream); });   \
  }
STRUCTURED(cuMemcpy2D_v2, CUDA_MEMCPY2D)
STRUCTURED(cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D)
STRUCTURED_ASYNC(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D)
STRUCTURED(cuMemcpy3D_v2, CUDA_MEMCPY3D)
STRUCTURED_ASYNC(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D)
STRUCTURED(cuMemcpy3DPeer, CUDA_MEMCPY3D_PEER)
STRUCTURED_ASYNC(cuMemcpy3DPeerAsync, CUDA_MEMCPY3D_PEER)

namespace {
/// Many copies in one call, in any order: all their blocks are held until all are enqueued.
template <class Call>
CUresult around_all(const std::vector<Copy>& copies, CUstream stream, Call&& call) {
  Enqueues enqueues(stream);
  Work work(where_on(stream));
  Noted noted;
  for (const Copy& copy : copies)
    if (CUresult result = note_copy(copy, work, noted)) return result;
  if (noted.ours)
    if (CUresult result = work.hold(false)) return result;
  const CUresult result = call();
  if (result == CUDA_SUCCESS && !noted.captured)
    for (const Copy& copy : copies) tell_tables(copy);
  if (noted.ours) end_copies(work, result);
  if (!noted.captured && std::any_of(copies.begin(), copies.end(), beside_host))
    enqueues.wait();
  return result;
}

template <class Call>
CUresult batch(CUdeviceptr* to, CUdeviceptr* from, const size_t* bytes, size_t count,
               CUstream stream, Call&& call) {
  if (views().count() == 0 || !to || !from || !bytes || count == 0) return call();
  std::vector<Copy> copies;
  for (size_t i = 0; i < count; ++i)
    copies.push_back({.to = to[i], .from = from[i], .bytes = bytes[i], .stream = stream});
  return around_all(copies, stream, call);
}
}  // namespace

#define BATCH(entry, of_stream)                                                                \
  CUresult entry(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,              \
                 void* attributes, size_t* indices, size_t attribute_count, size_t* failed,    \
                 CUstream stream) {                                                            \
    return batch(to, from, bytes, count, of_stream, [&] {                                      \
      return real().entry(to, from, bytes, count, attributes, indices, attribute_count,        \
                          failed, stream);                                                     \
    });                                                                                        \
  }
#define BATCH_V2(entry, of_stream)                                                             \
  CUresult entry(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,              \
                 void* attributes, size_t* indices, size_t attribute_count, CUstream stream) { \
    return batch(to, from, bytes, count, of_stream, [&] {                                      \
      return real().entry(to, from, bytes, count, attributes, indices, attribute_count,        \
                          stream);                                                             \
    });                                                                                        \
  }
BATCH(cuMemcpyBatchAsync, stream)
BATCH(cuMemcpyBatchAsync_ptsz, own(stream))
BATCH_V2(cuMemcpyBatchAsync_v2, stream)
BATCH_V2(cuMemcpyBatchAsync_v2_ptsz, own(stream))

namespace {
/// Copies of boxes: their blocks are held. A box between linear memories has rows as in any copy;
/// where an array takes part, rows are counted in its elements.
template <class Call>
CUresult batch_3d(const CUDA_MEMCPY3D_BATCH_OP* boxes, size_t count, CUstream stream,
                  Call&& call) {
  constexpr int memory = 1;
  if (views().count() == 0 || !boxes || count == 0) return call();
  std::vector<Copy> copies;
  for (size_t i = 0; i < count; ++i) {
    const CUDA_MEMCPY3D_BATCH_OP& box = boxes[i];
    const auto pitch = [&](const CUmemcpy3DOperand& side) {
      return side.rowLength ? side.rowLength : box.width;
    };
    const auto slice = [&](const CUmemcpy3DOperand& side) {
      return saturating_multiply(pitch(side), side.layerHeight ? side.layerHeight : box.height);
    };
    Copy copy{.bytes = box.width, .rows = box.height, .slices = box.depth, .stream = stream};
    if (box.dst.type == memory && box.src.type == memory) {
      copy.to = box.dst.ptr;
      copy.from = box.src.ptr;
      copy.to_pitch = pitch(box.dst), copy.from_pitch = pitch(box.src);
      copy.to_slice = slice(box.dst), copy.from_slice = slice(box.src);
    } else {
      copy.to = box.dst.type == memory ? box.dst.ptr : 0;
      copy.from = box.src.type == memory ? box.src.ptr : 0;
      copy.source = copy.to ? Source::none : Source::device;
      copy.bytes = copy.rows = copy.slices = 1;
    }
    copies.push_back(copy);
  }
  return around_all(copies, stream, call);
}
}  // namespace

#define BATCH_3D(entry, of_stream)                                                             \
  CUresult entry(size_t count, CUDA_MEMCPY3D_BATCH_OP* copies, size_t* failed,                 \
                 unsigned long long flags, CUstream stream) {                                  \
    return batch_3d(copies, count, of_stream,                                                  \
                    [&] { return real().entry(count, copies, failed, flags, stream); });       \
  }
#define BATCH_3D_V2(entry, of_stream)                                                          \
  CUresult entry(size_t count, CUDA_MEMCPY3D_BATCH_OP* copies, unsigned long long flags,       \
                 CUstream stream) {                                                            \
    return batch_3d(copies, count, of_stream,                                                  \
                    [&] { return real().entry(count, copies, flags, stream); });               \
  }
BATCH_3D(cuMemcpy3DBatchAsync, stream)
BATCH_3D(cuMemcpy3DBatchAsync_ptsz, own(stream))
BATCH_3D_V2(cuMemcpy3DBatchAsync_v2, stream)
BATCH_3D_V2(cuMemcpy3DBatchAsync_v2_ptsz, own(stream))

namespace {
/// The output is somebody's packed data: addresses in it are unknown.
template <class Call>
CUresult decompress(const CUmemDecompressParams* parts, size_t count, CUstream stream,
                    Call&& call) {
  if (views().count() == 0 || !parts) return call();
  const Enqueues enqueues(stream);
  Work work(where_on(stream));
  for (size_t i = 0; i < count; ++i)
    for (const void* address : {parts[i].src, static_cast<const void*>(parts[i].dst),
                                static_cast<const void*>(parts[i].dstActBytes)})
      work.see(number(address));
  if (CUresult result = work.hold(false)) return result;
  const CUresult result = call();
  work.release(result == CUDA_SUCCESS);
  return result;
}
}  // namespace
CUresult cuMemBatchDecompressAsync(CUmemDecompressParams* parts, size_t count, unsigned flags,
                                   size_t* failed, CUstream stream) {
  return decompress(parts, count, stream, [&] {
    return real().cuMemBatchDecompressAsync(parts, count, flags, failed, stream);
  });
}
CUresult cuMemBatchDecompressAsync_ptsz(CUmemDecompressParams* parts, size_t count,
                                        unsigned flags, size_t* failed, CUstream stream) {
  return decompress(parts, count, own(stream), [&] {
    return real().cuMemBatchDecompressAsync_ptsz(parts, count, flags, failed, stream);
  });
}

#define FILL(bits, type)                                                                       \
  DEFAULT_STREAM(cuMemsetD##bits##_v2, (CUdeviceptr to, type value, size_t count),             \
                 (to, value, count), fill(to, 0, bits / 8, count, 1, stream))                  \
  ON_STREAM(cuMemsetD##bits##Async,                                                            \
            (CUdeviceptr to, type value, size_t count, CUstream stream),                       \
            (to, value, count, stream), fill(to, 0, bits / 8, count, 1, stream))               \
  DEFAULT_STREAM(cuMemsetD2D##bits##_v2,                                                       \
                 (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height),      \
                 (to, pitch, value, width, height),                                            \
                 fill(to, pitch, bits / 8, width, height, stream))                             \
  ON_STREAM(cuMemsetD2D##bits##Async,                                                          \
            (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,            \
             CUstream stream),                                                                 \
            (to, pitch, value, width, height, stream),                                         \
            fill(to, pitch, bits / 8, width, height, stream))
FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned)

}  // namespace firn::preload
