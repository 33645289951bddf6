// The work of kernels, copies and fills: see bodies.h.
#include "bodies.h"

#include <cstring>

#include "arrivals.h"
#include "module.h"
#include "sticky.h"
#include "tags.h"

namespace firn::software {

namespace {
uint64_t duration_ns(size_t bytes, double bytes_s) {
  return bytes_s > 0 ? static_cast<uint64_t>(static_cast<double>(bytes) / bytes_s * 1e9) : 0;
}

// Sets which resource the bytes pass through, and for how long.
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

/// Which way a copy goes over the link to the host, if it does.
enum class Crossing : uint8_t { none, to_device, to_host };

void count(int device, size_t bytes, Crossing crossing) {
  Device& of = gpu().device(device);
  ++of.copies;
  of.copied_bytes += bytes;
  if (crossing == Crossing::to_device) of.copied_to_device_bytes += bytes;
  if (crossing == Crossing::to_host) of.copied_to_host_bytes += bytes;
}

struct Launch {
  std::shared_ptr<Function> function;
  std::shared_ptr<Module> module;  // keeps the code
  std::vector<uint64_t> packed;    // parameters as the kernel sees them; 8-byte aligned
  std::array<unsigned, 3> grid, block;
};

// The parameters, packed as the layout says, from pointers to each or from a packed buffer.
CUresult pack(Launch& launch, void** parameters, void** extra) {
  const Function& function = *launch.function;
  launch.packed.assign(round_up(function.packed_bytes, 8) / 8, 0);
  auto* to = reinterpret_cast<char*>(launch.packed.data());
  if (parameters && extra) return CUDA_ERROR_INVALID_VALUE;
  if (extra) {
    const void* buffer = nullptr;
    size_t bytes = 0;
    for (; *extra != launch_param_end; extra += 2) {
      if (*extra == launch_param_buffer_pointer)
        buffer = extra[1];
      else if (*extra == launch_param_buffer_bytes)
        bytes = *static_cast<size_t*>(extra[1]);
      else
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (bytes < function.packed_bytes || (!buffer && function.packed_bytes))
      return CUDA_ERROR_INVALID_VALUE;
    if (function.packed_bytes) std::memcpy(to, buffer, function.packed_bytes);
    return CUDA_SUCCESS;
  }
  if (!parameters && !function.layout.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < function.layout.size(); ++i) {
    const auto [offset, bytes] = function.layout[i];
    if (!parameters[i]) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(to + offset, parameters[i], bytes);
  }
  return CUDA_SUCCESS;
}

// Every aligned word of the parameters that is an address of this GPU stands for memory in use.
std::vector<Range> addresses_in(const std::vector<uint64_t>& words) {
  std::vector<Range> ranges;
  for (uint64_t word : words)
    if (word >= granule_bytes && gpu().space.of_device(word)) ranges.push_back({word, 1});
  return ranges;
}

void run(Launch& launch) {
  std::vector<void*> pointers;
  auto* packed = reinterpret_cast<char*>(launch.packed.data());
  for (const auto& [offset, bytes] : launch.function->layout) pointers.push_back(packed + offset);
  name_running(launch.function->name.c_str());
  launch.function->run(pointers.data(), launch.grid.data(), launch.block.data());
}


uint64_t number(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }
}  // namespace

void move_rows(const Rows& copy) {
  for (size_t z = 0; z < copy.slices; ++z)
    for (size_t i = 0; i < copy.rows; ++i)
      std::memmove(
          reinterpret_cast<void*>(copy.to + z * copy.to_slice + i * copy.to_pitch),
          reinterpret_cast<const void*>(copy.from + z * copy.from_slice + i * copy.from_pitch),
          copy.bytes);
}

CUresult read_rows(const CUDA_MEMCPY3D* what, Rows* rows, Side* to_side, Side* from_side) {
  if (!what) return CUDA_ERROR_INVALID_VALUE;
  if (what->srcMemoryType == memory_array || what->dstMemoryType == memory_array)
    return CUDA_ERROR_NOT_SUPPORTED;
  *rows = {.bytes = what->WidthInBytes, .rows = what->Height, .to_pitch = what->dstPitch,
           .from_pitch = what->srcPitch, .slices = what->Depth,
           .to_slice = saturating_multiply(what->dstPitch, what->dstHeight),
           .from_slice = saturating_multiply(what->srcPitch, what->srcHeight)};
  if (what->dstPitch > size_t{pitch_most} || what->srcPitch > size_t{pitch_most} ||
      (rows->rows > 1 &&
       (rows->to_pitch < saturating_add(what->dstXInBytes, rows->bytes) ||
        rows->from_pitch < saturating_add(what->srcXInBytes, rows->bytes))))
    return CUDA_ERROR_INVALID_VALUE;
  if (rows->slices > 1 && (what->dstHeight < saturating_add(what->dstY, rows->rows) ||
                           what->srcHeight < saturating_add(what->srcY, rows->rows)))
    return CUDA_ERROR_INVALID_VALUE;
  rows->to = (what->dstMemoryType == memory_host ? number(what->dstHost) : what->dstDevice) +
             what->dstZ * rows->to_slice + what->dstY * what->dstPitch + what->dstXInBytes;
  rows->from = (what->srcMemoryType == memory_host ? number(what->srcHost) : what->srcDevice) +
               what->srcZ * rows->from_slice + what->srcY * what->srcPitch + what->srcXInBytes;
  *to_side = what->dstMemoryType == memory_device ? Side::device : Side::any;
  *from_side = what->srcMemoryType == memory_device ? Side::device : Side::any;
  return CUDA_SUCCESS;
}

namespace {
/// Host memory at a device address?
bool of_host_frames(uint64_t address) {
  const Mapping* mapping = gpu().space.mapping_around(address);
  return mapping && mapping->frame->device < 0 && mapping->frame->imported_fd < 0;
}
}  // namespace

CUresult copy_body(const Rows& rows, Side to_side, Side from_side, int device, Body* body,
                   MemoryKind* to, MemoryKind* from) {
  int to_device = -1, from_device = -1;
  *to = gpu().space.kind_of(rows.to, rows.to_span(), &to_device);
  *from = gpu().space.kind_of(rows.from, rows.from_span(), &from_device);
  if (!rows.to || !rows.from || *to == MemoryKind::invalid || *from == MemoryKind::invalid ||
      (to_side == Side::device && *to == MemoryKind::pageable) ||
      (from_side == Side::device && *from == MemoryKind::pageable))
    return CUDA_ERROR_INVALID_VALUE;
  const bool typed = to_side == Side::device || from_side == Side::device;
  const bool refused = typed ? gpu().refusals.host_copies_typed : gpu().refusals.host_copies;
  if (refused && (of_host_frames(rows.to) || of_host_frames(rows.from)))
    return CUDA_ERROR_INVALID_VALUE;
  // Between devices a copy goes where its context may: mapped memory is open only to devices that
  // were given access.
  if (to_device >= 0 && from_device >= 0 &&
      (!gpu().space.open_to(rows.to, rows.to_span(), rows.to_reach < 0 ? device : rows.to_reach) ||
       !gpu().space.open_to(rows.from, rows.from_span(),
                            rows.from_reach < 0 ? device : rows.from_reach)))
    return CUDA_ERROR_INVALID_VALUE;
  const int counted = to_device >= 0 ? to_device : from_device >= 0 ? from_device : device;
  const bool to_host = to_device < 0 || of_host_frames(rows.to);
  const bool from_host = from_device < 0 || of_host_frames(rows.from);
  const Crossing crossing = to_host == from_host ? Crossing::none
                            : from_host          ? Crossing::to_device
                                                 : Crossing::to_host;
  body->type = node_memcpy;
  model(*body, rows.total(), to_device, from_device);
  body->bytes = rows.total();
  body->ranges = {{rows.to, rows.to_span()}, {rows.from, rows.from_span()}};
  body->settle = [counted, total = rows.total(), crossing] { count(counted, total, crossing); };
  if (gpu().config.tags) make_tag_copy(rows, body);
  if (gpu().config.no_bytes) return CUDA_SUCCESS;
  body->run = [rows] { move_rows(rows); };
  if (*to == MemoryKind::device && from_device < 0) make_arrival(rows, body);
  if (*from == MemoryKind::device && to_device < 0) make_departure(rows, body);
  return CUDA_SUCCESS;
}

CUresult fill_body(uint64_t to, size_t pitch, unsigned value, size_t unit_bytes, size_t width,
                   size_t height, int device, Body* body) {
  const size_t row_bytes = saturating_multiply(width, unit_bytes);
  if (to % unit_bytes || pitch > size_t{pitch_most} ||
      (height > 1 && (pitch < row_bytes || pitch % unit_bytes)))
    return CUDA_ERROR_INVALID_VALUE;
  const size_t span = strided_span(row_bytes, height, pitch, 1, 0);
  int of = -1;
  const MemoryKind kind = gpu().space.kind_of(to, span, &of);
  if (kind != MemoryKind::device && kind != MemoryKind::pinned) return CUDA_ERROR_INVALID_VALUE;
  body->type = node_memset;
  body->ranges = {{to, span}};
  body->link = &gpu().device(of >= 0 ? of : device).within;
  body->link_ns = duration_ns(row_bytes * height, gpu().config.memory_bytes_s);
  if (gpu().config.tags) make_tag_fill(to, pitch, value, row_bytes, height, body);
  if (!gpu().config.no_bytes) body->run = [=] {
    for (size_t row = 0; row < height; ++row) {
      char* at = reinterpret_cast<char*>(to + row * pitch);
      if (unit_bytes == 1) {
        std::memset(at, static_cast<int>(value), row_bytes);
        continue;
      }
      for (size_t i = 0; i < row_bytes; i += unit_bytes) std::memcpy(at + i, &value, unit_bytes);
    }
  };
  return CUDA_SUCCESS;
}

CUresult kernel_body(Gate& gate, CUfunction handle, std::array<unsigned, 3> grid,
                     std::array<unsigned, 3> block, void** parameters, void** extra, Body* body) {
  auto launch = std::make_shared<Launch>();
  launch->function = gpu().functions.find(gate.entry(), handle);
  if (!launch->function) return CUDA_ERROR_INVALID_HANDLE;
  launch->module = launch->function->module.lock();
  if (launch->module && !launch->module->of_library &&
      launch->module->context.lock() != gate.context())
    return CUDA_ERROR_INVALID_HANDLE;
  for (unsigned n : {grid[0], grid[1], grid[2], block[0], block[1], block[2]})
    if (n == 0) return CUDA_ERROR_INVALID_VALUE;
  if (uint64_t{block[0]} * block[1] * block[2] > 1024) return CUDA_ERROR_INVALID_VALUE;
  launch->grid = grid;
  launch->block = block;
  if (CUresult result = pack(*launch, parameters, extra)) return result;
  body->type = node_kernel;
  body->ranges = addresses_in(launch->packed);
  body->run = [launch] {
    Launch own = *launch;  // a replayed kernel may write to its parameters
    run(own);
  };
  body->settle = [device = gate.context()->device] { ++gpu().device(device).kernels; };
  return CUDA_SUCCESS;
}

}  // namespace firn::software
