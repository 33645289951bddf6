/* Where the real driver is. Owns nothing, takes no lock. */
#pragma once

#include <stddef.h>

/* The path that the loader would find for libcuda.so.1 if the stand-in were not there: FIRN_DRIVER
 * (a path); a driver that is in the process already; the software GPU beside the stand-in under
 * FIRN_DEVICE=software; then the program's RPATH, LD_LIBRARY_PATH, RUNPATH, ld.so.cache and the
 * system's folders. 0: there is none. `own_folder`: the stand-in's, with the final slash. */
int firn_find_real_driver(const char* own_folder, char* path, size_t size);

/* In the bytes of an ld.so.cache: the first library of that name that `usable` takes, null: none. */
const char* firn_find_in_cache(const char* bytes, size_t size, const char* name,
                               int (*usable)(const char* path));
