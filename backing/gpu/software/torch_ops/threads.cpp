// How many threads an operator uses; see threads.h.
#include "backing/gpu/software/torch_ops/threads.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <atomic>

namespace firn::torch_ops {
namespace {

std::atomic<int> followed_count{0};  // 0: not followed yet
thread_local const bool followed = ::gettid() == ::getpid();

}  // namespace

void follow_the_main_thread() { followed_count = at::get_num_threads(); }

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
