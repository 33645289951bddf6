// Handles: numbers that are never used twice, so that the use of a destroyed one is always noticed.
// Owns the objects while their handles live. Lock: Gpu::mutex.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

namespace firn::software {

[[noreturn]] void die(const char* entry, const std::string& rule);
std::string hex(uint64_t value);

template <class T>
class Table {
 public:
  Table(uint64_t kind, const char* noun) : kind_(kind), noun_(noun) {}

  /// A handle looks like a pointer (even, positive) and is none.
  uint64_t add(std::shared_ptr<T> object) {
    uint64_t handle = kind_ << 44 | ++serial_ << 4;
    live_.emplace(handle, std::move(object));
    return handle;
  }
  /// Null for what was never a handle of this kind; a destroyed one aborts.
  std::shared_ptr<T> find(const char* entry, uint64_t handle) const {
    auto it = live_.find(handle);
    if (it != live_.end()) return it->second;
    if (was(handle)) die(entry, std::string(noun_) + " " + hex(handle) + " used after destruction");
    return nullptr;
  }
  template <class Handle>
  std::shared_ptr<T> find(const char* entry, Handle* handle) const {
    return find(entry, reinterpret_cast<uint64_t>(handle));
  }
  bool lives(uint64_t handle) const { return live_.contains(handle); }
  /// Was it ever given out?
  bool was(uint64_t handle) const {
    uint64_t serial = (handle & ((uint64_t{1} << 44) - 1)) >> 4;
    return handle >> 44 == kind_ && (handle & 15) == 0 && serial >= 1 && serial <= serial_;
  }
  void remove(uint64_t handle) { live_.erase(handle); }
  size_t size() const { return live_.size(); }
  void clear() { live_.clear(); }
  const auto& live() const { return live_; }

 private:
  uint64_t kind_;
  const char* noun_;
  uint64_t serial_ = 0;
  std::unordered_map<uint64_t, std::shared_ptr<T>> live_;
};

template <class Handle>
Handle as_handle(uint64_t value) {
  return reinterpret_cast<Handle>(value);
}

}  // namespace firn::software
