#include "tests/simulation/inspector.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "tests/simulation/tag.h"

namespace firn {

bool EngineInspector::tags_are(uint64_t address, uint64_t bytes, uint64_t tag, bool device) const {
  uint64_t at = 0, found = 0;
  return machine_.gpu().compare(device ? device_ : -1, address, bytes, tag, &at, &found) ==
         firn_gpu_tags_done;
}

bool EngineInspector::slot_has(const Piece& piece, uint64_t offset, uint64_t bytes,
                               uint64_t tag) const {
  const std::span<const std::byte> there = machine_.store()->contents(piece.slot);
  const size_t first = offset / store_alignment;
  const size_t count = (bytes + store_alignment - 1) / store_alignment;
  if (there.size() < (first + count) * sizeof tag) return false;
  for (size_t i = 0; i < count; ++i) {
    uint64_t one;
    std::memcpy(&one, there.data() + (first + i) * sizeof one, sizeof one);
    if (one != tag + i) return false;
  }
  return true;
}

/// A fault that ends ill unmaps what is not there whole; what is being unmapped is as good as gone.
bool EngineInspector::stays_mapped(const Block& block, const Span& span) {
  if (span.going) return false;
  return block.state() != State::faulting ||
         std::all_of(block.pieces.begin(), block.pieces.end(), [&](const Piece& piece) {
           return piece.on_device || &block.span_of(piece) != &span;
         });
}

EngineInspector::Finding EngineInspector::look_at_piece(const Block& block, const Piece& piece,
                                                        uint32_t index, uint64_t offset,
                                                        uint64_t bytes, uint64_t tag,
                                                        Seen& seen) const {
  const auto words = [&](const char* what) {
    return fmt::format("device {}: block {:#x} ({}, {} bytes), piece {} at {}: {}{}{}{}{}", device_,
                       block.address, state_names[static_cast<int>(block.state())],
                       size_t{block.requested}, index, piece.offset, what,
                       piece.on_device ? ", on the device" : "",
                       piece.host_valid ? ", in host memory" : "",
                       piece.slot_valid ? ", in the store" : "",
                       piece.copying_out ? ", being copied out" : "");
  };
  const CopyInFlight* arriving = nullptr;
  for (const CopyInFlight& copy : engine_.transfers_.copies_in())
    if (copy.ref.block == &block && copy.ref.generation == block.generation &&
        copy.ref.piece == index)
      arriving = &copy;  // (Of the version before, where a write comes behind it.)
  const uint64_t address = block.address + piece.offset + offset;
  const Span& span = block.span_of(piece);
  unsigned places = 0;
  if (piece.on_device && span.mapped()) {
    if (!tags_are(address, bytes, tag, true)) {
      if (!arriving) return {"places", words("the device has other bytes than were written")};
      const auto staged = reinterpret_cast<uint64_t>(arriving->staging->data) + offset;
      if (!tags_are(staged, bytes, tag, false))
        return {"places", words("what is being copied in is not what was written")};
    }
    places += stays_mapped(block, span);
  }
  if (piece.host_valid) {
    if (!piece.host ||
        !tags_are(reinterpret_cast<uint64_t>(piece.host->data) + offset, bytes, tag, false))
      return {"places", words("host memory has other bytes than were written")};
    ++places;
    seen.host_pieces += piece.on_device && !piece.slot;
  }
  bool damaged = false;
  if (piece.slot_valid) {
    damaged = machine_.store()->damaged(piece.slot);
    if (!damaged && !slot_has(piece, offset, bytes, tag))
      return {"places", words("the store has other bytes than were written")};
    if (!damaged) ++places;
    if (!damaged && places == 1) seen.only_in_store = true;
  }
  if (places > 1) seen.two_places = true;
  if (!piece.on_device) seen.partly_away = true;
  if (places > 0) return {};
  seen.doomed |= damaged;
  if (!damaged) return {"places", words("its bytes are nowhere")};
  return {};
}

const Block* EngineInspector::found_at(const void* pointer, bool kept) const {
  if (!kept) return engine_.live_at(pointer, true);
  const Block* block = engine_.block_at(reinterpret_cast<uint64_t>(pointer));
  if (!block) return nullptr;
  const State state = block->state();
  const bool ended = state == State::free || state == State::ready || state == State::draining;
  return ended ? nullptr : block;
}

EngineInspector::Part EngineInspector::tagged(const void* pointer, size_t bytes, bool kept) const {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  const Block* block = found_at(pointer, kept);
  if (!block || (block->place_bytes == 0 && block->pages != 0)) return {address, bytes};
  const uint64_t begin = (address + store_alignment - 1) / store_alignment * store_alignment;
  const uint64_t end = (address + bytes) / store_alignment * store_alignment;
  return {begin, std::max(begin, end) - begin};
}

EngineInspector::Finding EngineInspector::look_on_device(const Block& block, const Part& part,
                                                         uint64_t tag) const {
  uint64_t at = 0, found = 0;
  if (machine_.gpu().compare(device_, part.address, part.bytes, tag, &at, &found) ==
      firn_gpu_tags_done)
    return {};
  return {"places", fmt::format("device {}: block {:#x} ({} bytes) is resident and its only place "
                                "has {:#x} at 4 KiB number {}, not what was written",
                                device_, block.address, part.bytes, found, at)};
}

/// A small block is where its segment is, one piece.
EngineInspector::Finding EngineInspector::look_at_small(const Block& small, const Part& part,
                                                        uint64_t tag, Seen& seen) const {
  const Block& whole = *engine_.moved_with(const_cast<Block*>(&small));
  if (part.bytes == 0) return {};
  if (&whole == &small || whole.pieces.empty()) return look_on_device(small, part, tag);
  return look_at_piece(whole, whole.pieces.front(), 0, part.address - whole.address, part.bytes,
                       tag, seen);
}

EngineInspector::Finding EngineInspector::look(const void* pointer, size_t bytes, uint64_t id,
                                               uint64_t version, Seen& seen, bool kept) const {
  const Block* block = found_at(pointer, kept);
  if (!block)
    return {"live", fmt::format("device {}: block {} at {} ({} bytes) is live and was not found",
                                device_, id, pointer, bytes)};
  const uint64_t w = block->word.load(std::memory_order_acquire);
  const State state = engine_.state_of(*block);
  if (state == State::lost) {
    seen.lost = true;
    return {};
  }
  seen.state = static_cast<int>(state);
  seen.shared = block->shape.shared();
  seen.placed = block->place_bytes != 0;
  seen.zero_copy = w & word::zero_copy;
  if (version == 0 || engine_.health_.dead()) return {};
  const uint64_t tag = sim::Tag::make(id, version).bits;
  const Part part = tagged(pointer, bytes, kept);
  if (w & word::small) return look_at_small(*block, part, tag, seen);
  if (Recipes::away(*block)) {
    const Recipe* recipe = engine_.recipes_.of(*block);
    seen.way_back = recipe ? WayBack{recipe->id, true} : WayBack{};
    return {};
  }
  // (Made again by work that may not be over.)
  if (block->arrival && !engine_.streams_.over(block->arrival) &&
      (block->pieces.empty() || block->arrival.stream() != engine_.transfers_.in()))
    return {};
  if (!(w & word::copies) && word::state(w) != State::resident && !block->dropping)
    return {"places",
            fmt::format("device {}: block {:#x} is {} and has no copies", device_, block->address,
                        state_names[static_cast<int>(word::state(w))])};
  if (block->pieces.empty() || seen.placed)
    return look_on_device(*block, part, tag);
  for (const Span& span : block->spans) seen.guarded |= span.guarded;
  for (uint32_t i = 0; i < block->pieces.size(); ++i) {
    const Piece& piece = block->pieces[i];
    if (piece.offset >= bytes) break;
    const uint64_t length = std::min<uint64_t>(piece.bytes, bytes - piece.offset);
    Finding found = look_at_piece(*block, piece, i, 0, length,
                                  tag + piece.offset / store_alignment, seen);
    if (found.oracle) return found;
  }
  return {};
}

EngineInspector::Finding EngineInspector::quiet() const {
  const Transfers& transfers = engine_.transfers_;
  const std::pair<const char*, size_t> queues[] = {
      {"spilling", engine_.movement_.spilling().size()},
      {"faulting", engine_.movement_.faulting().size()},
      {"draining", engine_.draining_.size()},   {"deferred", engine_.deferred_.size()},
      {"parked", engine_.parked_.size()},       {"copies out", transfers.copies_out().size()},
      {"copies in", transfers.copies_in().size()}, {"requests", transfers.requests()},
      {"mappings", engine_.mapper_.mappings_due()},
      {"unmappings", engine_.mapper_.unmappings_due()},
      {"waiting threads", engine_.waiting_},    {"being written", transfers.writing_bytes()},
      {"staging", engine_.host_.used()},
  };
  for (const auto& [name, size] : queues)
    if (size != 0)
      return {"quiet", fmt::format("device {}: {} {} are left when nothing is to be done", device_,
                                   size, name)};
  return {};
}

std::string EngineInspector::words() const {
  std::string all;
  for (const Block* block : engine_.live_)
    all += fmt::format("  {:#x} {} {} of {} pages mapped\n", block->address,
                       state_names[static_cast<int>(block->state())], block->mapped, block->pages);
  return all;
}

}  // namespace firn
