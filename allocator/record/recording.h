// The record of a program's memory use, operator by operator: plain data, added to in the program's
// order and read when it ends.
// Owns: everything it names. Locks: none (the recorder's).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace firn::record {

class Recording {
 public:
  enum class Kind : uint8_t { allocate, free, kernel };
  struct Event {
    uint32_t kind_bits : 2;
    uint32_t index : 30;  // of the block, or of the kernel
    Kind kind() const { return static_cast<Kind>(kind_bits); }
  };
  /// An operator that ran on the device. Its event comes after those of what it allocated.
  struct Kernel {
    uint64_t duration_ns = 0;  // 0: unknown
    uint64_t uses_at = 0;      // in uses: inputs, then outputs
    uint32_t name = 0, inputs = 0, outputs = 0;
  };

  /// At most so many kernels, and several times as many of everything else (under 400 MiB).
  static constexpr size_t kernels_most_default = 2'000'000;
  explicit Recording(size_t kernels_most = kernels_most_default) : kernels_most_(kernels_most) {}

  /// A new block's number. Only while not full(), as free() and kernel().
  uint32_t allocate(uint64_t bytes);
  void free(uint32_t block);
  /// The kernel's number. No block twice in either list; freed ones are allowed.
  uint32_t kernel(std::string_view name, uint64_t duration_ns, std::span<const uint32_t> inputs,
                  std::span<const uint32_t> outputs);
  void set_duration(uint32_t kernel, uint64_t ns) { kernels_[kernel].duration_ns = ns; }

  bool full() const {
    return kernels_.size() >= kernels_most_ || events_.size() >= 4 * kernels_most_ ||
           uses_.size() >= 16 * kernels_most_;
  }
  const std::vector<Event>& events() const { return events_; }
  const std::vector<Kernel>& kernels() const { return kernels_; }
  const std::vector<uint64_t>& block_bytes() const { return block_bytes_; }
  const std::string& name(const Kernel& kernel) const { return names_[kernel.name]; }
  std::span<const uint32_t> inputs(const Kernel& kernel) const {
    return std::span(uses_).subspan(kernel.uses_at, kernel.inputs);
  }
  std::span<const uint32_t> outputs(const Kernel& kernel) const {
    return std::span(uses_).subspan(kernel.uses_at + kernel.inputs, kernel.outputs);
  }
  /// Inputs, then outputs.
  std::span<const uint32_t> uses(const Kernel& kernel) const {
    return std::span(uses_).subspan(kernel.uses_at, size_t{kernel.inputs} + kernel.outputs);
  }

 private:
  void add(Kind kind, size_t index);

  const size_t kernels_most_;
  std::vector<Event> events_;
  std::vector<Kernel> kernels_;
  std::vector<uint64_t> block_bytes_;
  std::vector<uint32_t> uses_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, uint32_t> name_numbers_;
};

}  // namespace firn::record
