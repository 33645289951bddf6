// The blocks that stay on the device, and why: for statistics, for work that is cut to the rest,
// and for the error when there is no room, with advice by the reasons found.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "allocator/base/sizes.h"
#include "allocator/engine/engine_impl.h"

namespace firn {

namespace {
constexpr const char* not_yet_seen = "not yet seen in an operator";
constexpr const char* held = "held by operators that are running";
constexpr const char* of_small = "segments of small blocks (below 1 MiB)";
// Workspaces, or small blocks, of more than this part of the budget are worth a word.
constexpr uint64_t part_for_a_word = 8;

uint64_t bytes_for(const std::vector<PinnedBytes>& pinned, std::string_view reason) {
  for (const PinnedBytes& each : pinned)
    if (each.reason == reason) return each.bytes;
  return 0;
}
}  // namespace

const char* why_it_stays(const Block& block) {
  const uint64_t w = block.word.load(std::memory_order_relaxed);
  const State state = word::state(w);
  if (block.device == 0 || (state != State::resident && state != State::spilling)) return nullptr;
  if (w & word::pinned)
    return block.pin_reason ? block.pin_reason : (w & word::given) ? block.given_reason : "pinned";
  if (word::holds(w) > 0) return held;
  return w & word::proven ? nullptr : not_yet_seen;
}

std::vector<PinnedBytes> EngineImpl::pinned_bytes() const {
  std::map<std::string, uint64_t> by_reason;
  for (const Block* block : live_)
    if (const char* why = why_it_stays(*block)) by_reason[why] += block->device * page_bytes;
  if (const uint64_t in_places = placed_.busy_bytes(); in_places > 0)
    by_reason[in_places_words] += in_places;
  if (const uint64_t small = staying_segments(true) * granule_bytes; small > 0)
    by_reason[of_small] += small;
  std::vector<PinnedBytes> out;
  for (auto& [reason, bytes] : by_reason) out.push_back({reason, bytes});
  std::sort(out.begin(), out.end(),
            [](const PinnedBytes& a, const PinnedBytes& b) { return a.bytes > b.bytes; });
  return out;
}

/// Bytes on the device that cannot leave it, with or without those held by running operators.
uint64_t EngineImpl::staying_bytes(bool with_held) const {
  uint64_t bytes = staying_segments(false) * granule_bytes;
  for (const Block* block : live_) {
    const char* const why = why_it_stays(*block);
    if (why && (with_held || why != held)) bytes += block->device * page_bytes;
  }
  return bytes + placed_.busy_bytes();
}

uint64_t EngineImpl::room_at_most() const {
  Lock lock(mutex_);
  const uint64_t stays = staying_bytes(true);
  const uint64_t most =
      frames_.device_short() ? frames_.held_granules() : frames_.budget_granules();
  return most * granule_bytes > stays ? most * granule_bytes - stays : 0;
}

Error EngineImpl::no_room(uint64_t granules, const Block* wanted) const {
  const uint64_t bytes = granules * granule_bytes;
  const uint64_t budget = frames_.budget_granules() * granule_bytes;
  std::string text = fmt::format(
      "device {} has no room {} {} within the budget of {} (firn_budget)", options_.device,
      wanted ? "to bring back" : "for", format_size(bytes), format_size(budget));
  const std::vector<PinnedBytes> pinned = pinned_bytes();
  text += pinned.empty() ? "; nothing is pinned" : "; these stay on the device: ";
  for (size_t i = 0; i < pinned.size(); ++i)
    text += fmt::format("{}{} {}", i ? ", " : "", format_size(pinned[i].bytes), pinned[i].reason);
  if (const uint64_t gaps = frames_.shared().free_pages() * page_bytes; gaps > 0)
    text += fmt::format(", {} in gaps of shared frames", format_size(gaps));
  if (frames_.device_short())
    text += fmt::format("; the driver gave Firn only {} of device memory",
                        format_size(frames_.held_granules() * granule_bytes));
  if (movement_.stuck())
    text += fmt::format("; eviction has stopped: all {} of host memory (firn_host) are full and {}",
                        format_size(host_.budget()), movement_.no_store());
  if (still_.starved)
    text += "; threads wait for memory that other waiting threads hold";
  else if (still_.given_up && still_.futile)
    text += fmt::format("; blocks cannot leave: host memory (firn_host, {}) has room for some of "
                        "their bytes at a time only",
                        format_size(host_.budget()));
  else if (still_.given_up)
    text += fmt::format("; no block could leave for {} s: the GPU work that uses the blocks is "
                        "still running, perhaps waiting for another process",
                        (clock_.now_ns() - still_.since_ns) / 1'000'000'000);
  if (spilling_ended_)
    text += "; spilling is off for this whole process (an earlier line says why)";
  else if (spilling_stopped_)
    text += "; firn.no_spill() is active and keeps everything on the device";
  text += ". This would help: " + advice(bytes, budget, pinned, wanted != nullptr);
  return make_error(Code::out_of_memory, 0, text);
}

/// Advice by what takes the room, the surest first.
std::string EngineImpl::advice(uint64_t bytes, uint64_t budget,
                               const std::vector<PinnedBytes>& pinned, bool wanted) const {
  std::string out;
  const auto add = [&out](const std::string& words) {
    out += (out.empty() ? "" : "; or ") + words;
  };
  if (movement_.stuck())
    add(store_ ? "more free space in firn_dir (or a larger firn_store_size)"
               : "firn_dir, a directory on an SSD for spill files; or a larger firn_host");
  if (spilling_stopped_ && !spilling_ended_)
    add("less memory used within firn.no_spill()");
  const uint64_t unseen = bytes_for(pinned, not_yet_seen);
  // If tensors are marked Told::always from the first one on, watching would not see the others.
  if (unseen > 0 && !told_early_ && options_.watch_fraction > 0)
    add("firn_watch:0, which watches operators from the start, so that their tensors can leave");
  if (unseen > budget / part_for_a_word && told_early_)
    add("smaller library workspaces, which stay (CUBLAS_WORKSPACE_CONFIG for cuBLAS)");
  if (bytes > budget || bytes_for(pinned, held) > 0)
    add("smaller tensors in a single operator (a smaller batch, a shorter sequence)");
  if (const uint64_t small = bytes_for(pinned, of_small); small > budget / part_for_a_word)
    add("fewer tensors below 1 MiB that Firn never saw in an operator: each keeps the 2 MiB around "
        "it on the device");
  uint64_t stays = 0;
  for (const PinnedBytes& each : pinned) stays += each.bytes;
  if (frames_.device_short())
    add("less device memory used outside Firn");
  else if (!wanted && bytes + stays > budget)
    // (Not a rounded gigabyte, which may be too little.)
    add(fmt::format("a firn_budget of {}MiB or more", (bytes + stays + (1u << 20) - 1) >> 20));
  else
    add("a larger firn_budget");
  return out;
}

/// The device keeps refusing memory that the budget has: no_room(), with the driver's message.
/// (Other errors stay as they are.)
Error EngineImpl::short_device(uint64_t granules, const Block* wanted, const Error& error) const {
  if (error.detail != CUDA_ERROR_OUT_OF_MEMORY || health_.dead()) return error;
  Error out = no_room(granules, wanted);
  out.detail = error.detail;
  out.text += " (" + error.text + ")";
  return out;
}

}  // namespace firn
