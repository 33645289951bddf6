/* In front of other_driver.c: what it has is reached with its arguments as they were, on the first
 * call and on later ones; what it lacks is answered as missing; what is newer than Firn passes and
 * is in the report (FIRN_STATS, looked at by other_driver_test.sh). */
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define CHECK(what) \
  do { \
    if (!(what)) { \
      fprintf(stderr, "other_driver_test.c:%d: %s\n", __LINE__, #what); \
      return 1; \
    } \
  } while (0)

typedef int (*Clamp)(void* reference, float least, float most);
typedef int (*Occupancy)(int*, int*, void*, void*, size_t, int, unsigned);
typedef int (*Ask)(const char* name, void** entry, int version, uint64_t flags, int* status);

int main(void) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(driver);
  Clamp clamp = (Clamp)dlsym(driver, "cuTexRefSetMipmapLevelClamp");
  Occupancy occupancy = (Occupancy)dlsym(driver, "cuOccupancyMaxPotentialBlockSizeWithFlags");
  int (*synchronize)(void) = (int (*)(void))dlsym(driver, "cuCtxSynchronize");
  Ask ask = (Ask)dlsym(driver, "cuGetProcAddress_v2");
  CHECK(clamp && occupancy && synchronize && ask && !dlsym(driver, "cuBrandNew"));
  errno = 77;
  for (int i = 0; i < 3; ++i) {
    CHECK(clamp((void*)0x1234, 1.5f, -2.25f) == 0);
    CHECK(occupancy((int*)1, (int*)2, (void*)3, (void*)4, 5, 6, 7) == 0);
    CHECK(synchronize() == 801);
  }
  CHECK(errno == 77);
  void* entry = NULL;
  int status = -1;
  CHECK(ask("cuBrandNew", &entry, 14020, 0, &status) == 0 && status == 0);
  CHECK(((int (*)(void))entry)() == 4242);
  CHECK(ask("cuNobodyHasIt", &entry, 14020, 0, &status) == 0 && status == 1 && !entry);
  return 0;
}
