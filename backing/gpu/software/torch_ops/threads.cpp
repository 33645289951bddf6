// How many threads an operator uses; see threads.h.
#include "backing/gpu/software/torch_ops/threads.h"

#include <ATen/Parallel.h>

#include <atomic>

namespace firn::torch_ops {
namespace {

std::atomic<int> followed_count{0};  // 0: none is followed yet
thread_local bool followed = false;

}  // namespace

void follow_this_thread() {
  followed = true;
  followed_count = at::get_num_threads();
}

void use_followed_threads() {
  const int present = at::get_num_threads();
  if (followed) {
    followed_count.store(present, std::memory_order_relaxed);
    return;
  }
  const int wanted = followed_count.load(std::memory_order_relaxed);
  if (wanted != 0 && present != wanted) at::set_num_threads(wanted);
}

}  // namespace firn::torch_ops
