// Copies of pieces between staging and the device's addresses. Where those lead to host memory a
// driver may refuse the copy: then it is asked by the call that takes any two addresses, and after
// that the processor copies, when the stream comes to it. Under the engine's lock.
#include <cstring>
#include <memory>

#include "allocator/engine/engine_impl.h"
#include "firn/canary.h"

namespace firn {

namespace {
struct Bytes {
  void* to;
  const void* from;
  size_t bytes;
};
void move_bytes(void* data) {
  const std::unique_ptr<Bytes> what(static_cast<Bytes*>(data));
  std::memcpy(what->to, what->from, what->bytes);
}

bool refused(CUresult result) {
  return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED ||
         result == CUDA_ERROR_NOT_PERMITTED;
}
}  // namespace

CUresult EngineImpl::copy_piece(const Block& block, const Piece& piece, void* host, bool in) {
  const uint64_t address = block.address + piece.offset;
  const Span& span = block.span_of(piece);
  const bool in_host = span.mapped() && span.frames.front().host;
  HostCopies way = in_host ? host_copies_ : HostCopies::as_others;
  if (!in) gate_.pass(out_stream_);
  for (;;) {
    CUresult result = CUDA_SUCCESS;
    const auto there = reinterpret_cast<CUdeviceptr>(host);
    if (way == HostCopies::by_processor)
      result = copy_by_processor(block, piece, host, in);
    else if (way == HostCopies::unified)
      result = in ? driver_.memcpy_async(address, there, piece.bytes, in_stream_)
                  : driver_.memcpy_async(there, address, piece.bytes, out_stream_);
    else
      result = in ? driver_.memcpy_htod_async(address, host, piece.bytes, in_stream_)
                  : driver_.memcpy_dtoh_async(host, address, piece.bytes,
                                             FIRN_CANARY(10) ? in_stream_ : out_stream_);
    if (result == CUDA_SUCCESS && in_host && way != host_copies_) {
      host_copies_ = way;
      trouble(way == HostCopies::unified
                  ? "the driver refuses to copy to or from host memory at device addresses "
                    "(cuMemcpyHtoD, cuMemcpyDtoH): cuMemcpyAsync serves"
                  : "the driver refuses to copy to or from host memory at device addresses: the "
                    "processor copies, slowly");
    }
    if (!in_host || !refused(result) || way == HostCopies::by_processor) return result;
    way = way == HostCopies::as_others ? HostCopies::unified : HostCopies::by_processor;
  }
}

/// The span is opened to the processor, which copies when the stream's work so far is over.
CUresult EngineImpl::copy_by_processor(const Block& block, const Piece& piece, void* host,
                                       bool in) {
  const Span& span = block.span_of(piece);
  CUmemAccessDesc access = access_of(0);
  access.location = frames_.host_location();
  if (CUresult result = driver_.mem_set_access(block.base() + span.begin * grain_bytes,
                                               span.frames.front().bytes(), &access, 1))
    return result;
  auto* at = reinterpret_cast<void*>(block.address + piece.offset);
  auto what = std::make_unique<Bytes>(in ? Bytes{at, host, piece.bytes}
                                         : Bytes{host, at, piece.bytes});
  const CUresult result =
      driver_.launch_host_func(in ? in_stream_ : out_stream_, move_bytes, what.get());
  if (result == CUDA_SUCCESS) (void)what.release();  // its own from here
  return result;
}

}  // namespace firn
