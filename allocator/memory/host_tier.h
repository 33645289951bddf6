// The host tier: pinned staging memory that copies and I/O pass through, and that is allowed to
// linger as a second home of cold pieces, within its own budget.
//
// Owns the extents: memory that the system gave in one call, which is registered and given back as
// one. A Staging is a part of an extent, counted by references: the piece whose bytes it holds, a
// copy in flight, an I/O request in flight; with the last one its memory is free again. The caller
// holds the engine's lock, with the device's context current.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "firn/driver.h"
#include "firn/range_map.h"
#include "firn/store.h"
#include "firn/thread_safety.h"

namespace firn {

struct Staging {
  std::byte* data = nullptr;
  size_t bytes = 0;
  int refs = 0;
};

/// Memory that the machine, or the container, can still give, at the last reading; shared by the
/// process's engines. `kept_bytes` of it are left to others, except for the first memory that each
/// engine needs to move anything.
struct HostRoom {
  std::atomic<uint64_t> left_bytes{UINT64_MAX};
  uint64_t kept_bytes = 0;
  uint64_t extent_bytes = uint64_t{128} << 20;  // made, or given back, at a time; at least
};

class HostTier {
 public:
  /// `shared_left`: bytes that the process's engines may still map together, beyond the first `own`
  /// bytes of each; null: no sharing. `no_bytes`: addresses without memory (simulation). `node`:
  /// the memory node to take it from, -1: any. `ahead`: only prepare() makes extents, never
  /// acquire(). `room`: limits what is made; null: as much as the system gives.
  HostTier(const Driver& driver, Store* store, uint64_t budget_bytes,
           std::atomic<uint64_t>* shared_left, uint64_t own, bool no_bytes = false, int node = -1,
           bool ahead = false, HostRoom* room = nullptr);
  ~HostTier();

  /// Staging for `bytes`, with one reference; null when the budget (less `reserve` bytes that this
  /// caller may not use) is exhausted or fragmented, or the system gives no more memory.
  Staging* acquire(size_t bytes, uint64_t reserve = 0) FIRN_HELD;
  /// As acquire(), beyond the budget where need be.
  Staging* acquire_beyond(size_t bytes) FIRN_HELD;
  void ref(Staging* staging) FIRN_HELD { ++staging->refs; }
  void unref(Staging* staging) FIRN_HELD;

  /// Memory that is made ahead of need, without the engine's lock: pinning takes a third of a
  /// second for each GiB. begin_ahead() and end_ahead() under the lock, prepare() between them
  /// without it, one at a time.
  struct Ahead {
    uint64_t bytes = 0;  // 0: none is due
    uint64_t own_bytes = 0, shared_bytes = 0;  // claimed for it; given back where it is refused
    std::optional<StagingMemory> memory;
    bool registered = false;
    std::string trouble;
  };
  /// Is some due? The aim is to have half as much again mapped as is in use.
  bool ahead_due() const FIRN_HELD { return ahead_bytes() > 0; }
  Ahead begin_ahead() FIRN_HELD;
  void prepare(Ahead& ahead) const FIRN_NOT_HELD { prepare_now(ahead); }
  void end_ahead(Ahead ahead) FIRN_HELD;
  /// More is under way, or could be made.
  bool may_grow() const FIRN_HELD;
  /// To be called now and then: a second after a refusal the system is asked for memory again.
  /// Until it gives some, no thread should wait for it (may_grow()).
  void look_again(uint64_t now_ns) FIRN_HELD;

  struct Extent {
    StagingMemory memory;
    bool registered;
    uint64_t own_bytes, shared_bytes;  // claimed for it
  };
  /// For others who need the memory: closes the extent that holds the least, so that nothing more
  /// enters it. False: one is closed already, or no more can be spared.
  bool close_one() FIRN_HELD;
  bool closing() const FIRN_HELD { return closing_ != nullptr; }
  /// Does it lie in the extent that is closed?
  bool closes(const Staging& staging) const FIRN_HELD;
  /// The closed extent once it is empty, to be given back by give(), which needs neither the lock
  /// nor a context.
  std::optional<Extent> take_closed() FIRN_HELD;
  void give(Extent extent) const;
  /// Opens the closed extent for use again.
  void reopen() FIRN_HELD;

  /// Bytes that this engine can come to use, as things stand.
  uint64_t budget() const FIRN_HELD;
  uint64_t used() const FIRN_HELD { return ranges_.used(); }
  /// Registration refused, memory refused: in words; empty when all is well.
  const std::string& trouble() const FIRN_HELD { return trouble_; }
  /// Unregisters the memory from the driver; nothing is in flight any more.
  void unregister() FIRN_HELD;
  /// In the child after fork: leaves the parent's extents untouched; another thread may have been
  /// adding to them.
  void abandon() { abandoned_ = true; }

 private:
  /// As budget(), if memory were available.
  uint64_t most() const;
  uint64_t room() const;
  uint64_t ahead_bytes() const FIRN_HELD;
  /// As prepare(); acquire() does it under the lock where nothing is prepared ahead.
  void prepare_now(Ahead& ahead) const;
  /// The same. On std::bad_alloc nothing stays pinned, and no memory is left.
  void make(Ahead& ahead) const;
  bool adopt(Ahead ahead) FIRN_HELD;
  bool grow(size_t bytes) FIRN_HELD;
  bool add_extent(size_t size) FIRN_HELD;
  /// For a taken range, which is given back on std::bad_alloc.
  Staging* staging_at(uint64_t begin, size_t bytes) FIRN_HELD;
  bool claim(Ahead& ahead) FIRN_HELD;
  void close_range(uint64_t begin, uint64_t bytes) FIRN_HELD;
  void unclaim(uint64_t own_bytes, uint64_t shared_bytes) FIRN_HELD;

  const Driver& driver_;
  Store* store_;
  const uint64_t budget_;
  std::atomic<uint64_t>* const shared_left_;
  uint64_t own_left_;  // of `own`; unused without sharing
  const bool no_bytes_;
  const int node_;
  const bool ahead_;
  HostRoom* const room_;
  bool preparing_ = false;
  size_t wanted_ = 0;    // bytes that acquire() last failed to find; 0: it found them
  uint64_t mapped_ = 0;
  bool exhausted_ = false;  // the system gave no more
  bool asks_again_ = false;  // then: it is asked once more
  bool asking_ = false;      // the memory being made, if any, is such a try
  uint64_t exhausted_ns_ = 0;  // look_again() saw it first; 0: not yet
  const uint64_t own_;
  std::byte* closing_ = nullptr;  // start of the closed extent
  uint64_t closing_bytes_ = 0, closing_free_ = 0;
  std::vector<std::pair<uint64_t, uint64_t>> closed_ranges_;  // free ranges of it: begin, bytes
  std::vector<Extent>& extents_ = *new std::vector<Extent>;  // owned; left behind when abandoned
  bool abandoned_ = false;
  RangeMap ranges_;
  std::string trouble_;
};

}  // namespace firn
