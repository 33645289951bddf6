/* Where the real driver is. Owns the path that is preferred; takes no lock. */
#pragma once

#include <stddef.h>

/* The path that the loader would find for libcuda.so.1 if the stand-in were not there: FIRN_DRIVER
 * (a path); a driver that is in the process already; the software GPU beside the stand-in under
 * FIRN_DEVICE=software; the path that the program itself asked for; then the program's RPATH,
 * LD_LIBRARY_PATH, RUNPATH, ld.so.cache and the system's folders. 0: there is none, and `path` is
 * empty. `own_folder`: the stand-in's, with the final slash. */
int firn_find_real_driver(const char* own_folder, char* path, size_t size);
void firn_prefer_driver(const char* path);

/* The stand-in's own file, absolute; 0: unknown. And its folder with the final slash; returns the
 * length. */
int firn_own_file(char* path, size_t size);
size_t firn_own_folder(char* folder, size_t size);

/* "libcuda.so", "libcuda.so.1", "libcuda.so.580.65.06". */
int firn_is_driver_name(const char* name);
/* A library for this machine that is not the stand-in itself. */
int firn_is_driver(const char* path);
int firn_same_file(const char* a, const char* b);

/* In the bytes of an ld.so.cache: the first library of that name that `takes` takes; null: none. */
const char* firn_find_in_cache(const char* bytes, size_t size, const char* name,
                               int (*takes)(const char* path));
