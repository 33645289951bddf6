#include "allocator/memory/frames.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "allocator/memory/host_nodes.h"
#include "allocator/memory/host_trial.h"
#include "firn/canary.h"
#include "firn/check.h"

namespace firn {

// CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, of CUDA 13.
static constexpr auto host_numa_supported = static_cast<CUdevice_attribute>(141);

Frames::Frames(const Driver& driver, DeviceHealth& health, int device, uint64_t budget_bytes)
    : driver_(driver), health_(health), device_(device),
      budget_(budget_bytes / granule_bytes), limit_(budget_) {
  const auto attribute = [&](CUdevice_attribute which, int otherwise) {
    int value = 0;
    return driver.device_get_attribute(&value, which, device) == CUDA_SUCCESS ? value : otherwise;
  };
  prop_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop_.location.id = device;
  // Any frame may be shared with another process one day (Engine::export_memory).
  if (attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0))
    prop_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  host_supported_ = attribute(host_numa_supported, 0) != 0;
  host_prop_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  host_prop_.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  host_prop_.location.id = host_node(attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1));
}

Result<void> Frames::check() {
  int supported = 0;
  CUresult result = driver_.device_get_attribute(
      &supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device_);
  if (result != CUDA_SUCCESS) return health_.failed("cuDeviceGetAttribute", result);
  if (!supported)
    return make_error(Code::not_supported, 0,
                      fmt::format("device {} lacks virtual memory management (cuMemMap), which "
                                  "Firn needs", device_));
  size_t bytes = 0;
  result = driver_.mem_get_allocation_granularity(&bytes, &prop_, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS && prop_.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
      !DeviceHealth::stays(result)) {
    prop_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    result =
        driver_.mem_get_allocation_granularity(&bytes, &prop_, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  }
  if (result != CUDA_SUCCESS) return health_.failed("cuMemGetAllocationGranularity", result);
  if (bytes == 0 || granule_bytes % bytes != 0)
    return make_error(Code::not_supported, 0,
                      fmt::format("device {} maps memory in units of {} bytes: Firn needs units "
                                  "that divide {} bytes", device_, bytes,
                                  granule_bytes));
  return {};
}

Frames::~Frames() {
  if (!abandoned_) trim();
}

uint64_t Frames::available() const {
  // (Frames that are being made were reserved by their maker.)
  uint64_t there = free_granules() + headroom() + changing_;
  return there > reserved_ ? there - reserved_ : 0;
}

Reservation Frames::reserve(uint64_t granules) {
  if (granules > available()) return {};
  reserved_ += granules;
  return Reservation(this, granules);
}

Result<Frame> Frames::create(uint32_t granules) {
  Frame frame{0, granules};
  CUresult result = driver_.mem_create(&frame.handle, frame.bytes(), &prop_, 0);
  // Containers and virtual GPUs that cannot share memory return various errors. Once a shareable
  // frame has been made, a refusal has another reason.
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY && !made_shareable_ &&
      prop_.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE && !DeviceHealth::stays(result)) {
    const CUmemAllocationProp shareable = prop_;
    prop_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    result = driver_.mem_create(&frame.handle, frame.bytes(), &prop_, 0);
    if (result != CUDA_SUCCESS) prop_ = shareable;  // that was not the reason either
  }
  if (result != CUDA_SUCCESS) {
    if (result == CUDA_ERROR_OUT_OF_MEMORY) limit_ = held_;
    return health_.failed("cuMemCreate", result);
  }
  made_shareable_ = prop_.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;
  ++created_;
  held_ += FIRN_CANARY(18) && granules == 1 ? 0 : granules;
  peak_ = std::max(peak_, held_);
  return frame;
}

void Frames::release(Frame frame) {
  ++released_;
  // A dead device's frames are left to the end of its context.
  if (!health_.dead())
    if (const CUresult result = call_release(frame); result != CUDA_SUCCESS)
      health_.end("cuMemRelease", result);
  if (frame.host)
    host_held_ -= frame.granules;
  else
    held_ -= frame.granules;
}

/// Retries a refusal, unless it is permanent.
CUresult Frames::call_release(const Frame& frame) const {
  for (int attempt = 0;; ++attempt) {
    const CUresult result = driver_.mem_release(frame.handle);
    if (result == CUDA_SUCCESS || attempt == 2 || DeviceHealth::stays(result)) return result;
  }
}

/// The size of a free frame to give back for one of `granules`, not among those kept: the smallest
/// that is larger, else the largest. 0: there is none.
size_t Frames::victim_for(uint32_t granules, const std::array<size_t, sizes>& kept) const {
  for (size_t from = granules + 1; from < sizes; ++from)
    if (free_[from].size() > kept[from]) return from;
  for (size_t from = granules; from > 0; --from)
    if (free_[from].size() > kept[from]) return from;
  return 0;
}

/// A frame of exactly that size. The caller holds a reservation, so there is room: if no such frame
/// is free, as few others as possible are given back for it.
Result<Frame> Frames::obtain(uint32_t granules) {
  auto& fitting = free_[granules];
  if (!fitting.empty()) {
    Frame frame = fitting.back();
    fitting.pop_back();
    return frame;
  }
  while (headroom() < granules) {
    const size_t from = victim_for(granules, {});
    // (Since it was reserved, the device has refused some to another thread.)
    if (from == 0) return driver_.error("cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY);
    release(free_[from].back());
    free_[from].pop_back();
  }
  return create(granules);
}

Frames::Change Frames::begin_change(const Shape& shape, uint32_t granules_most,
                                    uint64_t reserved) {
  Change change;
  // (The first of all frames shows what the driver can make: create() finds out.)
  if (!made_shareable_ && prop_.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) return change;
  std::array<size_t, sizes> kept{};  // free frames that take() will find
  uint64_t room = headroom(), made = 0, given = 0;
  bool possible = true;
  const auto provide = [&](uint32_t granules) FIRN_HELD {
    if (free_[granules].size() > kept[granules]) {
      ++kept[granules];
      return;
    }
    while (room < granules) {
      const size_t from = victim_for(granules, kept);
      if (from == 0) {  // take() handles it
        possible = false;
        return;
      }
      change.given_back.push_back(free_[from].back());
      free_[from].pop_back();
      room += from;
      given += from;
    }
    room -= granules;
    made += granules;
    change.wanted.push_back(granules);
  };
  for (uint64_t shared = granules_for(shape) - shape.body; shared > 0; --shared) provide(1);
  for (uint64_t left = shape.body; left > 0;) {
    const auto stretch = static_cast<uint32_t>(std::min<uint64_t>(granules_most, left));
    std::vector<uint32_t> parts;
    if (free_[stretch].size() <= kept[stretch] && room < stretch)
      parts = free_that_fill(stretch);
    for (const uint32_t part : parts) ++kept[part];
    if (parts.empty()) provide(stretch);
    left -= stretch;
  }
  if (!possible) {
    for (const Frame& frame : change.given_back) free_[frame.granules].push_back(frame);
    return {};
  }
  FIRN_CHECK(made <= reserved, "%llu granules reserved", (unsigned long long)reserved);
  change.prop = prop_;
  change.grown = made > given ? made - given : 0;
  change.given = given;
  change.promised = made;
  change.returning = given > made ? given - made : 0;
  changing_ += made;
  returning_ += change.returning;
  held_ += change.grown;
  in_change_ += change.given + change.grown;
  peak_ = std::max(peak_, held_);
  return change;
}

void Frames::carry_out(Change& change) const {
  for (const Frame& frame : change.given_back) {
    if (change.result = call_release(frame); change.result != CUDA_SUCCESS) {
      change.entry = "cuMemRelease";
      return;
    }
    ++change.gone;
  }
  for (const uint32_t granules : change.wanted) {
    Frame frame{0, granules};
    change.result = driver_.mem_create(&frame.handle, frame.bytes(), &change.prop, 0);
    if (change.result != CUDA_SUCCESS) return;
    change.made.push_back(frame);
  }
}

Result<void> Frames::end_change(Change change) {
  released_ += change.gone;
  created_ += change.made.size();
  changing_ -= change.promised;
  returning_ -= change.returning;
  held_ -= change.grown;
  in_change_ -= change.given + change.grown;
  for (size_t i = 0; i < change.given_back.size(); ++i) {
    const Frame& frame = change.given_back[i];
    if (i < change.gone)
      held_ -= frame.granules;
    else
      free_[frame.granules].push_back(frame);
  }
  for (const Frame& frame : change.made) {
    held_ += frame.granules;
    free_[frame.granules].push_back(frame);
  }
  if (change.result == CUDA_ERROR_OUT_OF_MEMORY) limit_ = std::min(limit_, held_);
  trim_to_limit();
  if (change.result == CUDA_SUCCESS) return {};
  return health_.failed(change.entry, change.result);
}

/// Sizes of free frames that add up to `granules`, the largest first; none if it takes too many.
std::vector<uint32_t> Frames::free_that_fill(uint32_t granules) const {
  std::vector<uint32_t> parts;
  std::array<size_t, sizes> left;
  for (size_t i = 0; i < sizes; ++i) left[i] = free_[i].size();
  for (uint32_t size = granules; granules > 0; ) {
    size = std::min(size, granules);
    while (size > 0 && left[size] == 0) --size;
    if (size == 0 || parts.size() == filling_most) return {};
    --left[size];
    parts.push_back(size);
    granules -= size;
  }
  return parts;
}

Result<std::vector<Frame>> Frames::take(Reservation reservation, uint32_t granules_most) {
  return take_whole(reservation.granules(), granules_most);
}

Result<std::vector<Frame>> Frames::take_whole(uint64_t wanted, uint32_t granules_most) {
  FIRN_CHECK(wanted > 0 && granules_most > 0 && granules_most < sizes,
             "%llu granules, stretches of %u", (unsigned long long)wanted, granules_most);
  std::vector<Frame> out;
  while (wanted > 0) {
    const auto stretch = static_cast<uint32_t>(std::min<uint64_t>(granules_most, wanted));
    std::vector<uint32_t> parts;
    if (free_[stretch].empty() && headroom() < stretch) parts = free_that_fill(stretch);
    if (parts.empty()) parts.push_back(stretch);
    for (const uint32_t part : parts) {
      Result<Frame> frame = obtain(part);
      if (!frame) {
        give(out);
        return frame.error();
      }
      out.push_back(*frame);
    }
    wanted -= stretch;
  }
  return out;
}

/// Takes these pages of a shared frame in which they are free, else of a new one.
Result<Frame> Frames::obtain_part(uint32_t pages) {
  uint32_t index = shared_.take(pages);
  if (index == SharedFrames::none) {
    Result<Frame> fresh = obtain(1);
    if (!fresh) return fresh.error();
    index = shared_.add(fresh->handle, pages);
  }
  Frame frame{shared_.handle(index), 1};
  frame.part = pages;
  frame.shared = index;
  return frame;
}

Result<std::vector<Frame>> Frames::take(Reservation reservation, const Shape& shape,
                                        uint32_t granules_most) {
  FIRN_CHECK(granules_for(shape) <= reservation.granules(), "%llu granules reserved",
             (unsigned long long)reservation.granules());
  std::vector<Frame> out;
  for (uint32_t part : {shape.head, shape.tail}) {
    if (part == 0) continue;
    Result<Frame> frame = obtain_part(part);
    if (!frame) {
      give(out);
      return frame.error();
    }
    out.push_back(*frame);
  }
  if (shape.body == 0) return out;
  Result<std::vector<Frame>> body = take_whole(shape.body, granules_most);
  if (!body) {
    give(out);
    return body.error();
  }
  out.insert(out.begin() + (shape.head != 0), body->begin(), body->end());
  return out;
}

bool Frames::host_asked() const {
  return !host_supported_ || host_prop_.location.id < 0 ||
         host_trial_known(driver_.library, host_prop_.location.id);
}

Result<void> Frames::ask_for_host() const {
  if (!host_supported_)
    return make_error(Code::not_supported, 0,
                      "host memory cannot be used at device addresses: the driver lacks support");
  if (host_prop_.location.id < 0)
    return make_error(Code::not_supported, 0,
                      "host memory cannot be used at device addresses: no NUMA node has memory for "
                      "this process");
  return try_host_memory(driver_.library, host_prop_.location.id);
}

Result<std::vector<Frame>> Frames::take_host(uint64_t granules) {
  if (Result<void> granted = ask_for_host(); !granted) return granted.error();
  Frame frame{0, static_cast<uint32_t>(granules), true};
  CUresult result = driver_.mem_create(&frame.handle, frame.bytes(), &host_prop_, 0);
  if (result != CUDA_SUCCESS) return health_.failed("cuMemCreate of host memory", result);
  ++created_;
  host_held_ += granules;
  return std::vector<Frame>{frame};
}

void Frames::give(std::vector<Frame>& frames) {
  for (const Frame& frame : frames) {
    if (frame.host)
      release(frame);
    else if (frame.part == 0)
      free_[frame.granules].insert(free_[frame.granules].end(), FIRN_CANARY(17) ? 2 : 1, frame);
    else if (shared_.give(frame.shared, frame.part))
      free_[1].push_back({frame.handle, 1});
  }
  frames.clear();
  trim_to_limit();
}

void Frames::trim_to_limit() {
  if (held_ > limit_) trim(free_granules() - std::min(free_granules(), held_ - limit_));
}

void Frames::trim(uint64_t keep) {
  for (auto& frames : free_)
    while (free_granules() > keep && !frames.empty()) {
      release(frames.back());
      frames.pop_back();
    }
}

uint64_t Frames::free_granules() const {
  uint64_t granules = 0;
  for (size_t i = 0; i < sizes; ++i) granules += free_[i].size() * i;
  return granules;
}

void Frames::set_budget(uint64_t bytes) {
  budget_ = limit_ = bytes / granule_bytes;
  trim_to_limit();
}

}  // namespace firn
