// Pointer tables: which 8-byte words of device memory are known to hold addresses of an arena.
//
// Fed by the host's writes (copies from the host are scanned, fills forget), by copies within the
// device, and by addresses found in memory that kernels wrote (inspections.h). Asked at each launch
// for the addresses that a touched block leads to.
//
// Words are remembered at 8-byte aligned addresses. A partly overwritten word keeps its value: it
// is safe to touch too much, but not too little. Values outside the arenas are not remembered. No
// lock is taken while nothing is remembered; holds() is lock-free.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <shared_mutex>
#include <span>
#include <unordered_set>
#include <vector>

namespace firn::preload {

struct Range {
  uint64_t base = 0;
  uint64_t bytes = 0;
  bool contains(uint64_t address) const { return address - base < bytes; }
};

class Tables {
 public:
  static constexpr uint64_t granule = 2u << 20;  // as the arena's: one flag for each
  static constexpr unsigned arenas_most = 16;

  /// Addresses in it are remembered from now on. Call before the first of them is handed out.
  void add_arena(Range arena);

  /// Bytes from the host arrive at [to, +bytes). Returns how many addresses are among them. `keep`:
  /// overwritten values may still be followed, and are not forgotten.
  size_t write(uint64_t to, const void* from, size_t bytes, bool keep = false);
  /// The range has a value without addresses, or its owner ended.
  void forget(uint64_t at, size_t bytes);
  /// Bytes within the device are copied; the ranges may overlap.
  void copy(uint64_t to, uint64_t from, size_t bytes, bool keep = false);
  /// An address was found.
  void add(uint64_t at, uint64_t value);

  /// May there be addresses in the granules of [at, +bytes), a part of one arena? Lock-free.
  bool holds(uint64_t at, size_t bytes) const;
  /// Are there addresses in memory outside the arenas (globals, managed memory)? Lock-free.
  bool foreign() const { return foreign_.load(std::memory_order_acquire) != 0; }
  uint64_t words() const { return words_.load(std::memory_order_relaxed); }

  /// Appends the addresses held by [at, +bytes) to `values`.
  void collect(uint64_t at, size_t bytes, std::vector<uint64_t>& values) const;
  /// Those held by memory outside the arenas. Lock-free where this thread has asked since they
  /// last changed.
  void collect_foreign(std::vector<uint64_t>& values) const;
  /// Did the word at that address ever hold this value? False also for what was forgotten to bound
  /// the memory.
  bool was(uint64_t at, uint64_t value) const;
  /// From the first arena's begin to the last one's end.
  Range arenas() const;
  bool in_arena(uint64_t address) const { return arena_of(address) != nullptr; }

 private:
  static constexpr uint64_t page = 4096;
  static constexpr uint64_t stretch = 64;  // granules that have a count together
  static constexpr size_t past_most = 1u << 20;
  struct Word {
    uint16_t index;  // within the page
    uint64_t value;
  };
  using Page = std::vector<Word>;  // in order of indices
  using Counts = std::unique_ptr<std::atomic<uint32_t>[], void (*)(void*)>;
  struct Arena {
    Range range;
    Counts granules{nullptr, nullptr};   // words held, in each granule
    Counts stretches{nullptr, nullptr};  // and in each stretch of them
  };

  static Counts counts(uint64_t number);
  const Arena* arena_of(uint64_t address) const {
    for (unsigned i = 0, n = arena_count_.load(std::memory_order_acquire); i < n; ++i)
      if (arenas_[i].range.contains(address)) return &arenas_[i];
    return nullptr;
  }
  void count(uint64_t at, int64_t change);
  void set_locked(uint64_t at, uint64_t value);
  void forget_locked(uint64_t at, size_t bytes);
  void remember_past(uint64_t at, uint64_t value);
  template <class See>
  void each_locked(uint64_t at, size_t bytes, See&& see) const;

  mutable std::shared_mutex mutex_;
  std::map<uint64_t, Page> pages_;  // by number of the page
  std::unordered_set<uint64_t> past_;  // hashes of (address, value)
  std::array<Arena, arenas_most> arenas_;
  std::atomic<unsigned> arena_count_{0};
  std::atomic<uint64_t> words_{0}, foreign_{0};
  std::atomic<uint64_t> foreign_version_{1};  // raised under the lock, before it is given back
};

/// Calls found(offset, value) for each 8-byte word, at an address `to + offset` that is 8-byte
/// aligned, whose value lies in `values`.
void scan_words(uint64_t to, const void* from, size_t bytes, Range values,
                const std::function<void(size_t, uint64_t)>& found);

}  // namespace firn::preload
