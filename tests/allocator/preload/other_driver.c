/* A driver that is newer than Firn in one entry, older in most, and says what arguments it got. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DRIVER __attribute__((visibility("default")))

DRIVER int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }

/* Not in any list: only cuGetProcAddress knows it. */
static int brand_new(void) { return 4242; }

/* Floating-point arguments, and one on the stack. */
DRIVER int cuTexRefSetMipmapLevelClamp(void* reference, float least, float most) {
  return reference == (void*)0x1234 && least == 1.5f && most == -2.25f ? 0 : 1;
}
DRIVER int cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, void* function,
                                                     void* callback, size_t shared, int limit,
                                                     unsigned flags) {
  return grid == (int*)1 && block == (int*)2 && function == (void*)3 && callback == (void*)4 &&
                 shared == 5 && limit == 6 && flags == 7
             ? 0
             : 1;
}

DRIVER int cuGetProcAddress_v2(const char* name, void** entry, int version, uint64_t flags,
                               int* status) {
  (void)version, (void)flags;
  *entry = strcmp(name, "cuBrandNew") == 0 ? (void*)brand_new
           : strcmp(name, "cuInit") == 0   ? (void*)cuInit
                                           : NULL;
  if (status) *status = *entry == NULL;
  return 0;
}
