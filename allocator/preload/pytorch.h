// PyTorch in the same process. Its pools are too coarse to move: with Firn's plugin it has an
// allocator of Firn's, without it it is made to ask for each block by itself. On the software GPU
// its operators need kernels that run on the processor: Firn's package loads them into a Python
// program, and this into any other.
#pragma once

namespace firn::preload {

/// Called when somebody begins with the driver, before PyTorch's first allocation. Words on stderr
/// where the software GPU's operators are wanted and cannot be had.
void look_for_pytorch();
/// At the first allocation that Firn serves: one line on stderr where PyTorch was told something.
void say_what_pytorch_was_told();

}  // namespace firn::preload
