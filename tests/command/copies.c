/* Blocks of device memory, each written from the host and read back: copies COUNT MEBIBYTES. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call) \
  do { \
    const int result = (call); \
    if (result != 0) { \
      fprintf(stderr, "%s: %d\n", #call, result); \
      return 1; \
    } \
  } while (0)

int main(int count, char** words) {
  char* end = "";
  const long blocks = count == 3 ? strtol(words[1], &end, 10) : -1;
  if (blocks < 0 || *end) {
    fprintf(stderr, "copies COUNT MEBIBYTES\n");
    return 9;
  }
  const size_t bytes = strtoul(words[2], NULL, 10) << 20;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
  int (*get)(int*, int) = (int (*)(int*, int))dlsym(driver, "cuDeviceGet");
  int (*retain)(void**, int) = (int (*)(void**, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
  int (*set)(void*) = (int (*)(void*))dlsym(driver, "cuCtxSetCurrent");
  int (*alloc)(uint64_t*, size_t) = (int (*)(uint64_t*, size_t))dlsym(driver, "cuMemAlloc_v2");
  int (*give)(uint64_t) = (int (*)(uint64_t))dlsym(driver, "cuMemFree_v2");
  int (*to)(uint64_t, const void*, size_t) =
      (int (*)(uint64_t, const void*, size_t))dlsym(driver, "cuMemcpyHtoD_v2");
  int (*from)(void*, uint64_t, size_t) =
      (int (*)(void*, uint64_t, size_t))dlsym(driver, "cuMemcpyDtoH_v2");
  int device = 0;
  void* context = NULL;
  CHECK(init(0));
  CHECK(get(&device, 0));
  CHECK(retain(&context, device));
  CHECK(set(context));
  uint64_t* addresses = calloc((size_t)blocks + 1, sizeof *addresses);
  unsigned char* host = malloc(bytes);
  unsigned char* back = malloc(bytes);
  for (long i = 0; i < blocks; ++i) {
    CHECK(alloc(&addresses[i], bytes));
    memset(host, (int)(i * 7 + 1), bytes);
    CHECK(to(addresses[i], host, bytes));
  }
  for (long i = 0; i < blocks; ++i) {
    memset(host, (int)(i * 7 + 1), bytes);
    CHECK(from(back, addresses[i], bytes));
    if (memcmp(host, back, bytes) != 0) {
      fprintf(stderr, "block %ld is not what was written\n", i);
      return 3;
    }
    CHECK(give(addresses[i]));
  }
  printf("%zu MiB copied and compared\n", (size_t)blocks * (bytes >> 20));
  return 0;
}
