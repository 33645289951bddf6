// Several simulated SSDs as one store, slots dealt out in turn, without bytes; reports every
// transfer.
// Owns: the SSDs. Locks: none (one thread).
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "firn/store.h"
#include "firn/virtual_clock.h"

namespace firn::simulate {

/// A transfer that is over, on the virtual clock. `disk` took it alone from begin to end.
struct DiskTransfer {
  StoreCompletion::Kind kind;
  unsigned disk;
  uint64_t begin_ns, end_ns, bytes;
};

class Disks final : public Store {
 public:
  /// `count` SSDs as `each` says; the clock waits for them too.
  Disks(unsigned count, const SimulatedStoreOptions& each, VirtualClock& clock);

  void on_transfer(std::function<void(const DiskTransfer&)> told) { told_ = std::move(told); }

  Result<void> attach_staging(std::span<std::byte> staging) override;
  Result<Slot> reserve(size_t bytes, bool wait) override;
  Result<void> write(unsigned queue, Slot slot, std::span<const std::byte> bytes,
                     uint64_t tag) override;
  Result<void> read(unsigned queue, Slot slot, std::span<std::byte> bytes, uint64_t tag) override;
  bool cancel(unsigned queue, uint64_t tag) override;
  void discard(Slot slot) override;
  size_t poll(unsigned queue, std::span<StoreCompletion> out) override;
  StoreStats stats() const override;
  /// Bytes written since the beginning, for each SSD.
  std::vector<uint64_t> written_bytes() const;
  void abandon() override {}

 private:
  // A slot of ours is the disk's own and the disk's number in one.
  unsigned disk_of(Slot slot) const { return slot.id % count(); }
  Slot own(Slot slot) const { return Slot{slot.id / count()}; }
  unsigned count() const { return static_cast<unsigned>(disks_.size()); }
  void tell(unsigned disk, const StoreCompletion& completion);

  const SimulatedStoreOptions each_;
  std::vector<std::unique_ptr<SimulatedStore>> disks_;
  unsigned next_ = 0;  // disk of the next slot
  std::function<void(const DiskTransfer&)> told_;
  std::unordered_map<uint64_t, uint64_t> submitted_ns_;  // by tag, while transfers are observed
};

}  // namespace firn::simulate
