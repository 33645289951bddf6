// Transfers through pipes: see transfer.h.
#include "backing/gpu/software/nccl/transfer.h"

#include <algorithm>
#include <cstring>

namespace firn::nccl {
namespace {

struct First {
  uint64_t bytes;
  uint32_t kind;
  uint32_t magic;
};
constexpr uint32_t first_magic = 0x4c43434e;  // "NCCL"
constexpr size_t step_bytes = 64 << 10;       // so that the other side begins early

void put(Pipe& pipe, uint64_t at, const void* from, size_t bytes) {
  const size_t begin = at % pipe_bytes, straight = std::min(bytes, pipe_bytes - begin);
  std::memcpy(pipe.bytes + begin, from, straight);
  std::memcpy(pipe.bytes, static_cast<const char*>(from) + straight, bytes - straight);
}

void take(Pipe& pipe, uint64_t at, void* to, size_t bytes) {
  const size_t begin = at % pipe_bytes, straight = std::min(bytes, pipe_bytes - begin);
  std::memcpy(to, pipe.bytes + begin, straight);
  std::memcpy(static_cast<char*>(to) + straight, pipe.bytes, bytes - straight);
}

}  // namespace

bool Mover::send_some(Transfer& transfer) {
  Pipe& pipe = shared_.pipe(shared_.rank(), transfer.peer);
  uint64_t written = pipe.written.load(std::memory_order_relaxed);
  size_t room = pipe_bytes - (written - pipe.read.load(std::memory_order_acquire));
  if (!transfer.begun) {
    if (room < sizeof(First)) return false;
    const First first{transfer.bytes, transfer.kind, first_magic};
    put(pipe, written, &first, sizeof first);
    written += sizeof first;
    room -= sizeof first;
    transfer.begun = true;
  } else if (room == 0) {
    return false;
  }
  const size_t now = std::min({room, transfer.bytes - transfer.done, step_bytes});
  put(pipe, written, transfer.at + transfer.done, now);
  transfer.done += now;
  pipe.written.store(written + now, std::memory_order_release);
  shared_.ring(transfer.peer);
  return true;
}

bool Mover::receive_some(Transfer& transfer) {
  Pipe& pipe = shared_.pipe(transfer.peer, shared_.rank());
  uint64_t read = pipe.read.load(std::memory_order_relaxed);
  size_t there = pipe.written.load(std::memory_order_acquire) - read;
  if (!transfer.begun) {
    if (there < sizeof(First)) return false;
    First first{};
    take(pipe, read, &first, sizeof first);
    if (first.magic != first_magic || first.kind != transfer.kind ||
        first.bytes != transfer.bytes)
      stay(ncclInvalidUsage, "rank " + std::to_string(transfer.peer) + " sends " +
                                 std::to_string(first.bytes) + " bytes for work " +
                                 std::to_string(first.kind) + ", rank " +
                                 std::to_string(shared_.rank()) + " wants " +
                                 std::to_string(transfer.bytes) + " for work " +
                                 std::to_string(transfer.kind));
    read += sizeof first;
    there -= sizeof first;
    transfer.begun = true;
  } else if (there == 0) {
    return false;
  }
  const size_t now = std::min({there, transfer.bytes - transfer.done, step_bytes});
  take(pipe, read, transfer.at + transfer.done, now);
  transfer.done += now;
  pipe.read.store(read + now, std::memory_order_release);
  shared_.ring(transfer.peer);
  return true;
}

bool Mover::step(Transfer& transfer) {
  return transfer.sends ? send_some(transfer) : receive_some(transfer);
}

void Mover::move(std::vector<Transfer>& transfers) {
  const auto ranks = static_cast<size_t>(shared_.ranks());
  std::vector<char> taken(2 * ranks);  // by an earlier transfer of that direction and peer
  for (;;) {
    const uint32_t seen = shared_.bell();
    bool moved = false, left = false;
    std::fill(taken.begin(), taken.end(), 0);
    for (Transfer& each : transfers) {
      if (each.begun && each.done == each.bytes) continue;
      char& in_turn = taken[static_cast<size_t>(each.peer) + (each.sends ? ranks : 0)];
      if (in_turn == 0) moved |= step(each);
      if (each.begun && each.done == each.bytes) continue;
      in_turn = 1;
      left = true;
    }
    if (!left) return;
    if (signals_.abort.load(std::memory_order_acquire)) throw Aborted{};
    if (!moved) wait(seen);
  }
}

void Mover::wait(uint32_t seen) {
  shared_.wait_for_bell(seen);
  if (shared_.bell() != seen) return;
  std::string why;
  if (shared_.lost_rank(&why) < 0) return;
  // Its last bytes may have arrived: goes round once more before giving up.
  if (signals_.error.load() != ncclSuccess) stay(ncclRemoteError, std::move(why));
  signals_.note(ncclRemoteError, std::move(why));
}

void Mover::stay(ncclResult_t result, std::string why) {
  signals_.note(result, std::move(why));
  for (;;) {
    const uint32_t seen = shared_.bell();
    if (signals_.abort.load(std::memory_order_acquire)) throw Aborted{};
    shared_.wait_for_bell(seen);
  }
}

}  // namespace firn::nccl
