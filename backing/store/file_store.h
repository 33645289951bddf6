// The store of real files: slots over several directories, completions by queue, words for trouble.
// Everything here is bookkeeping under one short lock; bytes move in DirIo's threads.
//
// Owns: the spill files, their I/O, the table of slots with their sums, the completions.
// Locks: mutex_ for all of it. A directory's grow_mutex is taken before mutex_ and is held during
// preallocation, so that submit and poll never wait for it. DirIo is called without mutex_.
#pragma once

#include <array>
#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backing/store/dir_health.h"
#include "backing/store/dir_io.h"
#include "firn/neighbours.h"
#include "firn/range_map.h"
#include "firn/ranked_mutex.h"
#include "firn/store.h"
#include "firn/throughput.h"

namespace firn {

/// open_store() with the system calls of `calls`, which outlives the store.
Result<std::unique_ptr<Store>> open_file_store(const StoreOptions& options, FileCalls& calls);

/// Why that request cannot be made; empty when it can. Shared with the simulated store.
std::string request_trouble(unsigned queue, const void* data, size_t bytes, size_t slot_bytes);
/// Why that reservation cannot be made; empty when it can.
std::string reservation_trouble(size_t bytes);

inline constexpr unsigned store_queues = 16;

/// The working part; the Store seam over it is FileStore, which forgets it in a forked child.
class FileStoreCore final : public JobHost {
 public:
  FileStoreCore(const StoreOptions& options, FileCalls& calls, std::vector<SpillFile> files,
                bool ring, std::string why);
  ~FileStoreCore();

  Result<void> attach_staging(std::span<std::byte> staging);
  void detach_staging(std::span<std::byte> staging);
  Result<Slot> reserve(size_t bytes, bool wait);
  Result<void> submit(StoreCompletion::Kind kind, unsigned queue, Slot slot, std::byte* data,
                      size_t bytes, uint64_t tag);
  bool cancel(unsigned queue, uint64_t tag);
  void discard(Slot slot);
  size_t poll(unsigned queue, std::span<StoreCompletion> out);
  std::optional<bool> holds(Slot slot, std::span<const std::byte> bytes);
  StoreStats stats() const;

  void finished(std::unique_ptr<Job> job) override;

 private:
  struct SlotState {  // of a slot; unused when bytes == 0
    uint32_t dir = 0;
    bool filled = false;     // readable: written without error, nothing written since
    bool writing = false;    // a write is queued or in flight
    bool discarded = false;  // room goes back when `jobs` is 0
    bool suspect = false;    // gave back a wrong sum: its room is not used again
    uint32_t jobs = 0;       // queued or in flight
    uint32_t next = 0;       // where unused: the next unused one
    uint64_t offset = 0;
    size_t bytes = 0;
    Sum sum;
  };
  struct Dir {
    SpillFile file;
    RangeMap free;
    uint64_t file_bytes = 0;         // as last grown: file.bytes() is read under grow_mutex only
    uint64_t outstanding_bytes = 0;  // queued or in flight
    uint64_t written_bytes = 0, read_bytes = 0;
    Throughput writes, reads;
    std::string trouble, why;  // last error; why not better
    bool writable = true;        // false: for good, for want of the file
    uint64_t full_until_ns = 0;  // after a write that found no space: no new slots before
    DirHealth health;
    uint64_t quarantined_bytes = 0;
    uint64_t grow_again_ns = 0;  // after a refusal: not before
    size_t asked_bytes = 0;      // asked of the growing thread; 0: nothing
    uint64_t grow_tries = 0;     // of that thread
    Result<void> grown;          // the last one's outcome
    size_t tried_bytes = 0;      // by so much
    size_t refused_bytes = 0;    // that could not be added, until grow_ask_ns
    uint64_t grow_ask_ns = 0;
    bool closed = false;         // by the program
    RankedMutex<Rank::growth> grow_mutex;
    std::unique_ptr<DirIo> io;
    bool own = true;
    // Others in this directory, and on its SSD through any directory.
    Neighbours in_dir, on_disk;
    std::atomic<unsigned> sharers{1};
    explicit Dir(SpillFile opened);
  };

  SlotState* state_of(Slot slot);
  /// A number that no slot has, the one unused for the longest: a slot used after its end is more
  /// likely to be noticed.
  uint32_t take_id();
  void give_id(uint32_t id) noexcept;
  /// Gives the slot's room back.
  void release(uint32_t id) noexcept;
  /// Room in that directory, growing its file where there is none. mutex_ held by `lock`, let go
  /// while the file grows.
  Result<uint64_t> find_room(Dir& dir, size_t bytes, bool wait,
                             std::unique_lock<RankedMutex<Rank::store>>& lock);
  /// Asks the growing thread for it: busy, or the reason why that is no use.
  Error ask_for_room(Dir& dir, size_t bytes);
  /// The same, and waits for it. There may be no room still: others took it.
  Result<void> wait_for_room(Dir& dir, size_t bytes,
                             std::unique_lock<RankedMutex<Rank::store>>& lock);
  bool start_growing();
  void keep_growing();
  Result<void> grow(Dir& dir, ThreadFile& at, size_t bytes,
                    std::unique_lock<RankedMutex<Rank::store>>& lock);
  void settle(SlotState& state, const Job& job, Dir& dir);
  /// Learns a directory's health from a finished job. Words for stderr; mostly none. mutex_ held.
  std::string judge(Dir& dir, SlotState& state, const Job& job);
  /// The program has closed the spill file. Words for stderr, once; empty after that. mutex_ held.
  std::string closed(Dir& dir, const Error& error);
  /// Counts the neighbours, now and then; without mutex_.
  void share();

  StoreOptions options_;
  FileCalls& calls_;
  Clock& clock_;
  const bool ring_;
  const std::string why_;

  mutable RankedMutex<Rank::store> mutex_;
  std::vector<SlotState> slots_;  // by slot id; [0] is none
  uint32_t first_unused_ = 0, last_unused_ = 0;  // of slots_, linked; 0: none
  std::array<std::list<StoreCompletion>, store_queues> done_;
  uint64_t slots_in_use_ = 0, slot_bytes_ = 0, reread_ = 0, corrupt_ = 0;
  size_t next_dir_ = 0;  // where the round goes on
  std::atomic<uint64_t> share_again_ns_{0};
  RankedCondition grow_due_, grow_tried_;
  bool stopping_ = false, growing_started_ = false;
  std::vector<std::unique_ptr<Dir>> dirs_;
  std::vector<ThreadFile> growing_files_;  // as the growing thread reaches them, by directory
  std::thread growing_;                    // last: it uses the others
};

}  // namespace firn
