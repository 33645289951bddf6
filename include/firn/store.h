// The seam to NVMe (and to simulated disks): slots in spill files, written and read asynchronously
// through registered staging memory, with the integrity of every byte owned below this line.
//
// Threads: submit (reserve, write, read, discard, cancel) and poll may be called from any thread;
// none of them blocks on I/O. Completions of one queue are polled by that queue's engine only.
// Errors of a request arrive in its completion, never lost, never retried silently beyond what is
// written here: short transfers, EAGAIN and EINTR are continued by the store itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "firn/clock.h"
#include "firn/result.h"
#include "firn/sum.h"

namespace firn {

/// Granularity of slots and alignment of every staging address and length given to a store.
inline constexpr size_t store_alignment = 4096;

/// Room in a spill file. Value type; 0 is "none". Valid from reserve() until discard().
struct Slot {
  uint32_t id = 0;
  explicit operator bool() const { return id != 0; }
  bool operator==(const Slot&) const = default;
};

struct StoreCompletion {
  enum class Kind : uint8_t { write, read };
  uint64_t tag = 0;  // as given at submission
  Kind kind = Kind::write;
  Slot slot;
  size_t bytes = 0;
  uint64_t busy_ns = 0;  // from submission to completion
  Error error;           // code == ok on success
  std::optional<Sum> sum;  // on success, where sums are kept: of what was written, or read
};

struct StoreDirStats {
  std::string dir;
  uint64_t written_bytes = 0, read_bytes = 0;
  uint64_t file_bytes = 0;      // preallocated
  std::string trouble;          // last ENOSPC / EIO / EFBIG / wrong sum in words, empty when none
  bool writable = true;         // false: no new slot is placed here, for a pause of 1 to 64 s after
                                // an EIO, of 1 s after ENOSPC, for good after wrong sums
  double write_bytes_s = 0;     // measured lately, while there was something to do; 0: not known
  double read_bytes_s = 0;
  bool own = true;              // false: used only where the process's own directories have no room
  unsigned sharers = 1;         // users of this directory's SSD just now, this one included; a
                                // process counts once for each of its directories there
  uint64_t quarantined_bytes = 0;  // room that gave back a wrong sum, and is not used again
};

struct StoreStats {
  std::string kind;             // "io_uring" | "threads" | "simulated"
  std::string why;              // why not better (io_uring refused: EPERM ..., ...)
  std::string cipher;           // of the bytes on disk; empty: none
  std::vector<StoreDirStats> dirs;
  uint64_t written_bytes = 0, read_bytes = 0;
  uint64_t slots_in_use = 0, slot_bytes_in_use = 0;
  uint64_t reread = 0;          // checksum mismatches healed by a re-read
  uint64_t corrupt = 0;         // and those that were not
  uint64_t quarantined_bytes = 0;  // of all directories
};

class Store {
 public:
  virtual ~Store() = default;  // waits for I/O in flight; files vanish with their descriptors

  /// Makes `staging` (store_alignment-aligned, mapped until detach_staging()) usable for I/O,
  /// registered with the kernel where that is allowed; where it is not (ENOMEM by memlock), I/O
  /// works unregistered and stats().why says so. Buffers given to write/read lie in such staging.
  virtual Result<void> attach_staging(std::span<std::byte> staging) = 0;

  /// Detaches staging given to attach_staging(), with no request in it: when this returns, the
  /// kernel holds none of its pages. May wait for I/O of others. Not under a lock that I/O needs.
  virtual void detach_staging(std::span<std::byte> staging) { (void)staging; }

  /// Reserves room for `bytes` (> 0, a multiple of store_alignment; at most 1 GiB). no_space when
  /// no directory can grow, io while all that could rest after errors; then nothing was changed.
  /// Growing a file may take seconds: with `wait` this waits; without it the answer is busy at
  /// once, and the clock is notified when it is worth asking again.
  virtual Result<Slot> reserve(size_t bytes, bool wait = true) = 0;

  /// Writes the whole slot from `bytes` (its size must equal the reservation). The sum (XXH3-128)
  /// is taken before the write and kept in memory. `bytes` must stay unchanged until completion.
  /// On failure the slot holds nothing readable; the caller still has its bytes.
  virtual Result<void> write(unsigned queue, Slot slot, std::span<const std::byte> bytes,
                             uint64_t tag) = 0;

  /// Reads the whole slot and verifies its sum before completing. On a mismatch reads again twice
  /// (direct, then buffered); then completes with Code::corrupt, naming slot and both sums.
  /// Code::lost: the program has closed the spill file, and no try will read it.
  /// `bytes` is undefined until completion, and after a failure.
  virtual Result<void> read(unsigned queue, Slot slot, std::span<std::byte> bytes,
                            uint64_t tag) = 0;

  /// Withdraws a request that has not begun: true, and no completion will come. False: it will.
  virtual bool cancel(unsigned queue, uint64_t tag) = 0;

  /// Gives the slot back. Allowed with its I/O in flight: the room is reused only afterwards, and
  /// the completion still comes.
  virtual void discard(Slot slot) = 0;

  /// Are these the bytes that the slot holds, by its sum? Nothing where it is not known: a write is
  /// under way, or no sums are kept. Does not read the slot.
  virtual std::optional<bool> holds(Slot slot, std::span<const std::byte> bytes) const {
    (void)slot, (void)bytes;
    return std::nullopt;
  }

  /// Takes up to out.size() completions of `queue` (0..15, one per engine). Never blocks.
  virtual size_t poll(unsigned queue, std::span<StoreCompletion> out) = 0;

  virtual StoreStats stats() const = 0;

  /// In the child after fork: forgets ring, threads and files without touching them.
  virtual void abandon() = 0;
};

/// Speeds of a modelled SSD that a store is held to (backing/store/paced_store.h). 0: not held.
struct StorePace {
  double read_bytes_s = 0, write_bytes_s = 0;  // of the whole store
  uint64_t latency_ns = 0;                     // of each request
  explicit operator bool() const { return read_bytes_s > 0 || write_bytes_s > 0 || latency_ns > 0; }
};

struct StoreOptions {
  enum class Kind : uint8_t { automatic, io_uring, threads };
  Kind kind = Kind::automatic;
  std::vector<std::string> dirs;      // at least one; absolute
  size_t request_bytes = 1 << 20;     // one SQE or pread/pwrite at most
  std::vector<size_t> own_dirs;       // new slots go there while there is room; empty: to all
  unsigned depth = 32;                // requests in flight per directory, of all processes that
                                      // use its SSD (neighbours.h): each has its share
  unsigned threads = 4;               // pread/pwrite threads per directory
  size_t grow_bytes = 256u << 20;     // preallocation step
  size_t max_bytes_per_dir = SIZE_MAX;  // of all processes that use the directory: as depth
  bool allow_tmpfs = false;
  Clock* clock = nullptr;             // notified at completions; wall_clock() when null
  StorePace pace;                     // tests: completions come as late as a modelled SSD's
  bool encrypt = false;               // slots, with a key of this process (backing/store/cipher.h)
};

/// Opens a store of real files: O_TMPFILE, O_DIRECT, mode 0600, one per directory, no name ever.
/// invalid_argument names the directory and the knob (firn_dir) for: missing, not a directory,
/// relative, not writable, owned by others and writable by others without the sticky bit, tmpfs
/// (unless allowed), no O_DIRECT (a trial write and read at start-up decides).
Result<std::unique_ptr<Store>> open_store(const StoreOptions& options);

/// The state in which open_store() would find `dir`, without keeping anything: for `firn doctor`.
struct DirReport {
  std::string dir, filesystem;
  bool usable = false, o_direct = false;
  uint64_t free_bytes = 0;
  double write_bytes_s = 0, read_bytes_s = 0;  // 0 when not measured
  std::string store_kind, why;                 // kind that would be used; why not better
};
Result<DirReport> examine_dir(const std::string& dir, size_t measure_bytes);

/// Why io_uring is refused here; empty when it works.
std::string io_uring_trouble();

/// Memory whose contents are tags in place of bytes (firn/software_gpu.h): one for each
/// store_alignment of it. Called under the store's lock.
class TagMemory {
 public:
  virtual ~TagMemory() = default;
  virtual void read(const std::byte* address, size_t bytes, uint64_t* tags) = 0;
  virtual void write(std::byte* address, size_t bytes, const uint64_t* tags) = 0;
};

/// How often a simulated store has injected each fault.
struct SimulatedFaults {
  uint64_t write_errors = 0, read_errors = 0, refused = 0, late = 0, short_transfers = 0;
  uint64_t flipped = 0, stale_reads = 0, misdirected_reads = 0;                // healed
  uint64_t lasting_flips = 0, lost_writes = 0, misdirected_writes = 0, torn = 0;  // for good
};

/// A disk in memory for simulation: deterministic from a seed, timed by `clock`, with faults.
struct SimulatedStoreOptions {
  Clock* clock = nullptr;             // required; completions fall due by clock->now_ns()
  uint64_t seed = 1;
  double read_bytes_s = 3.2e9, write_bytes_s = 3.2e9;
  uint64_t latency_ns = 20'000;
  size_t capacity_bytes = SIZE_MAX;   // reserve() beyond it: no_space
  double write_error_rate = 0, read_error_rate = 0;   // EIO, transient: a later try may pass
  double corrupt_rate = 0;            // first read returns flipped bits (healed by the re-read)
  double lasting_corrupt_rate = 0;    // every read of that slot: Code::corrupt
  bool keep_bytes = true;             // false: same checks and times, but no data is read from or
                                      // written to memory, and no sums are taken (no corruption)
  TagMemory* tags = nullptr;          // not null: memory holds tags; slots and sums are of those
  // Rates of further faults. A first read finds another slot's bytes, or what the disk held there
  // before (healed by the re-read); completions come up to `late_ns_most` late, and overtake each
  // other; a transfer is short, and is continued.
  double misdirected_read_rate = 0, stale_read_rate = 0, late_rate = 0, short_rate = 0;
  uint64_t late_ns_most = 1'000'000;
  // A write is reported done but was lost, or half done, or went to another slot's room: the
  // slot's bytes are gone for good, and its reads are Code::corrupt.
  double lost_write_rate = 0, torn_rate = 0, misdirected_write_rate = 0;
  // Between these times on the clock every read, every write is EIO; reserve() is no_space.
  uint64_t reads_fail_from_ns = 0, reads_fail_until_ns = 0;
  uint64_t writes_fail_from_ns = 0, writes_fail_until_ns = 0;
  uint64_t full_from_ns = 0, full_until_ns = 0;
};
class SimulatedStore : public Store {
 public:
  /// When the next completion falls due; UINT64_MAX when nothing is in flight.
  virtual uint64_t next_completion_ns() const = 0;
  /// From here on nothing new goes wrong; what is damaged stays so.
  virtual void end_faults() {}
  virtual SimulatedFaults faults() const { return {}; }
  /// Requests that are taken and not yet polled.
  virtual size_t in_flight(unsigned queue) const { return (void)queue, 0; }
  /// The disk's bytes in the slot's room; empty where nothing was written.
  virtual std::span<const std::byte> contents(Slot slot) const {
    (void)slot;
    return {};
  }
  /// Does the slot hold something else than was written to it?
  virtual bool damaged(Slot slot) const { return (void)slot, false; }
};
std::unique_ptr<SimulatedStore> open_simulated_store(const SimulatedStoreOptions& options);

/// Page-aligned anonymous memory for staging: hugetlb pages where the system has them and gives
/// them now (a cgroup's limit shows at the first access only, as SIGBUS), else transparent huge
/// pages. Neither a forked child nor a core file has it. Freed by the destructor.
class StagingMemory {
 public:
  /// `reserve_only`: addresses without memory, for simulation in which no bytes move. `node`: the
  /// memory node to prefer; -1, or where the system refuses: the one that the kernel chooses.
  /// `huge`: hugetlb pages may be taken.
  static Result<StagingMemory> create(size_t bytes, bool reserve_only = false, int node = -1,
                                      bool huge = true);
  /// Has the kernel find all of its pages now, and not at the first access to each.
  void populate();
  StagingMemory(StagingMemory&&) noexcept;
  StagingMemory& operator=(StagingMemory&&) noexcept;
  ~StagingMemory();
  std::span<std::byte> bytes() const { return bytes_; }
  const char* pages() const { return pages_; }  // "hugetlb" | "transparent" | "4 KiB" | "none"
  void abandon() { bytes_ = {}; }               // leaks on purpose (exit, fork)

 private:
  StagingMemory() = default;
  std::span<std::byte> bytes_;
  const char* pages_ = "";
};

}  // namespace firn
