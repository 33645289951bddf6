#include "allocator/simulate/disks.h"

#include <algorithm>

#include "firn/check.h"

namespace firn::simulate {

Disks::Disks(unsigned count, const SimulatedStoreOptions& each, VirtualClock& clock)
    : each_(each) {
  for (unsigned i = 0; i < count; ++i) {
    disks_.push_back(open_simulated_store(each));
    clock.attach(disks_.back().get());
  }
}

Result<void> Disks::attach_staging(std::span<std::byte> staging) {
  for (auto& disk : disks_)
    if (Result<void> done = disk->attach_staging(staging); !done) return done;
  return {};
}

Result<Slot> Disks::reserve(size_t bytes, bool wait) {
  const unsigned disk = next_;
  Result<Slot> slot = disks_[disk]->reserve(bytes, wait);
  if (!slot) return slot;
  next_ = (next_ + 1) % count();
  FIRN_CHECK(slot->id < UINT32_MAX / count(), "slot %u", slot->id);
  return Slot{slot->id * count() + disk};
}

Result<void> Disks::write(unsigned queue, Slot slot, std::span<const std::byte> bytes,
                          uint64_t tag) {
  if (told_) submitted_ns_[tag] = each_.clock->now_ns();
  return disks_[disk_of(slot)]->write(queue, own(slot), bytes, tag);
}

Result<void> Disks::read(unsigned queue, Slot slot, std::span<std::byte> bytes, uint64_t tag) {
  if (told_) submitted_ns_[tag] = each_.clock->now_ns();
  return disks_[disk_of(slot)]->read(queue, own(slot), bytes, tag);
}

bool Disks::cancel(unsigned queue, uint64_t tag) {
  return std::any_of(disks_.begin(), disks_.end(),
                     [&](auto& disk) { return disk->cancel(queue, tag); });
}

void Disks::discard(Slot slot) { disks_[disk_of(slot)]->discard(own(slot)); }

size_t Disks::poll(unsigned queue, std::span<StoreCompletion> out) {
  size_t got = 0;
  for (unsigned disk = 0; disk < count() && got < out.size(); ++disk) {
    const size_t more = disks_[disk]->poll(queue, out.subspan(got));
    for (StoreCompletion& each : out.subspan(got, more)) {
      each.slot.id = each.slot.id * count() + disk;
      if (told_) tell(disk, each);
    }
    got += more;
  }
  return got;
}

/// The disk serves one request at a time in each direction: this one had it alone at the end of its
/// stay.
void Disks::tell(unsigned disk, const StoreCompletion& completion) {
  const bool write = completion.kind == StoreCompletion::Kind::write;
  const double bytes_s = write ? each_.write_bytes_s : each_.read_bytes_s;
  const auto took =
      static_cast<uint64_t>(static_cast<double>(completion.bytes) / bytes_s * 1e9);
  const uint64_t end = submitted_ns_[completion.tag] + completion.busy_ns;
  submitted_ns_.erase(completion.tag);
  told_({completion.kind, disk, end - each_.latency_ns - took, end, completion.bytes});
}

StoreStats Disks::stats() const {
  StoreStats all;
  all.kind = "simulated";
  for (const auto& disk : disks_) {
    const StoreStats one = disk->stats();
    all.dirs.insert(all.dirs.end(), one.dirs.begin(), one.dirs.end());
    all.written_bytes += one.written_bytes;
    all.read_bytes += one.read_bytes;
    all.slots_in_use += one.slots_in_use;
    all.slot_bytes_in_use += one.slot_bytes_in_use;
  }
  return all;
}

std::vector<uint64_t> Disks::written_bytes() const {
  std::vector<uint64_t> bytes;
  for (const auto& disk : disks_) bytes.push_back(disk->stats().written_bytes);
  return bytes;
}

}  // namespace firn::simulate
