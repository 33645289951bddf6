// firn_verify: a piece's sum is taken when it has arrived in host memory, and compared when it
// leaves for the device or, by the store, for the disk. Sums are taken without the engine's lock
// (sums.h), while pumping. With `all`, bytes that came to the device are copied out and compared,
// too.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "allocator/movement/movement.h"

namespace firn {

/// The piece's copy in host memory is to be summed: for the first time, or to be compared.
void Movement::sum_later(const PieceRef& ref, bool arrived) {
  if (sums_.add(ref, arrived)) owner_.work_begins();
}

bool Movement::carry_out_sums(Lock& lock) {
  return sums_.take(lock, [this](const PieceRef& ref, bool arrived, const Sum& sum) FIRN_HELD {
    summed(ref, arrived, sum);
  });
}

void Movement::summed(const PieceRef& ref, bool arrived, const Sum& sum) {
  Block& block = *ref.block;
  Piece& piece = piece_of(ref);
  if (arrived) {
    piece.sum = sum;
    piece.summed = true;
    came_out(ref);
    return;
  }
  if (sum == piece.sum) {
    piece.checked = true;
    return;
  }
  piece.doubtful = piece.writing;  // the store may have taken it as it was
  if (piece.doubtful) return;
  const Error wrong = say_host_wrong(block, piece, sum);
  if (piece.slot_valid) {  // the store has it as it was
    host_copies_.drop(piece);
    return;
  }
  if (block.state() != State::faulting && !block.at_host) return;  // its next use compares again
  block.fault_error = wrong;
  if (block.at_host) return lose(block);
  block.failing = Block::Failing::lost;
  settle_failed(block);
}

/// Did the store write what arrived in host memory? Where it did not, the copy there has changed.
bool Movement::written_as_arrived(Block& block, Piece& piece, const StoreCompletion& completion) {
  if (!options_.sums || !piece.summed || !completion.sum || *completion.sum == piece.sum)
    return true;
  (void)say_host_wrong(block, piece, *completion.sum);
  store_->discard(piece.slot);
  piece.slot = {};
  // From the device it is copied again; else the next use compares, and reports the loss.
  if (piece.on_device) host_copies_.drop(piece);
  return false;
}

Error Movement::say_host_wrong(const Block& block, const Piece& piece, const Sum& sum) {
  ++failed_.host_corrupt;
  Error error = make_error(
      Code::corrupt, 0,
      fmt::format("host memory has changed within {} bytes at offset {} of block {:#x}: their "
                  "checksum was {} and is now {}",
                  piece.bytes, piece.offset, block.address, piece.sum.words(), sum.words()));
  say(error.text);
  return error;
}

/// With `all`: did the bytes arrive as they were? False: copies are not over, or the fault failed.
bool Movement::arrived_whole(Block& block) {
  if (!options_.verify || !options_.sums) return true;
  for (Use use : block.more_uses)
    if (use.stream() == transfers_.in() && !streams_.over(use)) {
      (void)streams_.close(use);
      return false;
    }
  for (Piece& piece : block.pieces) {
    if (!std::exchange(piece.unproven, false) || !piece.summed) continue;
    compared_.resize(std::max(compared_.size(), piece.bytes));
    CUresult result = transfers_.copy(block, piece, compared_.data(), false);
    if (result == CUDA_SUCCESS) result = driver_.stream_synchronize(transfers_.out_stream());
    if (result != CUDA_SUCCESS) {
      trouble("firn_verify could not check a block: " +
              health_.failed("cuMemcpyDtoHAsync", result).text);
      continue;
    }
    const Sum sum = sum_of(compared_.data(), piece.bytes);
    if (sum == piece.sum) continue;
    piece.on_device = false;
    ++failed_.device_corrupt;
    block.fault_error = make_error(
        Code::corrupt, 0,
        fmt::format("{} bytes at offset {} of block {:#x} arrived corrupted on the device: their "
                    "checksum was {} and is now {}",
                    piece.bytes, piece.offset, block.address, piece.sum.words(), sum.words()));
    say(block.fault_error.text);
    block.failing = Block::Failing::copies;
    settle_failed(block);
    return false;
  }
  return true;
}

}  // namespace firn
