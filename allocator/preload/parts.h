/* What the stand-in's own files say to each other. */
#pragma once

#include "allocator/preload/stand_in.h"

/* The targets of the stubs; null: not asked for yet. Its address is also how this library is told
 * from others of its soname. */
extern void* firn_targets[];

extern struct FirnRoutes firn_routes;

/* The dlopen after this library's own, and the C library's dlsym, whoever else hooks it. Found by
 * firn_find_next(), which every way in goes through. */
extern void* (*firn_next_dlopen)(const char* name, int flags);
extern void* (*firn_next_dlsym)(void* handle, const char* name);
void firn_find_next(void);

/* What is known of the real driver: null where nobody has asked for it; without a handle where there
 * is none. FIRN_OPEN looks for it, FIRN_OPEN_AGAIN also where there was none. */
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
