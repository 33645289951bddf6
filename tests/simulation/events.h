// What the engines ask of the driver and of the store, in order, as one number: the same seed has
// to give the same, whatever addresses the system hands out. Addresses are told by the range that
// they lie in. Also where faults of the driver come in that the software GPU does not have.
//
// Owns: the ranges, the log. One per process; one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "firn/driver.h"
#include "firn/store.h"

namespace firn::sim {

class Events {
 public:
  /// The driver's table, of which calls that matter go through this.
  void stand_in_front(Driver& driver);
  void note(const char* what, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0);
  /// The range's number and the offset in it.
  uint64_t named(uint64_t address) const;
  void add_range(uint64_t base, uint64_t bytes) { ranges_.push_back({base, bytes}); }
  uint64_t hash() const { return hash_; }
  uint64_t count() const { return count_; }
  /// Every event goes there, one line each, from now on.
  void log_to(std::FILE* file) { log_ = file; }
  /// Until then events are not ready, whatever they are.
  uint64_t not_ready_until_ns = 0;
  std::function<uint64_t()> now;
  /// Called before a driver call at which another thread may go on.
  std::function<void()> may_switch;
  uint64_t refused_unmaps = 0, refused_maps = 0, refused_creates = 0, refused_copies = 0,
           refused_registers = 0;

 private:
  struct Range {
    uint64_t base, bytes;
  };
  std::vector<Range> ranges_;
  uint64_t hash_ = 0, count_ = 0;
  std::FILE* log_ = nullptr;
};

/// The store as an engine sees it; notes what it asks, and which blocks' reads failed for good.
class SeenStore final : public Store {
 public:
  SeenStore(SimulatedStore& store, TagMemory& tags, Events& events)
      : store_(store), tags_(tags), events_(events) {}
  Result<void> attach_staging(std::span<std::byte> staging) override;
  Result<Slot> reserve(size_t bytes, bool wait) override;
  Result<void> write(unsigned queue, Slot slot, std::span<const std::byte> bytes,
                     uint64_t tag) override;
  Result<void> read(unsigned queue, Slot slot, std::span<std::byte> bytes, uint64_t tag) override;
  bool cancel(unsigned queue, uint64_t tag) override;
  void discard(Slot slot) override;
  size_t poll(unsigned queue, std::span<StoreCompletion> out) override;
  StoreStats stats() const override { return store_.stats(); }
  void abandon() override {}
  /// What was read wrong, or failed: of the slot that got the tag `first` at its begin.
  struct Bad {
    uint64_t corrupt = 0, failed = 0;
  };
  /// Of all slots of this block and version (the tag without its page).
  Bad bad(uint64_t content) const;
  uint64_t cancelled = 0, discarded_in_flight = 0, stale = 0, writes_failed = 0, reads_healed = 0;

 private:
  void begins(Slot slot, uint64_t tag);
  /// Whether the slot was discarded meanwhile.
  bool ends(Slot slot);
  SimulatedStore& store_;
  TagMemory& tags_;
  Events& events_;
  std::unordered_map<uint32_t, uint64_t> content_;  // by slot: what was written first there
  struct Flying {
    unsigned requests = 0;
    bool discarded = false;
  };
  std::unordered_map<uint32_t, Flying> in_flight_;  // by slot
  std::unordered_map<uint64_t, uint32_t> slot_of_;  // by the request's tag
  std::unordered_map<uint64_t, Bad> bad_;           // by content
};

}  // namespace firn::sim
