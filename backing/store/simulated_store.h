// A disk in memory: slots keep their bytes, requests take the time a disk of the given bandwidth
// would, faults come from a seed. The same calls in the same virtual order give the same results.
//
// One request at a time is on its way in each direction (the bandwidth is shared by queueing); its
// bytes move at the end of that, and its completion falls due `latency_ns` later. Writes are summed
// at submission and again when their bytes move: memory that changed in between aborts the run.
//
// Owns: the bytes. Lock: mutex_, never held while the clock is called (it may call back).
#pragma once

#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <vector>

#include "backing/store/file_store.h"
#include "backing/store/sum.h"
#include "firn/ranked_mutex.h"
#include "firn/store.h"
#include "firn/throughput.h"

namespace firn {

class SimulatedDisk final : public SimulatedStore {
 public:
  explicit SimulatedDisk(const SimulatedStoreOptions& options);

  Result<void> attach_staging(std::span<std::byte> staging) override;
  Result<Slot> reserve(size_t bytes, bool wait = true) override;
  Result<void> write(unsigned queue, Slot slot, std::span<const std::byte> bytes,
                     uint64_t tag) override;
  Result<void> read(unsigned queue, Slot slot, std::span<std::byte> bytes, uint64_t tag) override;
  bool cancel(unsigned queue, uint64_t tag) override;
  void discard(Slot slot) override;
  std::optional<bool> holds(Slot slot, std::span<const std::byte> bytes) const override;
  size_t poll(unsigned queue, std::span<StoreCompletion> out) override;
  StoreStats stats() const override;
  void abandon() override {}  // memory only: the child's copy is its own
  uint64_t next_completion_ns() const override;
  void end_faults() override;
  SimulatedFaults faults() const override;
  size_t in_flight(unsigned queue) const override;
  std::span<const std::byte> contents(Slot slot) const override;
  bool damaged(Slot slot) const override;

 private:
  struct SlotState {
    size_t bytes = 0;
    std::vector<std::byte> data;
    Sum sum;
    bool filled = false, writing = false, discarded = false;
    bool lasting_corrupt = false;
    bool damaged = false;  // data is not what was written
    uint32_t jobs = 0;
  };
  struct Request {
    StoreCompletion completion;
    unsigned queue = 0;
    std::byte* data = nullptr;
    uint64_t submitted_ns = 0, end_ns = 0;
    bool begun = false, was_filled = false;
    unsigned reads = 0;  // attempts that are over
    Sum sum;             // write: at submission; read: the first wrong one
  };
  struct Done {
    uint64_t due_ns = 0;
    unsigned queue = 0;
    StoreCompletion completion;
    bool told = false;  // next_completion_ns() has named it after it fell due
  };
  enum Side : size_t { reads, writes };

  Result<void> submit(Request request, Side side, uint64_t now);
  void advance(uint64_t now);
  void start(Side side, uint64_t at_ns);
  /// The front request's bytes have moved; false when it has to go round again (a re-read).
  bool move(Request& request, Side side);
  bool move_read(Request& request, SlotState& state);
  // simulated_faults.cpp
  void move_write(const Request& request, SlotState& state);
  bool read_elsewhere(const Request& request, const SlotState& state);
  SlotState* another(const SlotState& state);
  void keep_old(SlotState& state);
  uint64_t lateness();
  bool fails(Side side, uint64_t now);
  // For memory's bytes or its tags: `contents_` has whichever there are.
  size_t content_bytes(size_t bytes) const {
    return options_.tags ? bytes / store_alignment * sizeof(uint64_t) : bytes;
  }
  void load(const std::byte* from, size_t bytes);
  void unload(std::byte* to, size_t bytes);
  void poison_memory(std::byte* to, size_t bytes);
  Sum sum_in_memory(const std::byte* from, size_t bytes);  // leaves it in contents_
  void end(Request& request, uint64_t at_ns);
  bool chance(double rate);

  SimulatedStoreOptions options_;
  mutable RankedMutex<Rank::store> mutex_;
  std::mt19937_64 random_;
  std::map<uint32_t, SlotState> slots_;
  std::vector<std::byte> contents_;   // of one request, while it is worked on
  std::vector<std::byte> old_;        // contents of the slot discarded last
  SimulatedFaults faults_;
  uint32_t next_id_ = 1;
  std::array<std::deque<Request>, 2> waiting_;  // the front may be on its way
  std::array<uint64_t, 2> free_ns_{};           // when the direction was last free
  mutable std::deque<Done> done_;               // in the order they fall due
  StoreDirStats dir_;
  Throughput speed_[2];  // by side
  uint64_t slot_bytes_ = 0, reread_ = 0, corrupt_ = 0;
};

}  // namespace firn
