// firn-try-host DRIVER NODE: asks the driver for a frame of that node's host memory and writes 'y'
// or 'n'. A process of its own, since some drivers end the one that asks (host_trial.h).
#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>

#include "firn/cuda_abi.h"

int main(int count, char** arguments) {
  const rlimit no_core{0, 0};
  (void)::setrlimit(RLIMIT_CORE, &no_core);
  void* driver = count == 3 ? ::dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!driver) return 2;
  const auto init = reinterpret_cast<CUresult (*)(unsigned)>(::dlsym(driver, "cuInit"));
  const auto create = reinterpret_cast<CUresult (*)(CUmemGenericAllocationHandle*, size_t,
                                                    const CUmemAllocationProp*, unsigned long long)>(
      ::dlsym(driver, "cuMemCreate"));
  CUmemAllocationProp what{};
  what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, std::atoi(arguments[2])};
  CUmemGenericAllocationHandle handle = 0;
  constexpr size_t bytes = 2u << 20;
  const bool made = init && create && init(0) == CUDA_SUCCESS &&
                    create(&handle, bytes, &what, 0) == CUDA_SUCCESS;
  (void)!::write(STDOUT_FILENO, made ? "y" : "n", 1);
  ::_exit(made ? 0 : 1);  // whatever the driver does at exit
}
