// Collectives out of transfers: each rank reduces its own part of a block, in the ranks' order.
#include "backing/gpu/software/nccl/collectives.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace firn::nccl {
namespace {

// The part of a rank that is reduced at a time: the others' bytes of it are kept until then.
constexpr size_t part_bytes_most = 1 << 20;

class Collective {
 public:
  Collective(SharedMemory& shared, Signals& signals, const Work& work)
      : mover_(shared, signals), work_(work), ranks_(static_cast<size_t>(shared.ranks())),
        rank_(static_cast<size_t>(shared.rank())),
        element_(size_of(static_cast<ncclDataType_t>(work.type))),
        bytes_(work.count * element_) {
    reduction_.type = static_cast<ncclDataType_t>(work.type);
    reduction_.op = static_cast<ncclRedOp_t>(work.op);
    std::memcpy(reduction_.scalar, work.scalar, sizeof work.scalar);
    if (work.scalar_at != nullptr) std::memcpy(reduction_.scalar, work.scalar_at, element_);
  }

  void run() {
    switch (work_.function) {
      case Function::all_reduce: return all_reduce();
      case Function::reduce: return reduce_to_root();
      case Function::reduce_scatter: return reduce_scatter();
      case Function::broadcast: return broadcast();
      case Function::all_gather: return exchange_parts(true, true);
      case Function::all_to_all: return exchange_parts(false, true);
      case Function::gather: return exchange_parts(true, false);
      case Function::scatter: return scatter();
      default: return;
    }
  }

 private:
  size_t root() const { return static_cast<size_t>(work_.root); }
  void send(size_t rank, const char* at, size_t bytes) {
    // (Only read.)
    transfers_.push_back({static_cast<int>(rank), true, const_cast<char*>(at), bytes, kind()});
  }
  void receive(size_t rank, char* at, size_t bytes) {
    transfers_.push_back({static_cast<int>(rank), false, at, bytes, kind()});
  }
  uint32_t kind() const {
    return static_cast<uint32_t>(work_.function) << 16 | uint32_t{work_.type} << 8 | work_.op;
  }
  void move() {
    mover_.move(transfers_);
    transfers_.clear();
  }

  /// Receives every other rank's `bytes` for the part that `mine` is of this rank, and reduces them
  /// into `to`. This rank's sends meanwhile are in the list already.
  void reduce_part(const char* mine, char* to, size_t bytes) {
    if (kept_ == nullptr) kept_.reset(new char[ranks_ * part_bytes_most]);
    std::vector<const char*> from(ranks_, mine);
    for (size_t rank = 0; rank < ranks_; ++rank) {
      if (rank == rank_) continue;
      char* const at = kept_.get() + rank * part_bytes_most;
      receive(rank, at, bytes);
      from[rank] = at;
    }
    move();
    reduce(reduction_, from, to, bytes / element_);
  }

  void all_reduce() {
    const size_t part_most = part_bytes_most / element_;
    for (size_t begin = 0; begin < work_.count; begin += ranks_ * part_most) {
      const size_t block = std::min(work_.count - begin, ranks_ * part_most);
      const size_t part = (block + ranks_ - 1) / ranks_;
      const auto at = [&](size_t rank) { return (begin + std::min(rank * part, block)) * element_; };
      const auto bytes = [&](size_t rank) { return at(rank + 1) - at(rank); };
      for (size_t rank = 0; rank < ranks_; ++rank)
        if (rank != rank_) send(rank, work_.from + at(rank), bytes(rank));
      reduce_part(work_.from + at(rank_), work_.to + at(rank_), bytes(rank_));
      for (size_t rank = 0; rank < ranks_; ++rank) {
        if (rank == rank_) continue;
        send(rank, work_.to + at(rank_), bytes(rank_));
        receive(rank, work_.to + at(rank), bytes(rank));
      }
      move();
    }
  }

  void reduce_to_root() {
    for (size_t begin = 0; begin < bytes_; begin += part_bytes_most) {
      const size_t bytes = std::min(bytes_ - begin, part_bytes_most);
      if (rank_ == root()) {
        reduce_part(work_.from + begin, work_.to + begin, bytes);
      } else {
        send(root(), work_.from + begin, bytes);
        move();
      }
    }
  }

  void reduce_scatter() {
    for (size_t begin = 0; begin < bytes_; begin += part_bytes_most) {
      const size_t bytes = std::min(bytes_ - begin, part_bytes_most);
      for (size_t rank = 0; rank < ranks_; ++rank)
        if (rank != rank_) send(rank, work_.from + rank * bytes_ + begin, bytes);
      reduce_part(work_.from + rank_ * bytes_ + begin, work_.to + begin, bytes);
    }
  }

  void broadcast() {
    if (rank_ != root()) {
      receive(root(), work_.to, bytes_);
    } else {
      for (size_t rank = 0; rank < ranks_; ++rank)
        if (rank != rank_) send(rank, work_.from, bytes_);
      if (work_.to != work_.from) std::memmove(work_.to, work_.from, bytes_);
    }
    move();
  }

  /// Every rank (`to_all`) or the root gets a part from each: the same for all (`same`), or its own.
  void exchange_parts(bool same, bool to_all) {
    const auto part_for = [&](size_t rank) { return work_.from + (same ? 0 : rank * bytes_); };
    for (size_t rank = 0; rank < ranks_; ++rank) {
      if (to_all || rank == root()) {
        if (rank != rank_) send(rank, part_for(rank), bytes_);
      }
      if (to_all || rank_ == root()) {
        char* const at = work_.to + rank * bytes_;
        if (rank != rank_)
          receive(rank, at, bytes_);
        else if (at != part_for(rank_))
          std::memmove(at, part_for(rank_), bytes_);
      }
    }
    move();
  }

  void scatter() {
    if (rank_ != root()) {
      receive(root(), work_.to, bytes_);
    } else {
      for (size_t rank = 0; rank < ranks_; ++rank)
        if (rank != rank_) send(rank, work_.from + rank * bytes_, bytes_);
      const char* const mine = work_.from + rank_ * bytes_;
      if (work_.to != mine) std::memmove(work_.to, mine, bytes_);
    }
    move();
  }

  Mover mover_;
  const Work& work_;
  const size_t ranks_, rank_, element_, bytes_;
  Reduction reduction_{};
  std::vector<Transfer> transfers_;
  std::unique_ptr<char[]> kept_;
};

}  // namespace

const char* name_of(Function function) {
  static constexpr const char* names[] = {"AllReduce", "Broadcast", "Reduce", "AllGather",
                                          "ReduceScatter", "AlltoAll", "Gather", "Scatter",
                                          "SendRecv", "SendRecv"};
  return names[static_cast<size_t>(function)];
}

uint64_t bytes_of(const Work& work, int ranks) {
  const uint64_t part = work.count * size_of(static_cast<ncclDataType_t>(work.type));
  switch (work.function) {
    case Function::all_reduce: return 2 * part;
    case Function::broadcast: case Function::reduce: case Function::send: case Function::receive:
      return part;
    default: return part * static_cast<uint64_t>(ranks);
  }
}

void run(SharedMemory& shared, Signals& signals, std::span<const Work> works) {
  std::vector<Transfer> transfers;
  for (const Work& work : works) {
    if (!is_point_to_point(work.function)) {
      Collective(shared, signals, work).run();
      continue;
    }
    const bool sends = work.function == Function::send;
    // (The types may differ, as long as there are as many bytes.)
    transfers.push_back({work.root, sends, sends ? const_cast<char*>(work.from) : work.to,
                         work.count * size_of(static_cast<ncclDataType_t>(work.type)),
                         static_cast<uint32_t>(Function::send) << 16});
  }
  if (!transfers.empty()) Mover(shared, signals).move(transfers);
}

}  // namespace firn::nccl
