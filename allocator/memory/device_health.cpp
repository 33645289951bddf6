#include "allocator/memory/device_health.h"

#include <algorithm>
#include <cstdio>

#include "firn/said.h"

namespace firn {

bool DeviceHealth::stays(CUresult result) {
  switch (static_cast<int>(result)) {
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case 720:  // of tensor memory, contained and external devices: CUDA 13
    case 721:
    case 911:
      return true;
    default:
      return false;
  }
}

Error DeviceHealth::failed(const char* entry, CUresult result) {
  if (stays(result)) end(entry, result);
  return driver_.error(entry, result);
}

void DeviceHealth::answered(const char* entry, CUresult result) {
  const auto known = std::find_if(refused_.begin(), refused_.end(),
                                  [&](const auto& each) { return each.first == entry; });
  if (result == CUDA_SUCCESS) {
    if (known != refused_.end()) refused_.erase(known);
    return;
  }
  // (A callback of the program's is under way: the device is well.)
  if (result == CUDA_ERROR_NOT_PERMITTED) return;
  if (stays(result)) return end(entry, result);
  ++refusals_;
  if (known == refused_.end())
    refused_.emplace_back(entry, 1);
  else if (++known->second >= refusals_most)
    end(entry, result);
}

void DeviceHealth::end_without_memory() noexcept {
  undone_ = true;
  if (dead()) return;
  error_ = std::move(without_memory_);
  dead_.store(true, std::memory_order_release);
  say(without_memory_line_);
}

void DeviceHealth::end(const char* entry, CUresult result) {
  if (dead()) return;
  error_ = driver_.error(entry, result);
  error_.text += "; the device has failed: Firn stops moving blocks, and those that are away from "
                 "it cannot come back";
  dead_.store(true, std::memory_order_release);
  // Process exit is not a failure of the device.
  if (result == CUDA_ERROR_DEINITIALIZED) return;
  say("firn: device " + std::to_string(device_) + ": " + error_.text);
}

}  // namespace firn
