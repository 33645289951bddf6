#include "allocator/record/recording.h"

namespace firn::record {

void Recording::add(Kind kind, size_t index) {
  events_.push_back({static_cast<uint32_t>(kind) & 3, static_cast<uint32_t>(index) & 0x3fffffff});
}

uint32_t Recording::allocate(uint64_t bytes) {
  block_bytes_.push_back(bytes);
  add(Kind::allocate, block_bytes_.size() - 1);
  return static_cast<uint32_t>(block_bytes_.size() - 1);
}

void Recording::free(uint32_t block) { add(Kind::free, block); }

uint32_t Recording::kernel(std::string_view name, uint64_t duration_ns,
                           std::span<const uint32_t> inputs, std::span<const uint32_t> outputs) {
  const auto [found, fresh] =
      name_numbers_.try_emplace(std::string(name), static_cast<uint32_t>(names_.size()));
  if (fresh) names_.push_back(found->first);
  kernels_.push_back({duration_ns, uses_.size(), found->second,
                      static_cast<uint32_t>(inputs.size()), static_cast<uint32_t>(outputs.size())});
  uses_.insert(uses_.end(), inputs.begin(), inputs.end());
  uses_.insert(uses_.end(), outputs.begin(), outputs.end());
  add(Kind::kernel, kernels_.size() - 1);
  return static_cast<uint32_t>(kernels_.size() - 1);
}

}  // namespace firn::record
