// The host tier: pinned staging memory that copies and I/O pass through, and that is allowed to
// linger as a second home of cold pieces, within its own budget.
//
// Owns the regions. A Staging is counted by references: the piece whose bytes it holds, a copy in
// flight, an I/O request in flight; with the last one its memory is free again. The caller holds
// the engine's lock, with the device's context current.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "allocator/range_map.h"
#include "firn/driver.h"
#include "firn/store.h"

namespace firn {

struct Staging {
  std::byte* data = nullptr;
  size_t bytes = 0;
  int refs = 0;
};

class HostTier {
 public:
  /// `shared_left`: what the process's engines may still map together, beside the first `own` bytes
  /// of each; null: no sharing. `no_bytes`: addresses without memory (simulation).
  /// `node`: the memory node to take it from, -1: any. `ahead`: regions are made by prepare(), of
  /// which acquire() never makes one.
  HostTier(const Driver& driver, Store* store, uint64_t budget_bytes,
           std::atomic<uint64_t>* shared_left, uint64_t own, bool no_bytes = false, int node = -1,
           bool ahead = false);
  ~HostTier();

  /// Staging for `bytes`, with one reference; null when the budget (less `reserve` bytes that this
  /// caller may not use) is exhausted or fragmented, or the system gives no more memory.
  Staging* acquire(size_t bytes, uint64_t reserve = 0);
  /// As acquire(), beyond the budget where need be.
  Staging* acquire_beyond(size_t bytes);
  void ref(Staging* staging) { ++staging->refs; }
  void unref(Staging* staging);

  /// Memory that is made ahead of need, without the engine's lock: pinning takes a third of a
  /// second for each GiB. begin_ahead() and end_ahead() under the lock, prepare() between them
  /// without it, one at a time.
  struct Ahead {
    uint64_t bytes = 0;  // 0: none is due
    std::optional<StagingRegion> memory;
    bool registered = false;
    std::string trouble;
  };
  /// Is some due? So that what is mapped is half as much again as what is in use.
  bool ahead_due() const { return ahead_bytes() > 0; }
  Ahead begin_ahead();
  void prepare(Ahead& ahead) const;
  void end_ahead(Ahead ahead);
  /// More is under way, or could be made.
  bool may_grow() const;

  /// What this engine can come to use, as things stand.
  uint64_t budget() const;
  uint64_t used() const { return ranges_.used(); }
  /// Registration refused, memory refused: in words; empty when all is well.
  const std::string& trouble() const { return trouble_; }
  void abandon();

 private:
  uint64_t ahead_bytes() const;
  bool adopt(Ahead ahead);
  bool grow(size_t bytes);
  bool add_region(size_t size);
  bool claim(uint64_t size);

  const Driver& driver_;
  Store* store_;
  const uint64_t budget_;
  std::atomic<uint64_t>* const shared_left_;
  uint64_t own_left_;  // of `own`; 0 without sharing
  const bool no_bytes_;
  const int node_;
  const bool ahead_;
  bool preparing_ = false;
  bool wanted_ = false;  // acquire() found none, last
  uint64_t mapped_ = 0;
  bool exhausted_ = false;  // the system refused more
  struct Region {
    StagingRegion memory;
    bool registered;
  };
  std::vector<Region> regions_;
  RangeMap ranges_;
  std::string trouble_;
};

}  // namespace firn
