// CPU memory for operators' results; see scratch.h.
#include "backing/gpu/software/torch_ops/scratch.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

namespace firn::torch_ops {
namespace {

constexpr size_t bytes_min = size_t{64} << 10;  // smaller ones are cheap where they are
constexpr size_t cache_bytes_max = size_t{512} << 20;
constexpr size_t alignment = 64;

thread_local bool within_scope = false;

// Sizes are rounded up to eighths of a power of two, so that a block serves similar requests.
size_t rounded(size_t bytes) {
  const size_t step = std::bit_ceil(bytes) / 16;
  return (bytes + step - 1) / step * step;
}

class Cache {
 public:
  /// A block of at least `bytes`.
  void* take(size_t bytes) {
    const size_t size = rounded(bytes);
    {
      const std::lock_guard lock(mutex_);
      auto& free = free_[size];
      if (!free.empty()) {
        void* const memory = free.back();
        free.pop_back();
        cached_bytes_ -= size;
        taken_.emplace(memory, size);
        return memory;
      }
    }
    void* memory = nullptr;
    if (posix_memalign(&memory, alignment, size) != 0) throw std::bad_alloc();
    const std::lock_guard lock(mutex_);
    taken_.emplace(memory, size);
    return memory;
  }

  /// False if `memory` is not a block of this cache.
  bool give(void* memory) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = taken_.find(memory);
      if (found == taken_.end()) return false;
      const size_t size = found->second;
      taken_.erase(found);
      if (cached_bytes_ + size <= cache_bytes_max) {
        free_[size].push_back(memory);
        cached_bytes_ += size;
        return true;
      }
    }
    std::free(memory);
    return true;
  }

 private:
  std::mutex mutex_;
  std::map<size_t, std::vector<void*>> free_;
  std::unordered_map<void*, size_t> taken_;  // bytes
  size_t cached_bytes_ = 0;
};

Cache& cache() {
  static auto* const made = new Cache;  // outlives every tensor
  return *made;
}

c10::Allocator* ordinary = nullptr;

// For blocks and for ordinary memory: a raw free does not say where its memory came from.
void give_back(void* memory) {
  if (!cache().give(memory)) ordinary->raw_deleter()(memory);
}

class ScratchAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (!within_scope || bytes < bytes_min) return ordinary->allocate(bytes);
    void* const memory = cache().take(bytes);
    return {memory, memory, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

}  // namespace

void install_scratch() {
  if (ordinary != nullptr) return;
  ordinary = c10::GetCPUAllocator();
  constexpr uint8_t priority = 100;
  c10::SetCPUAllocator(new ScratchAllocator, priority);
}

Scratch::Scratch() : before_(within_scope) { within_scope = true; }
Scratch::~Scratch() { within_scope = before_; }

}  // namespace firn::torch_ops
