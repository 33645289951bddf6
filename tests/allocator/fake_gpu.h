// A driver made of a few functions, for parts of the allocator by themselves: copies and mappings
// are noted, work on a stream is over when a test says so, and any call can be refused. It moves no
// byte.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "firn/driver.h"

namespace firn::test {

class FakeGpu {
 public:
  struct Work {
    std::string call;  // "dtoh", "htod", "any", "memset", "processor"
    uint64_t device, host;
    size_t bytes;
    CUstream stream;
  };
  std::vector<Work> work;               // in the order in which it was given
  std::map<std::string, int> refusals;  // by entry: so many more calls of it are refused,
  std::map<std::string, int> passes;    // after so many that are not
  CUresult refused_with = CUDA_ERROR_INVALID_VALUE;
  std::vector<std::pair<CUstream, CUevent>> waits;  // the stream waits for the event
  unsigned streams_live = 0;
  struct MemoryCall {
    std::string call;  // "create", "release", "map", "open", "unmap"
    uint64_t address, bytes;
    std::vector<int> devices{};  // "open": who has access
    bool reads_only = false;     // "open"
  };
  std::vector<MemoryCall> memory;         // that were not refused
  std::map<uint64_t, uint64_t> mapped;    // bytes, by address
  unsigned frames_live = 0;
  std::function<void(const std::string& call)> beside;  // called within each call of `memory`'s

  FakeGpu() {
    current() = this;
    driver_.get_error_name = driver_.get_error_string = [](CUresult, const char** words) {
      *words = "refused, in a test";
      return CUDA_SUCCESS;
    };
    driver_.stream_create = [](CUstream* stream, unsigned) {
      if (current()->refuses("cuStreamCreate")) return current()->refused_with;
      ++current()->streams_live;
      *stream = reinterpret_cast<CUstream>(uintptr_t{++current()->streams_} << 8);
      return CUDA_SUCCESS;
    };
    driver_.stream_destroy = [](CUstream) { return --current()->streams_live, CUDA_SUCCESS; };
    driver_.stream_synchronize = [](CUstream stream) {
      if (current()->refuses("cuStreamSynchronize")) return current()->refused_with;
      return current()->finish(stream), CUDA_SUCCESS;
    };
    driver_.event_create = [](CUevent* event, unsigned) {
      *event = reinterpret_cast<CUevent>(uintptr_t{++current()->events_});
      return CUDA_SUCCESS;
    };
    driver_.event_destroy = [](CUevent) { return CUDA_SUCCESS; };
    driver_.event_record = [](CUevent event, CUstream stream) {
      if (current()->refuses("cuEventRecord")) return current()->refused_with;
      current()->recorded_[event] = {stream, current()->given_[stream]};
      return CUDA_SUCCESS;
    };
    driver_.event_query = [](CUevent event) {
      const auto [stream, position] = current()->recorded_.at(event);
      return current()->over_[stream] >= position ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    };
    driver_.event_synchronize = [](CUevent event) {
      const auto [stream, position] = current()->recorded_.at(event);
      current()->over_[stream] = std::max(current()->over_[stream], position);
      return CUDA_SUCCESS;
    };
    driver_.stream_wait_event = [](CUstream stream, CUevent event, unsigned) {
      if (current()->refuses("cuStreamWaitEvent")) return current()->refused_with;
      current()->waits.emplace_back(stream, event);
      return CUDA_SUCCESS;
    };
    driver_.memcpy_dtoh_async = [](void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
      return current()->take("dtoh", "cuMemcpyDtoHAsync", from, to, bytes, stream);
    };
    driver_.memcpy_htod_async = [](CUdeviceptr to, const void* from, size_t bytes,
                                   CUstream stream) {
      return current()->take("htod", "cuMemcpyHtoDAsync", to, from, bytes, stream);
    };
    driver_.memset_d8_async = [](CUdeviceptr to, unsigned char, size_t bytes, CUstream stream) {
      return current()->take("memset", "cuMemsetD8Async", to, nullptr, bytes, stream);
    };
    driver_.memcpy_async = [](CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
      return current()->take("any", "cuMemcpyAsync", to, reinterpret_cast<void*>(from), bytes,
                             stream);
    };
    driver_.device_get_attribute = [](int* value, CUdevice_attribute, CUdevice) {
      *value = 0;
      return CUDA_SUCCESS;
    };
    driver_.mem_create = [](CUmemGenericAllocationHandle* handle, size_t bytes,
                            const CUmemAllocationProp*, unsigned long long) {
      if (!current()->note("cuMemCreate", {"create", 0, bytes})) return current()->refused_with;
      *handle = ++current()->handles_;
      ++current()->frames_live;
      return CUDA_SUCCESS;
    };
    driver_.mem_release = [](CUmemGenericAllocationHandle) {
      if (!current()->note("cuMemRelease", {"release", 0, 0})) return current()->refused_with;
      --current()->frames_live;
      return CUDA_SUCCESS;
    };
    driver_.mem_map = [](CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle,
                         unsigned long long) {
      if (!current()->note("cuMemMap", {"map", address, bytes})) return current()->refused_with;
      const bool fresh = current()->mapped.emplace(address, bytes).second;
      return fresh ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    };
    driver_.mem_unmap = [](CUdeviceptr address, size_t bytes) {
      if (!current()->note("cuMemUnmap", {"unmap", address, bytes}))
        return current()->refused_with;
      auto& mapped = current()->mapped;
      uint64_t there = 0;
      for (auto at = mapped.lower_bound(address); at != mapped.end() && at->first < address + bytes;
           at = mapped.erase(at))
        there += at->second;
      return there == bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    };
    driver_.mem_set_access = [](CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access,
                                size_t count) {
      MemoryCall call{"open", address, bytes};
      for (size_t i = 0; i < count; ++i) {
        call.devices.push_back(access[i].location.id);
        call.reads_only |= access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ;
      }
      return current()->note("cuMemSetAccess", call) ? CUDA_SUCCESS : current()->refused_with;
    };
    driver_.launch_host_func = [](CUstream stream, void (*function)(void*), void* data) {
      if (current()->refuses("cuLaunchHostFunc")) return current()->refused_with;
      current()->functions_.emplace_back(function, data);
      return current()->take("processor", "", 0, data, 0, stream);
    };
    driver_.mem_host_register = [](void*, size_t, unsigned) { return CUDA_SUCCESS; };
    driver_.mem_host_unregister = [](void*) { return CUDA_SUCCESS; };
  }
  ~FakeGpu() { current() = nullptr; }
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;

  const Driver& driver() const { return driver_; }
  /// Work that nobody notes.
  void give(CUstream stream) { ++given_[stream]; }
  /// The first `count` of what the stream was given, or all of it, is over.
  void finish(CUstream stream, uint64_t count = UINT64_MAX) {
    over_[stream] = std::min(count, given_[stream]);
  }
  /// As the processor does when the stream comes to it.
  void call_functions() {
    for (auto [function, data] : functions_) function(data);
    functions_.clear();
  }

 private:
  static FakeGpu*& current() {
    static FakeGpu* gpu = nullptr;
    return gpu;
  }
  bool refuses(const std::string& entry) {
    if (const auto passing = passes.find(entry); passing != passes.end() && passing->second > 0)
      return --passing->second, false;
    const auto found = refusals.find(entry);
    return found != refusals.end() && found->second > 0 && found->second-- > 0;
  }
  bool note(const std::string& entry, const MemoryCall& call) {
    if (beside) beside(call.call);
    if (refuses(entry)) return false;
    memory.push_back(call);
    return true;
  }
  CUresult take(const char* call, const char* entry, uint64_t device, const void* host,
                size_t bytes, CUstream stream) {
    if (refuses(entry)) return refused_with;
    work.push_back({call, device, reinterpret_cast<uint64_t>(host), bytes, stream});
    ++given_[stream];
    return CUDA_SUCCESS;
  }

  Driver driver_;
  uintptr_t streams_ = 0, events_ = 0, handles_ = 0;
  std::map<CUstream, uint64_t> given_, over_;
  std::map<CUevent, std::pair<CUstream, uint64_t>> recorded_;
  std::vector<std::pair<void (*)(void*), void*>> functions_;
};

}  // namespace firn::test
