/* Blocks of device memory by the driver's own entries, for the library in front of it to spill:
 * keeper COUNT MEBIBYTES STATUS. It writes each, says "ready", and waits for a line; then it reads
 * each, says how many came right, were refused or were wrong, and ends with STATUS whatever
 * happened (2 where it cannot begin). */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void* need(void* driver, const char* name) {
  void* found = dlsym(driver, name);
  if (!found) exit(2);
  return found;
}

int main(int count, char** words) {
  if (count != 4) return 2;
  const int blocks = atoi(words[1]);
  const size_t bytes = (size_t)atoi(words[2]) << 20;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) return 2;
  int (*init)(unsigned) = (int (*)(unsigned))need(driver, "cuInit");
  int (*retain)(void**, int) = (int (*)(void**, int))need(driver, "cuDevicePrimaryCtxRetain");
  int (*set)(void*) = (int (*)(void*))need(driver, "cuCtxSetCurrent");
  int (*alloc)(uint64_t*, size_t) = (int (*)(uint64_t*, size_t))need(driver, "cuMemAlloc_v2");
  int (*to)(uint64_t, const void*, size_t) =
      (int (*)(uint64_t, const void*, size_t))need(driver, "cuMemcpyHtoD_v2");
  int (*from)(void*, uint64_t, size_t) =
      (int (*)(void*, uint64_t, size_t))need(driver, "cuMemcpyDtoH_v2");
  void* context = NULL;
  if (init(0) || retain(&context, 0) || set(context)) return 2;
  uint64_t* addresses = calloc((size_t)blocks, sizeof *addresses);
  unsigned char *host = malloc(bytes), *back = malloc(bytes);
  for (int i = 0; i < blocks; ++i) {
    memset(host, i + 1, bytes);
    if (alloc(&addresses[i], bytes) || to(addresses[i], host, bytes)) return 2;
  }
  printf("ready\n");
  fflush(stdout);
  (void)getchar();
  int right = 0, refused = 0, wrong = 0;
  for (int i = 0; i < blocks; ++i) {
    memset(host, i + 1, bytes);
    if (from(back, addresses[i], bytes))
      ++refused;
    else if (memcmp(host, back, bytes) == 0)
      ++right;
    else
      ++wrong;
  }
  printf("right=%d refused=%d wrong=%d\n", right, refused, wrong);
  return atoi(words[3]);
}
