// PyTorch in the same process. Its pools are too coarse to move: with Firn's plugin it has an
// allocator of Firn's, without it it is made to ask for each block by itself.
#pragma once

namespace firn::preload {

/// Called when somebody begins with the driver, before PyTorch's first allocation.
void look_for_pytorch();
/// At the first allocation that Firn serves: one line on stderr where PyTorch was told something.
void say_what_pytorch_was_told();

}  // namespace firn::preload
