// PyTorch in the same process. Its pools are too coarse to move. Firn's plugin gives it an
// allocator of Firn's; without the plugin it is made to ask for each block by itself. On the
// software GPU its operators need kernels that run on the processor: Firn's package loads them into
// a Python program, and this file into any other.
#pragma once

namespace firn::preload {

/// Called at a program's first calls to the driver, before PyTorch's first allocation. Reports on
/// stderr that the software GPU's operators are wanted but missing.
void look_for_pytorch();
/// At the first allocation that Firn serves: one line on stderr if PyTorch's settings were changed.
void say_what_pytorch_was_told();

}  // namespace firn::preload
