// The memory that the ranks of a communicator share: which of them have joined, small words that
// all ranks exchange, and a pipe of bytes for every ordered pair of ranks.
//
// It is a memfd that the process which asked for the unique id holds until all ranks have joined:
// others open it by that process's number, so nothing has a name and nothing stays behind, however
// a rank ends. Waiting is by futex on the waiting rank's own bell, in stretches, between which the
// waiter looks whether a peer's process has gone.
//
// Owns: a mapping of the memfd, a pidfd per rank of another process. Locks: none; what ranks share
// is atomic, and one thread at a time waits for a rank (its kernels run one after the other).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backing/gpu/software/nccl/abi.h"

namespace firn::nccl {

/// The contents of a ncclUniqueId.
struct Id {
  uint64_t magic;
  uint64_t number;  // random: tells it from another file under that descriptor's number
  int32_t process;
  int32_t descriptor;
};
static_assert(sizeof(Id) <= sizeof(ncclUniqueId));

/// Makes shared memory without ranks; it is kept until they have joined.
ncclResult_t make_id(Id* id);

inline constexpr size_t pipe_bytes = 256 << 10;
inline constexpr size_t exchange_bytes = 64;

struct Pipe {
  alignas(64) std::atomic<uint64_t> written;  // bytes, ever
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) char bytes[pipe_bytes];
};

struct RankRecord {
  enum State : uint32_t { absent, joined, left, aborted };
  alignas(64) std::atomic<uint32_t> bell;  // a futex: something has changed for this rank
  std::atomic<uint32_t> state;
  std::atomic<int32_t> process;
  char device[16];                         // its UUID; before `state` says joined
  std::atomic<uint64_t> exchanges;         // exchanges it gave words for; the last two's are here
  char words[2][exchange_bytes];
  std::atomic<uint64_t> shrinks;           // as the first rank of so many shrunk communicators
  char shrunk[exchange_bytes];             // the last one's Id
};

class SharedMemory {
 public:
  using Clock = std::chrono::steady_clock;

  /// Joins as `rank` and waits until all `ranks` have. `device`: a UUID, each rank's another.
  static ncclResult_t join(const Id& id, int ranks, int rank, const char device[16],
                           std::unique_ptr<SharedMemory>* joined);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  int ranks() const { return ranks_; }
  int rank() const { return rank_; }
  Pipe& pipe(int from, int to);
  RankRecord& record(int rank) { return records_[rank]; }

  /// Waits until this rank's bell has rung since it was `seen`, for a few milliseconds at most.
  uint32_t bell() const { return records_[rank_].bell.load(std::memory_order_acquire); }
  void wait_for_bell(uint32_t seen);
  void ring(int rank);
  void ring_all();

  /// A rank that has ended or aborted without leaving; -1: none. `why` gets the words.
  int lost_rank(std::string* why);
  /// This rank leaves: `state` is left or aborted.
  void leave(RankRecord::State state);

  /// Every rank gives words (at most exchange_bytes) and gets all ranks'. Waits for all of them.
  ncclResult_t exchange(const void* mine, size_t bytes, std::vector<std::array<char, exchange_bytes>>* all);
  /// Waits until `there()`; ncclRemoteError when a rank is lost meanwhile.
  ncclResult_t wait_until(const char* what, const std::function<bool()>& there);

 private:
  SharedMemory() = default;
  ncclResult_t open(const Id& id);
  ncclResult_t register_rank(const char device[16]);

  struct Header;
  Header* header_ = nullptr;
  RankRecord* records_ = nullptr;
  char* pipes_ = nullptr;
  size_t bytes_ = 0;
  int ranks_ = 0, rank_ = 0;
  uint64_t exchanges_ = 0;
  std::vector<int> watched_;  // pidfds; -1: not opened, or this process
};

}  // namespace firn::nccl
