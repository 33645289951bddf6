// Looks into an engine from outside, without its lock (nobody else is in it): where it says that a
// block's bytes are, and which tags are there. The only friend that EngineImpl has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "allocator/engine/engine_impl.h"
#include "tests/simulation/machine.h"

namespace firn {

class EngineInspector {
 public:
  EngineInspector(Engine& engine, sim::Machine& machine, int device)
      : engine_(static_cast<EngineImpl&>(engine)), machine_(machine), device_(device) {}

  struct Finding {
    const char* oracle = nullptr;  // null: all is well
    std::string words;
  };
  /// Of a block that was dropped, or is being made again.
  struct WayBack {
    uint64_t recipe = 0;
    bool stands = false;
  };
  struct Seen {
    std::optional<WayBack> way_back;
    bool lost = false, doomed = false;  // doomed: its only copy was damaged in the store
    bool two_places = false, only_in_store = false, partly_away = false;
    int state = 0;
    unsigned host_pieces = 0;  // in host memory beside the device, and not in the store
    bool shared = false, placed = false, zero_copy = false, guarded = false;
  };
  /// Every byte of the live block is somewhere that no operation in flight takes away, and whatever
  /// the engine takes for a copy is one: of `version` of block `id`, the last one whose kernel is
  /// over (0: none yet). `kept`: also of a block that was freed and is needed for a recipe.
  Finding look(const void* address, size_t bytes, uint64_t id, uint64_t version, Seen& seen,
               bool kept = false) const;
  /// What has to be empty once nothing is left to do.
  Finding quiet() const;
  /// The words of every block that the engine has.
  std::string words() const;

  /// The part of a block that has tags of its own, perhaps none: small blocks and those in planned
  /// places begin and end anywhere.
  struct Part {
    uint64_t address = 0, bytes = 0;
  };
  Part tagged(const void* address, size_t bytes, bool kept = false) const;

  /// Nobody is in it with its lock.
  bool unlocked() const {
    if (!engine_.mutex_.try_lock()) return false;
    engine_.mutex_.unlock();
    return true;
  }
  /// The blocks that it brings back at this moment.
  const std::vector<Block*>& faulting() const { return engine_.movement_.faulting(); }
  bool dead() const { return engine_.health_.dead(); }
  std::string death() const { return engine_.health_.error().text; }
  bool stuck() const { return engine_.movement_.stuck() || engine_.movement_.writes().full(); }
  CUstream out_stream() const { return engine_.transfers_.out_stream(); }
  CUstream in_stream() const { return engine_.transfers_.in_stream(); }
  uint64_t held_bytes() const { return engine_.frames_.held_granules() * granule_bytes; }
  uint64_t budget() const { return engine_.frames_.budget_granules() * granule_bytes; }
  size_t live_blocks() const { return engine_.live_.size(); }

 private:
  /// `offset`, `bytes`: of the piece.
  Finding look_at_piece(const Block& block, const Piece& piece, uint32_t index, uint64_t offset,
                        uint64_t bytes, uint64_t tag, Seen& seen) const;
  Finding look_at_small(const Block& small, const Part& part, uint64_t tag, Seen& seen) const;
  const Block* found_at(const void* address, bool kept) const;
  static bool stays_mapped(const Block& block, const Span& span);
  Finding look_on_device(const Block& block, const Part& part, uint64_t tag) const;
  bool tags_are(uint64_t address, uint64_t bytes, uint64_t tag, bool device) const;
  bool slot_has(const Piece& piece, uint64_t offset, uint64_t bytes, uint64_t tag) const;

  EngineImpl& engine_;
  sim::Machine& machine_;
  const int device_;
};

}  // namespace firn
