// Locks taken and memory allocated by this thread in a thousand launches with ten parameters, all
// blocks resident: printed, to be the same with and without Firn. (The grid is empty, so the driver
// answers at once.)
#include <dlfcn.h>
#include <pthread.h>

#include <new>

#include "tests/gpu/program.h"

namespace {
thread_local unsigned long locks = 0, allocations = 0;
}

extern "C" __attribute__((visibility("default"))) int pthread_mutex_lock(pthread_mutex_t* mutex) {
  using Lock = int (*)(pthread_mutex_t*);
  static Lock real = reinterpret_cast<Lock>(::dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  ++locks;
  return real(mutex);
}
void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  const CUfunction kernel = gpu.kernel("ten");
  std::vector<Block> all;
  for (int i = 0; i < 10; ++i) all.push_back(make(1 << 20));
  std::vector<void*> arguments;
  for (Block& block : all) arguments.push_back(&block.address);
  const auto launch_all = [&](int times) {
    for (int i = 0; i < times; ++i)
      EXPECT(cuLaunchKernel(kernel, 0, 1, 1, 1, 1, 1, 0, nullptr, arguments.data(), nullptr) ==
             CUDA_ERROR_INVALID_VALUE);
  };
  launch_all(10);
  const unsigned long locks_before = locks, allocations_before = allocations;
  launch_all(1000);
  const unsigned long locked = locks - locks_before, allocated = allocations - allocations_before;
  std::printf("%lu locks, %lu allocations\n", locked, allocated);
  EXPECT(locks > 0 && allocations > 0);  // they are counted
  for (Block& block : all) end(block);
  return finish();
}
