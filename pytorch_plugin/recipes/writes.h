// When memory was last written or freed, as far as a recipe has to know: a count for each address
// at which a storage begins, which every write and free raises.
//
// It takes the place of version counters and weak references to storages: two tensors with version
// counters of their own may share bytes (`x.data`), and a weak reference costs an atomic operation
// when it is taken, and another when it is dropped. Addresses that share a count void each other's
// recipes now and then, and never keep one that is void.
//
// Owns: the counts, for the process's life. Locks: none; any thread may call.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace firn::pytorch {

class Writes {
 public:
  using Count = uint64_t;

  /// The process's.
  static Writes& all();

  /// The storage that begins at `base` is about to be written, or has been freed.
  void note(const void* base) { at(base).fetch_add(1, std::memory_order_relaxed); }
  /// It may be written unseen from here on (by another process, by a graph's replay): no recipe
  /// that reads or makes it stands any more, now or later.
  void give_up(const void* base) { at(base).fetch_or(given_up, std::memory_order_relaxed); }
  Count count(const void* base) const { return at(base).load(std::memory_order_relaxed); }
  bool unchanged(const void* base, Count since) const {
    return count(base) == since && !(since & given_up);
  }

  /// Something was enqueued outside of PyTorch's own operators, and may write anything.
  void note_unseen() { unseen_.fetch_add(1, std::memory_order_relaxed); }
  /// It went into a graph, and may write anything at every replay: no recipe stands any more.
  void give_up_all() { unseen_.fetch_or(given_up, std::memory_order_relaxed); }
  Count unseen() const { return unseen_.load(std::memory_order_relaxed); }
  bool all_seen_since(Count before) const { return unseen() == before && !(before & given_up); }

 private:
  // A job's blocks are a few thousand: two in a hundred share a count with another.
  static constexpr unsigned size_bits = 20;
  static constexpr Count given_up = Count{1} << 63;
  static size_t bucket(const void* base) {  // (The allocator's addresses are multiples of 512.)
    return ((reinterpret_cast<uintptr_t>(base) >> 9) * 0x9e3779b97f4a7c15ull) >> (64 - size_bits);
  }
  std::atomic<Count>& at(const void* base) { return counts_[bucket(base)]; }
  const std::atomic<Count>& at(const void* base) const { return counts_[bucket(base)]; }

  std::array<std::atomic<Count>, size_t{1} << size_bits> counts_{};
  std::atomic<Count> unseen_{0};
};

inline Writes& Writes::all() {
  static constinit Writes writes;  // (8 MiB of zeros, which take no memory until they are used)
  return writes;
}

}  // namespace firn::pytorch
