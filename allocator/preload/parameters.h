// Where addresses lie among a kernel's parameters: the driver's layout of each function, asked for
// once, and the walk over every aligned word of one launch's parameters.
//
// Owns the cached layouts. find() is lock-free when the function is known and its module is still
// the same; a first sight takes a lock. Layouts are never freed: a launch may be reading one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "firn/cuda_abi.h"

namespace firn::preload {

/// One parameter within the packed buffer, in bytes.
struct Slot {
  uint32_t offset = 0, bytes = 0;
  bool operator==(const Slot&) const = default;
};

/// A kernel, as far as it is known.
struct Kernel {
  CUfunction function = nullptr;
  std::atomic<uint64_t> generation{0};  // of the modules; older ones are asked for again
  bool known = false;                   // false: its parameters are unknown
  std::vector<Slot> slots;
  /// Every 8-byte word at an 8-byte aligned offset of the packed buffer that lies within one slot:
  /// (slot, offset within the slot).
  std::vector<std::pair<uint32_t, uint32_t>> words;
  CUmodule module = nullptr;            // null: not known
  bool kept = false;                    // for good; else until the thread's next find()
  // Inspections of its launches so far, and their result: see inspections.h.
  std::atomic<uint32_t> looked_at{0}, looked_at_with_tables{0};
  std::atomic<bool> stores_addresses{false};
};

/// The driver's queries; null members: a driver that is too old.
struct ParameterQueries {
  CUresult (*function)(CUfunction, size_t index, size_t* offset, size_t* bytes) = nullptr;
  CUresult (*kernel)(CUkernel, size_t index, size_t* offset, size_t* bytes) = nullptr;
  CUresult (*module_of)(CUmodule*, CUfunction) = nullptr;
  /// Asks the module's own metadata where the driver cannot tell: true when `slots` is filled.
  bool (*metadata)(CUfunction, std::vector<Slot>& slots) = nullptr;
};

class Kernels {
 public:
  explicit Kernels(const ParameterQueries& queries) : queries_(queries) {}
  ~Kernels();

  /// Never null; the CUfunction may be a CUkernel. A result that cannot be kept (too many
  /// functions) is valid until the thread's next call.
  Kernel* find(CUfunction function) {
    const uint64_t now = generation_.load(std::memory_order_acquire);
    for (size_t at = hash(function), step = 0; step < probes; ++step, ++at) {
      Kernel* kernel = table_[at % capacity].load(std::memory_order_acquire);
      if (!kernel) break;
      if (kernel->function != function) continue;
      if (kernel->generation.load(std::memory_order_acquire) == now) return kernel;
      break;
    }
    return learn(function, now);
  }
  /// A module, a library or a context went away: a handle may name another function from here.
  void forget() { generation_.fetch_add(1, std::memory_order_acq_rel); }
  uint64_t known() const { return known_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t capacity = 1u << 16, probes = 64;
  static size_t hash(CUfunction function) {
    return reinterpret_cast<uintptr_t>(function) * 0x9E3779B97F4A7C15ull >> 48;
  }
  Kernel* learn(CUfunction function, uint64_t generation);
  void ask(Kernel& kernel) const;

  const ParameterQueries queries_;
  std::unique_ptr<std::atomic<Kernel*>[]> table_{new std::atomic<Kernel*>[capacity]()};
  std::atomic<uint64_t> generation_{1}, known_{0};
  std::mutex mutex_;  // for writing to table_
  std::vector<std::unique_ptr<Kernel>> owned_;
};

/// cuLaunchKernel's `extra` list.
struct PackedParameters {
  const void* buffer = nullptr;
  size_t bytes = 0;
};
/// False for a list that the driver would refuse.
bool read_extra(void* const* extra, PackedParameters& packed);

/// Calls see(word) for every aligned word of the parameters. False when they are unknown: no
/// layout, and no packed buffer. Skips what the driver would refuse (a null among the pointers).
template <class See>
bool for_each_word(const Kernel& kernel, void* const* parameters, void* const* extra, See&& see) {
  if (extra && !parameters) {
    PackedParameters packed;
    if (!read_extra(extra, packed)) return true;
    const auto* bytes = static_cast<const char*>(packed.buffer);
    for (size_t at = 0; at + 8 <= packed.bytes; at += 8) {
      uint64_t word;
      std::memcpy(&word, bytes + at, 8);
      see(word);
    }
    return true;
  }
  if (!kernel.known) return false;
  if (!parameters) return true;
  for (const auto& [slot, offset] : kernel.words) {
    const auto* value = static_cast<const char*>(parameters[slot]);
    if (!value) continue;
    uint64_t word;
    std::memcpy(&word, value + offset, 8);
    see(word);
  }
  return true;
}

}  // namespace firn::preload
