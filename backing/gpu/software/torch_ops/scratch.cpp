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

struct Block {
  void* memory;
  size_t bytes;
};

class Cache {
 public:
  Block* take(size_t bytes) {
    const size_t size = rounded(bytes);
    {
      const std::lock_guard lock(mutex_);
      const auto found = free_.find(size);
      if (found != free_.end() && !found->second.empty()) {
        Block* const block = found->second.back();
        found->second.pop_back();
        cached_bytes_ -= size;
        return block;
      }
    }
    void* memory = nullptr;
    if (posix_memalign(&memory, alignment, size) != 0) throw std::bad_alloc();
    return new Block{memory, size};
  }

  void give(Block* block) {
    {
      const std::lock_guard lock(mutex_);
      if (cached_bytes_ + block->bytes <= cache_bytes_max) {
        free_[block->bytes].push_back(block);
        cached_bytes_ += block->bytes;
        return;
      }
    }
    std::free(block->memory);
    delete block;
  }

 private:
  std::mutex mutex_;
  std::map<size_t, std::vector<Block*>> free_;
  size_t cached_bytes_ = 0;
};

Cache& cache() {
  static auto* const made = new Cache;  // outlives every tensor
  return *made;
}

void give_back(void* context) { cache().give(static_cast<Block*>(context)); }

class ScratchAllocator final : public c10::Allocator {
 public:
  explicit ScratchAllocator(c10::Allocator* ordinary) : ordinary_(ordinary) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (!within_scope || bytes < bytes_min) return ordinary_->allocate(bytes);
    Block* const block = cache().take(bytes);
    return {block->memory, block, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return ordinary_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  c10::Allocator* ordinary_;
};

}  // namespace

void install_scratch() {
  static ScratchAllocator* installed = nullptr;
  if (installed != nullptr) return;
  installed = new ScratchAllocator(c10::GetCPUAllocator());
  constexpr uint8_t priority = 100;
  c10::SetCPUAllocator(installed, priority);
}

Scratch::Scratch() : before_(within_scope) { within_scope = true; }
Scratch::~Scratch() { within_scope = before_; }

}  // namespace firn::torch_ops
