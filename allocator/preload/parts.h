/* Shared by the stand-in's own files. */
#pragma once

#include "allocator/preload/stand_in.h"

/* The targets of the stubs; null: not asked for yet. Its address also distinguishes this library
 * from others of its soname. */
extern void* firn_targets[];

extern struct FirnRoutes firn_routes;

/* The dlopen after this library's own, and the C library's dlsym, whatever else hooks it. Found by
 * firn_find_next(), which every way in goes through. */
extern void* (*firn_next_dlopen)(const char* name, int flags);
extern void* (*firn_next_dlsym)(void* handle, const char* name);
void firn_find_next(void);

/* The real driver: null until it is asked for; without a handle where there is none. FIRN_OPEN
 * looks for it, FIRN_OPEN_AGAIN also after none was found. */
enum FirnOpen { FIRN_KNOWN, FIRN_OPEN, FIRN_OPEN_AGAIN };
struct FirnDriver {
  void* handle;
  char path[4096];
};
const struct FirnDriver* firn_real_driver(enum FirnOpen open);
/* Whether the driver has been asked for at all in this process. */
int firn_asked(void);

/* The name by which the loader knows this library. */
const char* firn_own_name(void);
