// A table of zeroes whose pages take memory only once written: a table of megabytes costs a short
// job neither time nor memory. Needs no lock of its own.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#ifdef __SANITIZE_ADDRESS__
// LeakSanitizer scans mapped memory for pointers only where it is registered.
#include <sanitizer/lsan_interface.h>
#endif

namespace firn {

/// Owns its memory. All bytes zero must be a value of T.
template <class T>
class ZeroArray {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  /// Throws std::bad_alloc.
  explicit ZeroArray(size_t size) : size_(size) {
    void* mapped = ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    values_ = static_cast<T*>(mapped);
#ifdef __SANITIZE_ADDRESS__
    __lsan_register_root_region(values_, bytes());
#endif
  }
  ~ZeroArray() {
    if (!values_) return;
#ifdef __SANITIZE_ADDRESS__
    __lsan_unregister_root_region(values_, bytes());
#endif
    ::munmap(values_, bytes());
  }
  ZeroArray(ZeroArray&& other) noexcept
      : values_(std::exchange(other.values_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  ZeroArray& operator=(ZeroArray&&) = delete;

  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }
  T& operator[](size_t i) { return values_[i]; }
  const T& operator[](size_t i) const { return values_[i]; }

 private:
  T* values_ = nullptr;
  size_t size_;
};

}  // namespace firn
