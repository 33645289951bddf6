#include "tests/real_faults/blocks.h"

#include <algorithm>
#include <cstdio>

namespace firn::real_faults {

void Blocks::failed(const char* what, int status, Outcome& outcome, const char* words) {
  if (outcome.errors++ > 0) return;
  outcome.status = status;
  std::snprintf(outcome.first, sizeof(outcome.first), "%s: %s", what, words);
}

bool Blocks::touch(Block& block, int access, Outcome& outcome) {
  const int status = firn_touch(&block.address, &access, 1, nullptr);
  if (status == FIRN_OK) return true;
  failed("firn_touch", status, outcome);
  // Its copy may be kept: a later use tries again.
  if (status == FIRN_LOST) ++outcome.lost;
  return false;
}

bool Blocks::own(const char* what, CUresult status, Outcome& outcome) {
  if (status == CUDA_SUCCESS) return true;
  if (status != CUDA_ERROR_OUT_OF_MEMORY)  // (that, a driver without memory may answer)
    give_up((std::string(what) + ": CUDA error " + std::to_string(status)).c_str());
  failed(what, FIRN_OUT_OF_MEMORY, outcome, "the driver is out of memory");
  return false;
}

bool Blocks::write(Block& block, Outcome& outcome) {
  if (!touch(block, FIRN_WRITE, outcome)) return false;
  const bool runs =
      own("launch a kernel", gpu_.fill(block.address, bytes_, next_seed_), outcome);
  if (runs) block.seed = next_seed_++;  // (else it has what it had)
  firn_launched();
  return runs;
}

bool Blocks::read(Block& block, Outcome& outcome) {
  if (!touch(block, FIRN_READ, outcome)) return false;
  const bool runs =
      own("launch a kernel", gpu_.compare(block.address, bytes_, block.seed), outcome);
  firn_launched();
  return runs;
}

void Blocks::make(size_t count, Outcome& outcome) {
  for (size_t i = 0; i < count; ++i, ++outcome.steps) {
    Block block;
    if (const int status = firn_malloc(&block.address, bytes_, 0, nullptr); status != FIRN_OK)
      return failed("firn_malloc", status, outcome);
    if (!write(block, outcome)) {
      if (const int status = firn_free(block.address, nullptr); status != FIRN_OK)
        failed("firn_free", status, outcome);
      return;
    }
    blocks_.push_back(block);
  }
}

void Blocks::drop(size_t count, Outcome& outcome) {
  for (; count > 0 && !blocks_.empty(); --count, ++outcome.steps) {
    if (const int status = firn_free(blocks_.back().address, nullptr); status != FIRN_OK)
      failed("firn_free", status, outcome);
    blocks_.pop_back();
  }
}

void Blocks::step(Outcome& outcome) {
  if (blocks_.empty()) return;
  Block& block = blocks_[random_() % blocks_.size()];
  (void)(random_() % 5 < 2 ? write(block, outcome) : read(block, outcome));
  ++outcome.steps;
}

void Blocks::verify(Outcome& outcome) {
  for (Block& block : blocks_) {
    (void)read(block, outcome);
    ++outcome.steps;
  }
  (void)own("wait for the GPU", gpu_.synchronize(), outcome);
}

void Blocks::stir() {
  Outcome ignored;
  for (int i = 0; i < 2; ++i) step(ignored);
  for (size_t i = 0; i < std::min<size_t>(8, blocks_.size()); ++i)
    (void)firn_prefetch(blocks_[random_() % blocks_.size()].address, bytes_, nullptr);
}

}  // namespace firn::real_faults
