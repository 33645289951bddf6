// Counters in the shape of torch's memory statistics, updated without a lock: totals only grow, the
// present value is their difference, peaks are raised where a total grew.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "allocator/base/thread_cells.h"
#include "allocator/engine/engine.h"

namespace firn {

class AtomicTally {
 public:
  void add(int64_t amount) {
    int64_t up = up_.fetch_add(amount, std::memory_order_relaxed) + amount;
    raise(up - down_.load(std::memory_order_relaxed));
  }
  void remove(int64_t amount) { down_.fetch_add(amount, std::memory_order_relaxed); }
  int64_t current() const {
    return up_.load(std::memory_order_relaxed) - down_.load(std::memory_order_relaxed);
  }
  Tally get() const {
    Tally tally;
    int64_t up = up_.load(std::memory_order_relaxed), down = down_.load(std::memory_order_relaxed);
    tally.current = up - down;
    tally.peak = peak_.load(std::memory_order_relaxed);
    tally.allocated = up - up_base_;
    tally.freed = down - down_base_;
    return tally;
  }
  void reset_peak() { peak_.store(current(), std::memory_order_relaxed); }
  void reset_totals() {
    up_base_ = up_.load(std::memory_order_relaxed);
    down_base_ = down_.load(std::memory_order_relaxed);
  }

 private:
  void raise(int64_t value) {
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (value > peak &&
           !peak_.compare_exchange_weak(peak, value, std::memory_order_relaxed)) {
    }
  }
  std::atomic<int64_t> up_{0}, down_{0}, peak_{0};
  int64_t up_base_ = 0, down_base_ = 0;  // under the engine's lock
};

/// The most that a value has been since the last reset.
class Peak {
 public:
  void raise(int64_t value) {
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (value > peak &&
           !peak_.compare_exchange_weak(peak, value, std::memory_order_relaxed)) {
    }
  }
  void reset(int64_t value) { peak_.store(value, std::memory_order_relaxed); }
  int64_t get() const { return peak_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> peak_{0};
};

/// One quantity in both pools, small (0) and large (1). "All" is their sum, with a peak of its own,
/// since the pools may have had theirs at different times.
class PooledTally {
 public:
  void add(bool large, int64_t amount) {
    pool_[large].add(amount);
    peak_.raise(current());
  }
  void remove(bool large, int64_t amount) { pool_[large].remove(amount); }
  int64_t current(bool large) const { return pool_[large].current(); }
  int64_t current() const { return pool_[0].current() + pool_[1].current(); }
  Tally all() const {
    const Tally small = pool_[0].get(), large = pool_[1].get();
    return {small.current + large.current, peak_.get(), small.allocated + large.allocated,
            small.freed + large.freed};
  }
  void get(Tally out[3]) const {
    out[0] = all();
    for (int pool = 0; pool < 2; ++pool) out[pool + 1] = pool_[pool].get();
  }
  void reset_peak() {
    for (AtomicTally& pool : pool_) pool.reset_peak();
    peak_.reset(current());
  }
  void reset_totals() {
    for (AtomicTally& pool : pool_) pool.reset_totals();
  }

 private:
  AtomicTally pool_[2];
  Peak peak_;
};

/// Memory that was freed while work on other streams may still use it: torch calls it active, not
/// allocated. Only then do the peaks of active and of allocated memory differ.
class WaitingTally {
 public:
  void add(bool large, int64_t amount) { waiting_.add(large, amount); }
  void remove(bool large, int64_t amount) { waiting_.remove(large, amount); }
  bool any() const { return waiting_.current() != 0; }
  template <class Allocated>
  void raise(const Allocated& allocated) {
    for (int pool = 0; pool < 2; ++pool)
      peak_[pool + 1].raise(allocated.current(pool) + waiting_.current(pool));
    peak_[0].raise(allocated.current() + waiting_.current());
  }
  /// The active tallies, from the allocated ones.
  template <class Allocated>
  void get(const Allocated& allocated, Tally out[3]) const {
    allocated.get(out);
    Tally waiting[3];
    waiting_.get(waiting);
    for (int pool = 0; pool < 3; ++pool) {
      Tally& tally = out[pool];
      tally.current += waiting[pool].current;
      tally.peak = std::max({tally.peak, peak_[pool].get(), tally.current});
      tally.freed -= waiting[pool].current - waiting_at_reset_[pool];
    }
  }
  void reset_peak() {
    for (Peak& peak : peak_) peak.reset(0);
  }
  void reset_totals() {
    for (int pool = 0; pool < 2; ++pool) waiting_at_reset_[pool + 1] = waiting_.current(pool);
    waiting_at_reset_[0] = waiting_.current();
  }

 private:
  PooledTally waiting_;
  Peak peak_[3];
  int64_t waiting_at_reset_[3] = {};  // under the engine's lock
};

/// Memory that is handed out, in both pools: blocks, their bytes, and the bytes that were asked
/// for. Each thread counts in its own cell. Below the peaks each cell has some room of its own;
/// only when it has used that up are all cells added up: a peak may be there. Exact if one thread's
/// calls follow another's, as a block's free follows its allocation.
class LiveTallies {
 public:
  enum Quantity : unsigned { blocks, bytes, requested };
  static constexpr unsigned quantities = 3;
  using Amounts = std::array<int64_t, quantities>;

  /// `cell`: the calling thread's.
  void add(unsigned cell, bool large, const Amounts& amounts) {
    Line& line = lines_[cell][large];
    bool beyond = false;
    for (unsigned q = 0; q < quantities; ++q) {
      const int64_t now = count(line.current[q], amounts[q], cell);
      count(line.up[q], amounts[q], cell);
      beyond |= now > line.below[q].load(std::memory_order_relaxed);
    }
    if (beyond) [[unlikely]]
      look_for_peaks(line, large);
  }
  void remove(unsigned cell, bool large, const Amounts& amounts) {
    for (unsigned q = 0; q < quantities; ++q)
      count(lines_[cell][large].current[q], -amounts[q], cell);
  }

  /// One quantity, with PooledTally's interface.
  struct Told {
    const LiveTallies& of;
    const Quantity quantity;
    int64_t current(bool large) const { return of.sum(&Line::current, quantity, large); }
    int64_t current() const { return current(false) + current(true); }
    void get(Tally out[3]) const {
      out[0] = {};
      for (int pool = 0; pool < 2; ++pool) {
        const Base& base = of.bases_[quantity][pool];
        const int64_t now = current(pool), up = of.sum(&Line::up, quantity, pool);
        out[pool + 1] = {now, of.peaks_[quantity].pool[pool].get(), up - base.up,
                         up - now - base.down};
        out[0].current += now;
        out[0].allocated += out[pool + 1].allocated;
        out[0].freed += out[pool + 1].freed;
      }
      out[0].peak = of.peaks_[quantity].all.get();
    }
    Tally all() const {
      Tally tallies[3];
      get(tallies);
      return tallies[0];
    }
  };
  Told told(Quantity quantity) const { return {*this, quantity}; }

  void reset_peaks() {
    for (const Quantity q : {blocks, bytes, requested}) {
      revoke(q);
      for (int pool = 0; pool < 2; ++pool) peaks_[q].pool[pool].reset(told(q).current(pool));
      peaks_[q].all.reset(told(q).current());
    }
  }
  void reset_totals() {
    for (const Quantity q : {blocks, bytes, requested})
      for (int pool = 0; pool < 2; ++pool) {
        const int64_t up = sum(&Line::up, q, pool);
        bases_[q][pool] = {up, up - told(q).current(pool)};
      }
  }

 private:
  struct alignas(64) Line {
    std::atomic<int64_t> current[quantities]{}, up[quantities]{};
    // The most that this cell may have without a peak: all together no more than the peaks, of
    // either pool and of both.
    std::atomic<int64_t> below[quantities]{};
  };
  struct Peaks {
    Peak pool[2], all;
  };
  struct Base {
    int64_t up = 0, down = 0;
  };
  static int64_t count(std::atomic<int64_t>& value, int64_t by, unsigned cell) {
    if (cell >= cells_own) return value.fetch_add(by, std::memory_order_relaxed) + by;
    const int64_t now = value.load(std::memory_order_relaxed) + by;  // no other thread writes here
    value.store(now, std::memory_order_relaxed);
    return now;
  }
  /// Raises the peaks to what all cells have together, and gives `line` half of the room left below
  /// them; if that is none, first takes back what the other cells have not used.
  void look_for_peaks(Line& line, bool large) {
    for (unsigned q = 0; q < quantities; ++q) {
      Sums sums = add_up(q, &line);
      peaks_[q].pool[large].raise(sums.now[large]);
      peaks_[q].all.raise(sums.now[0] + sums.now[1]);
      int64_t left = left_below_peaks(q, sums, large);
      if (left < 0) {
        revoke(q);
        sums = add_up(q, &line);
        left = std::max<int64_t>(left_below_peaks(q, sums, large), 0);
      }
      line.below[q].store(line.current[q].load(std::memory_order_relaxed) + left / 2,
                          std::memory_order_relaxed);
    }
  }
  struct Sums {
    int64_t now[2] = {};         // of each pool's cells
    int64_t spoken_for[2] = {};  // or their limits, where those are more; not `line`'s
  };
  Sums add_up(unsigned q, const Line* line) const {
    Sums sums;
    for (const auto& pools : lines_)
      for (int pool = 0; pool < 2; ++pool) {
        const int64_t current = pools[pool].current[q].load(std::memory_order_relaxed);
        const int64_t below = pools[pool].below[q].load(std::memory_order_relaxed);
        sums.now[pool] += current;
        sums.spoken_for[pool] += &pools[pool] == line ? current : std::max(current, below);
      }
    return sums;
  }
  int64_t left_below_peaks(unsigned q, const Sums& sums, bool large) const {
    return std::min(peaks_[q].pool[large].get() - sums.spoken_for[large],
                    peaks_[q].all.get() - sums.spoken_for[0] - sums.spoken_for[1]);
  }
  void revoke(unsigned q) {
    for (auto& pools : lines_)
      for (Line& each : pools)
        each.below[q].store(each.current[q].load(std::memory_order_relaxed),
                            std::memory_order_relaxed);
  }
  int64_t sum(std::atomic<int64_t> (Line::*counts)[quantities], unsigned quantity,
              bool large) const {
    int64_t total = 0;
    for (const auto& pools : lines_)
      total += (pools[large].*counts)[quantity].load(std::memory_order_relaxed);
    return total;
  }

  Line lines_[cells][2];
  Peaks peaks_[quantities];
  Base bases_[quantities][2];  // under the engine's lock
};

/// The engine's counters on its hot paths.
struct HotCounters {
  LiveTallies live;
  WaitingTally waiting, waiting_bytes;
  LiveTallies::Told allocation() const { return live.told(LiveTallies::blocks); }
  LiveTallies::Told allocated_bytes() const { return live.told(LiveTallies::bytes); }
  LiveTallies::Told requested_bytes() const { return live.told(LiveTallies::requested); }
  void allocated(unsigned cell, bool large, size_t bytes, size_t requested) {
    live.add(cell, large, {1, static_cast<int64_t>(bytes), static_cast<int64_t>(requested)});
    if (waiting.any()) [[unlikely]]
      raise_active();
  }
  void freed(unsigned cell, bool large, size_t bytes, size_t requested) {
    live.remove(cell, large, {1, static_cast<int64_t>(bytes), static_cast<int64_t>(requested)});
  }
  /// A block that is to be freed waits for other streams, or has done so.
  void waits(bool large, size_t bytes) {
    waiting.add(large, 1);
    waiting_bytes.add(large, static_cast<int64_t>(bytes));
  }
  void waited(bool large, size_t bytes) {
    waiting.remove(large, 1);
    waiting_bytes.remove(large, static_cast<int64_t>(bytes));
  }
  void reset_peaks() {
    live.reset_peaks();
    for (WaitingTally* tally : {&waiting, &waiting_bytes}) tally->reset_peak();
  }
  void reset_totals() {
    live.reset_totals();
    for (WaitingTally* tally : {&waiting, &waiting_bytes}) tally->reset_totals();
  }

 private:
  void raise_active() {
    waiting.raise(allocation());
    waiting_bytes.raise(allocated_bytes());
  }
};

/// A value computed on demand, and how much of it was taken again since it began. Its peak is the
/// most that was seen.
class SeenTally {
 public:
  /// Adds it to `own`, 1 (small) or 2 (large), and to all.
  void add_to(Tally t[3], int own, int64_t current, int64_t freed) {
    current_ = current;
    peak_ = std::max(peak_, current);
    const Tally seen{current, peak_, freed + current - at_reset_, freed};
    for (const int pool : {0, own}) {
      t[pool].current += seen.current;
      t[pool].peak += seen.peak;
      t[pool].allocated += seen.allocated;
      t[pool].freed += seen.freed;
    }
  }
  void reset_peak() { peak_ = current_; }
  void reset_totals() { at_reset_ = current_; }

 private:
  int64_t current_ = 0, peak_ = 0, at_reset_ = 0;
};

/// Counts of segments that their owners cut up, or that are not the engine's memory. Under the
/// engine's lock.
struct PartTallies {
  /// Large blocks of the engine that serve as segments of small parts.
  AtomicTally small_segments, small_bytes;
  PooledTally foreign_segments, foreign_bytes;
  PooledTally inactive, inactive_bytes;
  int64_t active_small = 0, active_small_bytes = 0;  // parts that are allocated, or wait
  SeenTally shared, shared_bytes;  // free in the segments that the engine's small blocks share
  SeenTally regions, regions_bytes;  // free between blocks in planned places

  void add_to(PoolTallies& t) const {
    move(t.segment, small_segments.get());
    move(t.reserved_bytes, small_bytes.get());
    add(t.segment, foreign_segments);
    add(t.reserved_bytes, foreign_bytes);
    inactive.get(t.inactive_split);
    inactive_bytes.get(t.inactive_split_bytes);
  }
  void reset_peaks() {
    small_segments.reset_peak();
    small_bytes.reset_peak();
    for (SeenTally* tally : {&shared, &shared_bytes, &regions, &regions_bytes}) tally->reset_peak();
    for (PooledTally* tally : {&foreign_segments, &foreign_bytes, &inactive, &inactive_bytes})
      tally->reset_peak();
  }
  void reset_totals() {
    small_segments.reset_totals();
    small_bytes.reset_totals();
    for (SeenTally* tally : {&shared, &shared_bytes, &regions, &regions_bytes})
      tally->reset_totals();
    for (PooledTally* tally : {&foreign_segments, &foreign_bytes, &inactive, &inactive_bytes})
      tally->reset_totals();
  }

 private:
  /// Moves `part` from the large pool to the small one. "All" stays what it is.
  static void move(Tally t[3], const Tally& part) {
    t[1].current += part.current;
    t[1].peak += part.peak;
    t[1].allocated += part.allocated;
    t[1].freed += part.freed;
    t[2].current -= part.current;
    t[2].allocated += part.freed;
    t[2].freed += part.allocated;
  }
  static void add(Tally t[3], const PooledTally& more) {
    Tally added[3];
    more.get(added);
    for (int pool = 0; pool < 3; ++pool) {
      t[pool].current += added[pool].current;
      t[pool].peak += added[pool].peak;  // at most: they need not have been at once
      t[pool].allocated += added[pool].allocated;
      t[pool].freed += added[pool].freed;
    }
  }
};

}  // namespace firn
