// The blocks of a job: what was written to each is known, whatever fails meanwhile, so that a byte
// is right or wrong, and nothing between. Owns the blocks. Locks: none; one thread.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "firn/firn.h"
#include "tests/real_faults/gpu.h"

namespace firn::real_faults {

/// How a command went.
struct Outcome {
  unsigned steps = 0, errors = 0, lost = 0;
  int status = 0;         // of the first error
  char first[1024] = "";  // its words
};

class Blocks {
 public:
  Blocks(Gpu& gpu, size_t bytes) : gpu_(gpu), bytes_(bytes) {}

  size_t count() const { return blocks_.size(); }
  /// `count` more, each written; ends with the first that cannot be had.
  void make(size_t count, Outcome& outcome);
  /// The newest `count` are freed.
  void drop(size_t count, Outcome& outcome);
  /// Reads any block, or writes it anew.
  void step(Outcome& outcome);
  /// Reads all of them.
  void verify(Outcome& outcome);
  /// Has some come back, without waiting for them: I/O is in flight.
  void stir();

 private:
  struct Block {
    void* address = nullptr;
    uint64_t seed = 0;
  };
  bool touch(Block& block, int access, Outcome& outcome);
  bool write(Block& block, Outcome& outcome);
  bool read(Block& block, Outcome& outcome);
  /// Of the job's own call of the driver, which Firn has no part in.
  bool own(const char* what, CUresult status, Outcome& outcome);
  void failed(const char* what, int status, Outcome& outcome, const char* words = firn_error());

  Gpu& gpu_;
  const size_t bytes_;
  std::vector<Block> blocks_;
  std::mt19937_64 random_{std::random_device{}()};
  uint64_t next_seed_ = 1;
};

}  // namespace firn::real_faults
