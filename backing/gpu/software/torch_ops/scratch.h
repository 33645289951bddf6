// CPU memory for operators' results on their way to device memory.
//
// Owns a cache of blocks that have been used: fresh memory from the kernel costs a page fault per
// 4 KiB, more than most operators themselves. Only allocations made within a Scratch scope come
// from it. Locks: its own.
#pragma once

namespace firn::torch_ops {

/// Puts the cache in front of torch's CPU allocator, for threads within a Scratch scope.
void install_scratch();

class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

 private:
  bool before_;
};

}  // namespace firn::torch_ops
