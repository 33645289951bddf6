/* real_driver.c with a door to its reader of /proc/self/maps, which reads what the fuzzer says. */
#define _GNU_SOURCE
#include <stdio.h>

FILE* fuzz_fopen(const char* path, const char* mode);
#define fopen fuzz_fopen
#include "allocator/preload/real_driver.c"

int fuzz_mapped_file(const void* address, char* path, size_t size);
int fuzz_mapped_file(const void* address, char* path, size_t size) {
  return mapped_file(address, path, size);
}
