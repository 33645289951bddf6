#include "pytorch_plugin/recipes/choice.h"

#include <utility>

namespace firn::pytorch {

Choice::Choice(const RemakeChoice& answer, std::vector<uint64_t> signatures,
               const std::vector<uint64_t>& device_ns,
               const std::vector<std::vector<OperatorLog::Result>>& results)
    : signatures_(std::move(signatures)), gives_(signatures_.size()), leaves_(signatures_.size()) {
  for (const MadeAgain& each : answer.made_again)
    for (const OperatorLog::Result& result : results[each.maker]) {
      if (result.value != each.value) continue;
      const auto slot = static_cast<uint32_t>(slots_.size());
      slots_.push_back({result.at, device_ns[each.maker], result.bytes});
      gives_[each.maker].push_back(slot);
      leaves_[each.leaves_behind].push_back(slot);
    }
  const size_t count = signatures_.size();
  for (size_t end = 0; end < count; ++end) {
    uint64_t hash = 0;
    for (size_t i = 0; i < row; ++i)
      hash = mix(hash, signatures_[(end + row * count + i - row) % count]);
    const auto [at, is_new] = behind_.try_emplace(hash, static_cast<uint32_t>(end));
    if (!is_new) at->second = none;
  }
}

uint32_t Choice::place_behind(const std::array<uint64_t, row>& last, size_t oldest) const {
  uint64_t hash = 0;
  for (size_t i = 0; i < row; ++i) hash = mix(hash, last[(oldest + i) % row]);
  const auto found = behind_.find(hash);
  return found == behind_.end() ? none : found->second;
}

}  // namespace firn::pytorch
