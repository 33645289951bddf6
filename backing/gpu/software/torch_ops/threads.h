// How many threads an operator uses. Sums are split by it, so it decides bits: every thread that
// runs operators must use as many as the program's main thread does.
//
// torch gives a new thread whatever count was set last by any thread, and DataLoader's thread that
// pins memory sets 1: without this, autograd's thread of a device would have 1 or not, by chance.
// Owns the count; needs no lock.
#pragma once

namespace firn::torch_ops {

/// From here on all follow the main thread's count, and until it runs an operator the caller's: a
/// C++ program may begin with the GPU in another thread.
void follow_the_main_thread();

/// Gives the calling thread the main thread's count (on that thread: takes note of what
/// torch.set_num_threads made of it).
void use_followed_threads();

}  // namespace firn::torch_ops
