/* A library that opens the driver by itself, and one that only its own RUNPATH leads to. */
#include <dlfcn.h>

#include "routes.h"

__attribute__((visibility("default"))) int answers(void) {
  void* handle = dlopen("libcuda.so.1", RTLD_NOW);
  if (!handle) return 2;
  return memory_is_firns(
      (CuInit)dlsym(handle, "cuInit"), (CuDeviceGet)dlsym(handle, "cuDeviceGet"),
      (CuRetain)dlsym(handle, "cuDevicePrimaryCtxRetain"),
      (CuSetCurrent)dlsym(handle, "cuCtxSetCurrent"),
      (CuMemGetInfo)dlsym(handle, "cuMemGetInfo_v2"));
}

__attribute__((visibility("default"))) int finds_sibling(void) {
  void* sibling = dlopen("libroutes_linked.so", RTLD_LAZY);
  if (!sibling) fprintf(stderr, "%s\n", dlerror());
  return sibling == NULL;
}
