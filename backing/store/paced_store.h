// A store that is no faster than a modelled SSD: the store below does the real I/O on real files,
// and its completions are handed over once the modelled SSD would have completed them too. For
// trying programs out on the software GPU, whose link is modelled as well.
//
// The model: one SSD for the whole store, one request at a time in each direction, in the order of
// submission, and a latency. A request that is withdrawn has taken its time.
//
// Owns: the store below, the completions that are held back. Lock: mutex_, taken before the lower
// store's. A held completion falls due without a notification: engines poll while they wait.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "firn/clock.h"
#include "firn/ranked_mutex.h"
#include "firn/store.h"

namespace firn {

class PacedStore final : public Store {
 public:
  PacedStore(std::unique_ptr<Store> lower, const StorePace& pace, Clock& clock)
      : lower_(std::move(lower)), pace_(pace), clock_(clock) {}

  Result<void> attach_staging(std::span<std::byte> staging) override {
    return lower_->attach_staging(staging);
  }
  void detach_staging(std::span<std::byte> staging) override { lower_->detach_staging(staging); }
  Result<Slot> reserve(size_t bytes, bool wait) override { return lower_->reserve(bytes, wait); }
  Result<void> write(unsigned queue, Slot slot, std::span<const std::byte> bytes,
                     uint64_t tag) override;
  Result<void> read(unsigned queue, Slot slot, std::span<std::byte> bytes, uint64_t tag) override;
  bool cancel(unsigned queue, uint64_t tag) override;
  void discard(Slot slot) override { lower_->discard(slot); }
  std::optional<bool> holds(Slot slot, std::span<const std::byte> bytes) const override {
    return lower_->holds(slot, bytes);
  }
  size_t poll(unsigned queue, std::span<StoreCompletion> out) override;
  StoreStats stats() const override;
  void abandon() override;

 private:
  enum Side : size_t { reads, writes };
  struct Request {  // begun below, or completed there and held back
    unsigned queue;
    uint64_t tag;
    Slot slot;
    uint64_t submitted_ns, due_ns;
    bool completed = false;
    StoreCompletion completion;
  };

  double bytes_s(Side side) const {
    return side == reads ? pace_.read_bytes_s : pace_.write_bytes_s;
  }
  void begin(Side side, unsigned queue, Slot slot, size_t bytes, uint64_t tag, uint64_t now);
  void take_completed(unsigned queue);

  const std::unique_ptr<Store> lower_;
  const StorePace pace_;
  Clock& clock_;
  bool abandoned_ = false;

  RankedMutex<Rank::paced_store> mutex_;
  std::array<uint64_t, 2> free_ns_{};  // when the modelled SSD has done all that it was given
  std::vector<Request> requests_;      // in the order of submission
};

}  // namespace firn
