#include "allocator/frames.h"

#include <algorithm>

#include "allocator/check.h"

namespace firn {

Frames::Frames(const Driver& driver, int device, uint64_t budget_bytes)
    : driver_(driver), budget_(budget_bytes / granule_bytes), limit_(budget_) {
  prop_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop_.location.id = device;
  int node = 0;
  if (driver.device_get_attribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device) != CUDA_SUCCESS ||
      node < 0)
    node = 0;
  host_prop_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  host_prop_.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  host_prop_.location.id = node;
}

Frames::~Frames() {
  if (!abandoned_) trim();
}

uint64_t Frames::available() const {
  uint64_t there = free_granules() + headroom();
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
  if (result != CUDA_SUCCESS) {
    if (result == CUDA_ERROR_OUT_OF_MEMORY) limit_ = held_;
    return driver_.error("cuMemCreate", result);
  }
  held_ += granules;
  peak_ = std::max(peak_, held_);
  return frame;
}

void Frames::release(Frame frame) {
  CUresult result = CUDA_SUCCESS;
  for (int attempt = 0; attempt < 3; ++attempt)
    if ((result = driver_.mem_release(frame.handle)) == CUDA_SUCCESS) break;
  FIRN_CHECK(result == CUDA_SUCCESS, "cuMemRelease: %d", static_cast<int>(result));
  if (!frame.host) held_ -= frame.granules;
}

bool Frames::take_large(std::vector<Frame>& out, Error& error) {
  if (!free_large_.empty()) {
    out.push_back(free_large_.back());
    free_large_.pop_back();
    return true;
  }
  if (headroom() < large_frame_granules) return false;  // small ones will do
  Result<Frame> frame = create(large_frame_granules);
  if (!frame) {
    error = frame.error();
    return false;
  }
  out.push_back(*frame);
  return true;
}

bool Frames::take_small(std::vector<Frame>& out, Error& error) {
  if (!free_small_.empty()) {
    out.push_back(free_small_.back());
    free_small_.pop_back();
    return true;
  }
  if (headroom() == 0 && !free_large_.empty()) {  // break a large one up
    release(free_large_.back());
    free_large_.pop_back();
  }
  Result<Frame> frame = create(1);
  if (!frame) {
    error = frame.error();
    return false;
  }
  out.push_back(*frame);
  return true;
}

Result<std::vector<Frame>> Frames::take(Reservation reservation, bool large) {
  uint64_t wanted = reservation.granules();
  FIRN_CHECK(wanted > 0, "empty reservation");
  std::vector<Frame> out;
  Error error;
  while (wanted > 0) {
    if (large && wanted >= large_frame_granules && take_large(out, error)) {
      wanted -= large_frame_granules;
      continue;
    }
    if (error.code == Code::ok && take_small(out, error)) {
      --wanted;
      continue;
    }
    give(out);
    return error;
  }
  return out;
}

Result<std::vector<Frame>> Frames::take_host(uint64_t granules) {
  Frame frame{0, static_cast<uint32_t>(granules), true};
  CUresult result = driver_.mem_create(&frame.handle, frame.bytes(), &host_prop_, 0);
  if (result != CUDA_SUCCESS) return driver_.error("cuMemCreate of host memory", result);
  return std::vector<Frame>{frame};
}

void Frames::give(std::vector<Frame>& frames) {
  for (const Frame& frame : frames) {
    if (frame.host)
      release(frame);
    else
      (frame.granules == 1 ? free_small_ : free_large_).push_back(frame);
  }
  frames.clear();
  if (held_ > limit_) trim(free_granules() - std::min(free_granules(), held_ - limit_));
}

void Frames::trim(uint64_t keep) {
  while (free_granules() > keep) {
    auto& from = free_small_.empty() ? free_large_ : free_small_;
    release(from.back());
    from.pop_back();
  }
}

void Frames::set_budget(uint64_t bytes) {
  budget_ = limit_ = bytes / granule_bytes;
  if (held_ > limit_) trim(free_granules() - std::min(free_granules(), held_ - limit_));
}

}  // namespace firn
