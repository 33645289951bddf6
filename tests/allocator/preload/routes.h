/* The driver's entries that these programs use, and the one question they ask. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int (*CuInit)(unsigned flags);
typedef int (*CuDeviceGet)(int* device, int ordinal);
typedef int (*CuRetain)(void** context, int device);
typedef int (*CuSetCurrent)(void* context);
typedef int (*CuMemGetInfo)(size_t* free_bytes, size_t* total_bytes);
typedef int (*CuGetProcAddress)(const char* name, void** entry, int version, uint64_t flags);
typedef int (*CuGetProcAddress2)(const char* name, void** entry, int version, uint64_t flags,
                                 int* status);

/* 0: as much memory is free as Firn's budget allows, of a device that has more; 1: all of it. */
static inline int memory_is_firns(CuInit init, CuDeviceGet device_get, CuRetain retain,
                                  CuSetCurrent set, CuMemGetInfo info) {
  int device = -1;
  void* context = NULL;
  size_t free_bytes = 0, total_bytes = 0;
  if (init(0) || device_get(&device, 0) || retain(&context, device) || set(context) ||
      info(&free_bytes, &total_bytes)) {
    fprintf(stderr, "a call of the driver failed\n");
    return 2;
  }
  return free_bytes > (size_t)256 << 20;
}
