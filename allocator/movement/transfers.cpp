#include "allocator/movement/transfers.h"

#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "firn/canary.h"
#include "firn/check.h"

namespace firn {

using lifetimes::Channel;

namespace {
Channel channel_of(bool reads) { return reads ? Channel::store_read : Channel::store_write; }

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

/// (Requests that the store has not answered are left to it, with their staging.)
Transfers::~Transfers() = default;

Result<void> Transfers::start(bool gated) {
  for (CUstream* stream : {&out_stream_, &in_stream_}) {
    const CUresult result = at_.driver.stream_create(stream, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS) {
      if (out_stream_) (void)at_.driver.stream_destroy(out_stream_);
      out_stream_ = in_stream_ = nullptr;
      return at_.driver.error("cuStreamCreate", result);
    }
  }
  if (gated) gate_.start();
  return {};
}

void Transfers::end() {
  gate_.end();
  (void)at_.driver.stream_destroy(out_stream_);
  (void)at_.driver.stream_destroy(in_stream_);
}

Result<void> Transfers::copy_out(Block& block, uint32_t index, Staging* staging, bool waited) {
  Piece& piece = block.pieces[index];
  const CUresult result = copy(block, piece, staging->data, false);
  if (result != CUDA_SUCCESS) return at_.health.failed("cuMemcpyDtoHAsync", result);
  bandwidths_.begin(Channel::host_out, at_.clock.now_ns());
  const Use use = at_.streams.now(out_);
  at_.uses.add(block, use);
  piece.host = staging;
  piece.copying_out = true;
  at_.host.ref(staging);
  copies_out_.push_back({piece_ref(block, index), staging, use, waited});
  return {};
}

Result<void> Transfers::copy_in(Block& block, uint32_t index) {
  Piece& piece = block.pieces[index];
  const CUresult result = copy(block, piece, piece.host->data, true);
  if (result != CUDA_SUCCESS) return at_.health.failed("cuMemcpyHtoDAsync", result);
  const Use use = at_.streams.now(in_);
  at_.uses.add(block, use);
  piece.on_device = true;
  at_.host.ref(piece.host);
  copies_in_.push_back({piece_ref(block, index), piece.host, use, false});
  bandwidths_.begin(Channel::host_in, at_.clock.now_ns());
  return {};
}

/// Where a piece's addresses lead to host memory a driver may refuse the copy: then it is asked by
/// the call that takes any two addresses, and after that the processor copies, when the stream
/// comes to it.
CUresult Transfers::copy(const Block& block, const Piece& piece, void* host, bool in) {
  const uint64_t address = block.address + piece.offset;
  const Span& span = block.span_of(piece);
  const bool in_host = span.mapped() && span.frames.front().host;
  CopyWay way = in_host ? host_way_ : CopyWay::as_others;
  if (!in) gate_.pass(out_stream_);
  for (;;) {
    CUresult result = CUDA_SUCCESS;
    const auto there = reinterpret_cast<CUdeviceptr>(host);
    if (way == CopyWay::by_processor)
      result = copy_by_processor(block, piece, host, in);
    else if (way == CopyWay::unified)
      result = in ? at_.driver.memcpy_async(address, there, piece.bytes, in_stream_)
                  : at_.driver.memcpy_async(there, address, piece.bytes, out_stream_);
    else
      result = in ? at_.driver.memcpy_htod_async(address, host, piece.bytes, in_stream_)
                  : at_.driver.memcpy_dtoh_async(host, address, piece.bytes,
                                                 FIRN_CANARY(10) ? in_stream_ : out_stream_);
    if (result == CUDA_SUCCESS && in_host && way != host_way_) {
      host_way_ = way;
      at_.trouble(way == CopyWay::unified
                      ? "the driver refuses to copy to or from host memory at device addresses "
                        "(cuMemcpyHtoD, cuMemcpyDtoH): Firn uses cuMemcpyAsync instead"
                      : "the driver refuses to copy to or from host memory at device addresses: "
                        "the CPU copies instead, slowly");
    }
    if (!in_host || !refused(result) || way == CopyWay::by_processor) return result;
    way = way == CopyWay::as_others ? CopyWay::unified : CopyWay::by_processor;
  }
}

/// Opens the span to the CPU, which copies when the stream's work so far is over.
CUresult Transfers::copy_by_processor(const Block& block, const Piece& piece, void* host,
                                      bool in) {
  const Span& span = block.span_of(piece);
  CUmemAccessDesc access{};
  access.location = at_.host_location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (CUresult result = at_.driver.mem_set_access(block.base() + span.begin * page_bytes,
                                                  span.frames.front().bytes(), &access, 1))
    return result;
  auto* at = reinterpret_cast<void*>(block.address + piece.offset);
  auto what = std::make_unique<Bytes>(in ? Bytes{at, host, piece.bytes}
                                         : Bytes{host, at, piece.bytes});
  const CUresult result =
      at_.driver.launch_host_func(in ? in_stream_ : out_stream_, move_bytes, what.get());
  if (result == CUDA_SUCCESS) (void)what.release();  // the stream's from here
  return result;
}

IoRequest* Transfers::request_for(Block& block, uint32_t index, Staging* staging, bool reads) {
  auto request = std::make_unique<IoRequest>(
      IoRequest{piece_ref(block, index), staging, reads, at_.clock.now_ns()});
  requests_.insert(request.get());  // (may find no memory)
  at_.host.ref(staging);
  return request.release();
}

/// Drops a request that is over, or has not begun.
void Transfers::forget(IoRequest* request) {
  FIRN_CHECK(requests_.erase(request) == 1, "unknown request %p", static_cast<void*>(request));
  if (!request->reads) writing_bytes_ -= request->staging->bytes;
  at_.host.unref(request->staging);
  delete request;
}

Result<void> Transfers::write(Block& block, uint32_t index, Slot slot) {
  Piece& piece = block.pieces[index];
  IoRequest* request = request_for(block, index, piece.host, false);
  writing_bytes_ += piece.host->bytes;
  const std::span<std::byte> bytes(piece.host->data, piece.host->bytes);
  const Result<void> begun =
      at_.store->write(at_.queue, slot, bytes, reinterpret_cast<uint64_t>(request));
  if (!begun) {
    forget(request);
    return begun;
  }
  piece.slot = slot;
  piece.writing = true;
  piece.request = request;
  bandwidths_.begin(Channel::store_write, at_.clock.now_ns());
  return {};
}

Result<void> Transfers::read(Block& block, uint32_t index, Staging* staging) {
  Piece& piece = block.pieces[index];
  IoRequest* request = request_for(block, index, staging, true);
  const Result<void> begun = at_.store->read(at_.queue, piece.slot, {staging->data, staging->bytes},
                                             reinterpret_cast<uint64_t>(request));
  if (!begun) {
    forget(request);
    return begun;
  }
  piece.host = staging;
  piece.reading = true;
  piece.request = request;
  bandwidths_.begin(Channel::store_read, at_.clock.now_ns());
  return {};
}

void Transfers::drop(Piece& piece) {
  IoRequest* request = std::exchange(piece.request, nullptr);
  if (request && at_.store->cancel(at_.queue, reinterpret_cast<uint64_t>(request))) {
    bandwidths_.end(channel_of(request->reads), 0, at_.clock.now_ns());
    forget(request);
  } else if (FIRN_CANARY(22) && request && request->reads) {
    auto* ours = new Staging(*request->staging);
    ours->refs = 1 << 20;
    at_.host.unref(request->staging);  // others have it while the store still reads into it
    request->staging = ours;
  }
  piece.writing = piece.reading = piece.copying_out = false;
}

std::optional<PieceRef> Transfers::next(std::deque<CopyInFlight>& copies, Channel channel) {
  if (copies.empty()) return std::nullopt;
  const CopyInFlight copy = copies.front();
  if (!at_.streams.over(copy.use)) {
    (void)at_.streams.close(copy.use);
    return std::nullopt;
  }
  copies.pop_front();
  bandwidths_.end(channel, copy.waited ? 0 : copy.staging->bytes, at_.clock.now_ns());
  at_.host.unref(copy.staging);
  return copy.ref;
}

std::optional<PieceRef> Transfers::next_out() { return next(copies_out_, Channel::host_out); }
std::optional<PieceRef> Transfers::next_in() { return next(copies_in_, Channel::host_in); }

std::optional<Transfers::Answer> Transfers::next_answer() {
  if (answer_ == answered_) {
    if (FIRN_CANARY(40) && requests_.size() > 2) return std::nullopt;
    answer_ = 0;
    answered_ = at_.store->poll(at_.queue, answers_);
    if (answered_ == 0) return std::nullopt;
  }
  StoreCompletion& completion = answers_[answer_++];
  auto* request = reinterpret_cast<IoRequest*>(completion.tag);
  FIRN_CHECK(requests_.contains(request), "unknown completion %p", static_cast<void*>(request));
  Answer answer{request->ref, request->staging->bytes, request->begun_ns, request->reads,
                std::exchange(completion, {})};
  const bool failed = answer.completion.error.code != Code::ok;
  bandwidths_.end(channel_of(answer.reads), failed ? 0 : answer.bytes, at_.clock.now_ns());
  forget(request);
  return answer;
}

void Transfers::wait_for_copies() {
  for (auto* copies : {&copies_out_, &copies_in_})
    for (const CopyInFlight& copy : *copies)
      if (Result<void> waited = at_.streams.wait(copy.use); !waited)
        at_.health.answered("cuEventSynchronize", static_cast<CUresult>(waited.error().detail));
}

const IoRequest* Transfers::unanswered(uint64_t patience_ns) {
  if (requests_.empty()) return nullptr;
  const uint64_t now = at_.clock.now_ns();
  if (now < next_look_ns_) return nullptr;
  next_look_ns_ = now + 1'000'000'000;
  for (const IoRequest* request : requests_)
    if (now - request->begun_ns > patience_ns) return request;
  return nullptr;
}

uint64_t Transfers::reading_bytes() const {
  uint64_t bytes = 0;
  for (const IoRequest* request : requests_)
    if (request->reads) bytes += request->staging->bytes;
  return bytes;
}

uint64_t Transfers::bytes_of(const std::deque<CopyInFlight>& copies) {
  uint64_t bytes = 0;
  for (const CopyInFlight& copy : copies) bytes += copy.staging->bytes;
  return bytes;
}

uint64_t Transfers::in_flight_bytes() const {
  uint64_t bytes = bytes_out() + bytes_in();
  for (const IoRequest* request : requests_) bytes += request->staging->bytes;
  return bytes;
}

}  // namespace firn
