// See shared_memory.h.
#include "backing/gpu/software/nccl/shared_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <map>
#include <mutex>

#include "backing/gpu/software/nccl/driver.h"

namespace firn::nccl {
namespace {

constexpr uint64_t magic = 0x6c63636e6e726966;  // "firnnccl"
constexpr size_t header_bytes = 4096;
constexpr auto look_every = std::chrono::milliseconds(10);
// How long ranks wait for others to join, or to give their words. Without a limit, a rank that
// lives and never calls would hold them up for ever.
constexpr auto join_within = std::chrono::minutes(10);

/// Ids made here whose ranks have not all joined: their files, by number.
std::mutex made_mutex;
std::map<uint64_t, int>& made() {
  static auto& all = *new std::map<uint64_t, int>;
  return all;
}

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* within) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, within, nullptr,
                 0);
}

}  // namespace

struct SharedMemory::Header {
  std::atomic<uint64_t> magic, number;
  std::atomic<int32_t> ranks;
  std::atomic<int32_t> joined;
};

ncclResult_t make_id(Id* id) {
  *id = Id{.magic = magic, .number = 0, .process = getpid(), .descriptor = -1};
  if (getrandom(&id->number, sizeof id->number, 0) != sizeof id->number)
    return fail(ncclSystemError, "getrandom: %s", strerror(errno));
  const int file = memfd_create("firn-nccl", MFD_CLOEXEC);
  if (file < 0) return fail(ncclSystemError, "memfd_create: %s", strerror(errno));
  const uint64_t begin[2] = {magic, id->number};
  if (ftruncate(file, header_bytes) != 0 || pwrite(file, begin, sizeof begin, 0) != sizeof begin) {
    const int error = errno;
    ::close(file);
    return fail(ncclSystemError, "a communicator's shared memory: %s", strerror(error));
  }
  id->descriptor = file;
  const std::lock_guard lock(made_mutex);
  made()[id->number] = file;
  return ncclSuccess;
}

SharedMemory::~SharedMemory() {
  for (int each : watched_)
    if (each >= 0) ::close(each);
  if (header_ != nullptr) ::munmap(header_, bytes_);
}

ncclResult_t SharedMemory::open(const Id& id) {
  if (id.magic != magic) return fail(ncclInvalidArgument, "not an id of the software NCCL");
  int file = -1;
  {
    const std::lock_guard lock(made_mutex);
    const auto found = made().find(id.number);
    if (found != made().end()) file = fcntl(found->second, F_DUPFD_CLOEXEC, 0);
  }
  if (file < 0) {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", id.process, id.descriptor);
    file = ::open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
      return fail(ncclSystemError, "the process %d that made the id cannot be reached: %s: %s",
                  id.process, path, strerror(errno));
  }
  const size_t records = static_cast<size_t>(ranks_) * sizeof(RankRecord);
  const size_t pipes_at = header_bytes + (records + 4095) / 4096 * 4096;
  bytes_ = pipes_at + static_cast<size_t>(ranks_) * static_cast<size_t>(ranks_) * sizeof(Pipe);
  struct stat now {};
  uint64_t begin[2] = {};
  // (A file of another size has another number of ranks; every rank makes it as large.)
  const bool ours = pread(file, begin, sizeof begin, 0) == sizeof begin && begin[0] == magic &&
                    begin[1] == id.number;
  const bool large = ours && fstat(file, &now) == 0 &&
                     (now.st_size >= static_cast<off_t>(bytes_) ||
                      ftruncate(file, static_cast<off_t>(bytes_)) == 0);
  void* at = MAP_FAILED;
  if (large) at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int error = errno;
  ::close(file);
  if (!ours) return fail(ncclInvalidArgument, "the id's shared memory has gone");
  if (at == MAP_FAILED)
    return fail(ncclSystemError, "%zu bytes of shared memory: %s", bytes_, strerror(error));
  header_ = static_cast<Header*>(at);
  records_ = reinterpret_cast<RankRecord*>(static_cast<char*>(at) + header_bytes);
  pipes_ = static_cast<char*>(at) + pipes_at;
  return ncclSuccess;
}

ncclResult_t SharedMemory::register_rank(const char device[16]) {
  int32_t none = 0;
  if (!header_->ranks.compare_exchange_strong(none, ranks_) && none != ranks_)
    return fail(ncclInvalidArgument, "a communicator of %d ranks, of %d elsewhere", ranks_, none);
  RankRecord& mine = records_[rank_];
  none = 0;
  if (!mine.process.compare_exchange_strong(none, getpid()))
    return fail(ncclInvalidUsage, "rank %d has joined twice", rank_);
  std::memcpy(mine.device, device, sizeof mine.device);
  mine.state.store(RankRecord::joined, std::memory_order_release);
  header_->joined.fetch_add(1, std::memory_order_acq_rel);
  ring_all();
  return ncclSuccess;
}

ncclResult_t SharedMemory::join(const Id& id, int ranks, int rank, const char device[16],
                           std::unique_ptr<SharedMemory>* joined) {
  std::unique_ptr<SharedMemory> shared(new SharedMemory);
  shared->ranks_ = ranks;
  shared->rank_ = rank;
  shared->watched_.assign(static_cast<size_t>(ranks), -1);
  FIRN_NCCL_TRY(shared->open(id));
  FIRN_NCCL_TRY(shared->register_rank(device));
  FIRN_NCCL_TRY(shared->wait_until("all ranks to join", [&] {
    return shared->header_->joined.load(std::memory_order_acquire) >= ranks;
  }));
  {  // All ranks have it open.
    const std::lock_guard lock(made_mutex);
    if (const auto found = made().find(id.number); found != made().end()) {
      ::close(found->second);
      made().erase(found);
    }
  }
  for (int other = 0; other < ranks; ++other)
    if (other != rank && std::memcmp(shared->records_[other].device, device, 16) == 0)
      return fail(ncclInvalidUsage, "Duplicate GPU detected : rank %d and rank %d both on one "
                  "CUDA device", rank, other);
  *joined = std::move(shared);
  return ncclSuccess;
}

Pipe& SharedMemory::pipe(int from, int to) {
  const size_t index = static_cast<size_t>(from) * static_cast<size_t>(ranks_) +
                       static_cast<size_t>(to);
  return *reinterpret_cast<Pipe*>(pipes_ + index * sizeof(Pipe));
}

void SharedMemory::wait_for_bell(uint32_t seen) {
  const timespec within{0, std::chrono::nanoseconds(look_every).count()};
  (void)futex(records_[rank_].bell, FUTEX_WAIT, seen, &within);
}

void SharedMemory::ring(int rank) {
  records_[rank].bell.fetch_add(1, std::memory_order_acq_rel);
  (void)futex(records_[rank].bell, FUTEX_WAKE, INT_MAX, nullptr);
}

void SharedMemory::ring_all() {
  for (int rank = 0; rank < ranks_; ++rank) ring(rank);
}

int SharedMemory::lost_rank(std::string* why) {
  for (int rank = 0; rank < ranks_; ++rank) {
    RankRecord& record = records_[rank];
    const uint32_t state = record.state.load(std::memory_order_acquire);
    if (rank == rank_ || state == RankRecord::absent || state == RankRecord::left) continue;
    if (state == RankRecord::aborted) {
      *why = "rank " + std::to_string(rank) + " has aborted the communicator";
      return rank;
    }
    const pid_t process = record.process.load(std::memory_order_relaxed);
    if (process == getpid()) continue;
    int& watched = watched_[static_cast<size_t>(rank)];
    if (watched < 0) watched = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
    pollfd ended{watched, POLLIN, 0};
    if (watched < 0 ? errno != ESRCH : poll(&ended, 1, 0) <= 0) continue;
    // (It may have left as its last act.)
    if (record.state.load(std::memory_order_acquire) == RankRecord::left) continue;
    *why = "the process " + std::to_string(process) + " of rank " + std::to_string(rank) +
           " has ended";
    return rank;
  }
  return -1;
}

void SharedMemory::leave(RankRecord::State state) {
  records_[rank_].state.store(state, std::memory_order_release);
  ring_all();
}

ncclResult_t SharedMemory::wait_until(const char* what, const std::function<bool()>& there) {
  const auto until = Clock::now() + join_within;
  for (std::string why;;) {
    const uint32_t seen = bell();
    if (there()) return ncclSuccess;
    wait_for_bell(seen);
    if (there()) return ncclSuccess;
    if (lost_rank(&why) >= 0)
      return fail(ncclRemoteError, "while waiting for %s: %s", what, why.c_str());
    if (Clock::now() > until)
      return fail(ncclSystemError, "%s: not within %lld minutes", what,
                  static_cast<long long>(join_within.count()));
  }
}

// A rank is one exchange ahead of another at most, so two buffers for words are enough.
ncclResult_t SharedMemory::exchange(const void* mine, size_t bytes,
                               std::vector<std::array<char, exchange_bytes>>* all) {
  const uint64_t number = ++exchanges_;
  std::memcpy(records_[rank_].words[number % 2], mine, bytes);
  records_[rank_].exchanges.store(number, std::memory_order_release);
  ring_all();
  all->resize(static_cast<size_t>(ranks_));
  for (int rank = 0; rank < ranks_; ++rank) {
    RankRecord& record = records_[rank];
    FIRN_NCCL_TRY(wait_until("words of all ranks", [&] {
      return record.exchanges.load(std::memory_order_acquire) >= number;
    }));
    std::memcpy((*all)[static_cast<size_t>(rank)].data(), record.words[number % 2],
                exchange_bytes);
  }
  return ncclSuccess;
}

}  // namespace firn::nccl
