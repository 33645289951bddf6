/* Blocks of device memory, each written from the host and read back: copies COUNT MEBIBYTES. With a
 * module's path, and how often to launch it, its kernel add_one is looked up and launched on the
 * first block beforehand: copies COUNT MEBIBYTES MODULE LAUNCHES. */
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

typedef int (*Launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                      void*, void**, void**);

int main(int count, char** words) {
  char* end = "";
  const long blocks = count == 3 || count == 5 ? strtol(words[1], &end, 10) : -1;
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
  if (count == 5) {
    int (*load)(void**, const char*) = (int (*)(void**, const char*))dlsym(driver, "cuModuleLoad");
    int (*find)(void**, void*, const char*) =
        (int (*)(void**, void*, const char*))dlsym(driver, "cuModuleGetFunction");
    Launch launch = (Launch)dlsym(driver, "cuLaunchKernel");
    int (*synchronize)(void) = (int (*)(void))dlsym(driver, "cuCtxSynchronize");
    void *module = NULL, *function = NULL;
    void* parameters[] = {&addresses[0]};
    CHECK(load(&module, words[3]));
    CHECK(find(&function, module, "add_one"));
    for (long i = 0; i < strtol(words[4], NULL, 10); ++i)
      CHECK(launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    CHECK(synchronize());
    CHECK(to(addresses[0], memset(host, 1, bytes), bytes));
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
