/* Redirects each dlopen of the driver, by whatever name. Only the name is changed: the call itself
 * goes on from its caller (stubs.S). Owns nothing, takes no lock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "allocator/preload/parts.h"
#include "allocator/preload/real_driver.h"

/* A path that never exists, in words that a program may look for in dlerror(). */
static const char nowhere[] = "/libcuda.so.1";

static void count(uint64_t* counter) { __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED); }

/* Is any object of the process linked with the driver? */
static int needed(void) {
  Dl_info info;
  struct link_map* map = NULL;
  if (!dladdr1((void*)firn_targets, &info, (void**)&map, RTLD_DL_LINKMAP) || !map) return 0;
  while (map->l_prev) map = map->l_prev;
  for (; map; map = map->l_next) {
    const char* strings = NULL;
    for (const ElfW(Dyn)* entry = map->l_ld; entry && entry->d_tag != DT_NULL; ++entry)
      if (entry->d_tag == DT_STRTAB) strings = (const char*)entry->d_un.d_ptr;
    /* (The kernel's own object is not relocated: its addresses are small.) */
    if (!strings || (uintptr_t)strings < map->l_addr) continue;
    for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry)
      if (entry->d_tag == DT_NEEDED && strcmp(strings + entry->d_un.d_val, "libcuda.so.1") == 0)
        return 1;
  }
  return 0;
}

/* Has the user said which driver to use? */
static int chosen(void) {
  const char* named = secure_getenv("FIRN_DRIVER");
  const char* device = secure_getenv("FIRN_DEVICE");
  return (named && named[0] == '/') || (device && strcmp(device, "software") == 0);
}

static const char* lead_path(const char* path, int flags) {
  if (access(path, R_OK) != 0 || !firn_is_driver(path)) return path;
  const struct FirnDriver* opened = firn_real_driver(FIRN_KNOWN);
  const int there = opened && opened->handle;
  if ((flags & RTLD_NOLOAD) && !there) return path;
  if (!there && !chosen()) firn_prefer_driver(path);
  if (!there) opened = firn_real_driver(FIRN_OPEN_AGAIN);
  if (!opened || !opened->handle) return path;
  if (!chosen() && !firn_same_file(path, opened->path)) {
    count(&firn_routes.other_drivers);
    char* kept = strdup(path);
    __atomic_store_n(&firn_routes.other_driver, kept, __ATOMIC_RELAXED);
    return path;
  }
  count(&firn_routes.paths);
  return firn_own_name();
}

static const char* lead(const char* name, int flags) {
  firn_find_next();
  if (strchr(name, '/')) return lead_path(name, flags);
  const int unversioned = strcmp(name, "libcuda.so") == 0;
  if (!unversioned && strcmp(name, "libcuda.so.1") != 0) return name;
  if ((flags & RTLD_NOLOAD) && !firn_asked() && !needed()) return nowhere;
  const struct FirnDriver* opened = firn_real_driver(FIRN_OPEN);
  if (!opened || !opened->handle)
    return unversioned ? name : opened && opened->path[0] ? opened->path : nowhere;
  if (unversioned) count(&firn_routes.unversioned);
  return firn_own_name();
}

/* Called by the stub of dlopen: returns the name to go on with. */
const char* firn_dlopen_name(const char* name, int flags) {
  const int error = errno;
  if (!__atomic_load_n(&firn_next_dlopen, __ATOMIC_ACQUIRE)) firn_find_next();
  const char* slash = name ? strrchr(name, '/') : NULL;
  const char* base = slash ? slash + 1 : name;
  if (base && strncmp(base, "libcuda.so", 10) == 0 && firn_is_driver_name(base) &&
      !getauxval(AT_SECURE))
    name = lead(name, flags);
  errno = error;
  return name;
}
