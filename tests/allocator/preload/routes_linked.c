/* A program, and a library, that are linked with the driver. */
#include "routes.h"

int cuInit(unsigned flags);
int cuDeviceGet(int* device, int ordinal);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuCtxSetCurrent(void* context);
int cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes);

__attribute__((visibility("default"))) int answers(void) {
  return memory_is_firns(cuInit, cuDeviceGet, cuDevicePrimaryCtxRetain, cuCtxSetCurrent,
                         cuMemGetInfo_v2);
}

int main(void) { return answers(); }
