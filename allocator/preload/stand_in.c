/* Fills the stubs' table: opens the real driver when it is first asked for, the library behind at
 * the first driver call. Owns both handles, which stay open for the life of the process.
 *
 * Locks: none. The loader's lock is held by a thread that runs a library's constructor, and wanted
 * by every dlopen and dlsym here: with a lock of our own around those, two threads could wait for
 * each other. So threads that come at once do the same work and the first one's is kept. */
#define _GNU_SOURCE
#include "allocator/preload/stand_in.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "allocator/preload/parts.h"
#include "allocator/preload/real_driver.h"

#define EXPORTED __attribute__((visibility("default")))
#define IN_STATIC_BLOCK __attribute__((tls_model("initial-exec")))

static const char* const names[] = {
#define N(index, name) #name,
#include "names.inc"
#undef N
};

void* firn_targets[FIRN_NAMES];
struct FirnRoutes firn_routes;

static const struct FirnDriver* driver;  /* published once; handle null: there is none */
static const struct FirnBehind* behind;  /* published once, with `told` */
static struct FirnStandIn* told;
static int without_behind;               /* tried, and said why */
/* This thread is opening a library: its constructors may come back here. */
static _Thread_local int opening IN_STATIC_BLOCK;

/* The answers where there is no driver, and where it is older than the program. */
static int no_driver(void) { return 100; /* CUDA_ERROR_NO_DEVICE */ }
static int no_entry(void) { return 801; /* CUDA_ERROR_NOT_SUPPORTED */ }

static void* no_dlopen(const char* name, int flags) {
  (void)name, (void)flags;
  return NULL;
}
static void* no_dlsym(void* handle, const char* name) {
  (void)handle, (void)name;
  return NULL;
}

void* (*firn_next_dlopen)(const char* name, int flags);
void* (*firn_next_dlsym)(void* handle, const char* name);

/* Finds dlsym by its version, which hooks of it lack. */
void firn_find_next(void) {
  static const char* const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5", "GLIBC_2.27"};
  if (__atomic_load_n(&firn_next_dlopen, __ATOMIC_ACQUIRE)) return;
  void* (*find)(void*, const char*) = NULL;
  for (size_t i = 0; !find && i < sizeof versions / sizeof *versions; ++i)
    find = (void* (*)(void*, const char*))dlvsym(RTLD_NEXT, "dlsym", versions[i]);
  if (!find) find = no_dlsym;
  void* (*open)(const char*, int) = (void* (*)(const char*, int))find(RTLD_NEXT, "dlopen");
  __atomic_store_n(&firn_next_dlsym, find, __ATOMIC_RELEASE);
  __atomic_store_n(&firn_next_dlopen, open ? open : no_dlopen, __ATOMIC_RELEASE);
}

const char* firn_own_name(void) {
  Dl_info info;
  struct link_map* map = NULL;
  if (dladdr1((void*)firn_targets, &info, (void**)&map, RTLD_DL_LINKMAP) && map && map->l_name[0])
    return map->l_name;
  return "libcuda.so.1";
}

static void* real(const char* name) {
  const struct FirnDriver* opened = __atomic_load_n(&driver, __ATOMIC_ACQUIRE);
  return opened && opened->handle ? firn_next_dlsym(opened->handle, name) : NULL;
}

/* Says it once. */
static void complain(const char* text, const char* more) {
  static int said;
  if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED)) fprintf(stderr, "firn: %s%s\n", text, more);
}

const struct FirnDriver* firn_real_driver(enum FirnOpen open) {
  const struct FirnDriver* known = __atomic_load_n(&driver, __ATOMIC_ACQUIRE);
  if ((known && (known->handle || open != FIRN_OPEN_AGAIN)) || open == FIRN_KNOWN || opening)
    return known;
  struct FirnDriver* made = calloc(1, sizeof *made);
  char folder[4096];
  if (!made) return NULL;
  firn_own_folder(folder, sizeof folder);
  ++opening;
  if (firn_find_real_driver(folder, made->path, sizeof made->path)) {
    made->handle = firn_next_dlopen(made->path, RTLD_NOW | RTLD_LOCAL);
    if (!made->handle) {
      const char* why = dlerror();
      complain(why ? why : made->path, "");
    }
  }
  --opening;
  const struct FirnDriver* expected = known;  /* (what was known may be read still) */
  if (__atomic_compare_exchange_n(&driver, &expected, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return made;
  free(made);  /* its handle counts in the loader's, and stays */
  return expected;
}

/* Collects everything that the library behind needs to know, once. */
static const struct FirnStandIn* tell(const struct FirnDriver* opened) {
  struct FirnStandIn* made = calloc(1, sizeof *made);
  if (!made) return NULL;
  *made = (struct FirnStandIn){.version = FIRN_STAND_IN_VERSION,
                               .library = opened->path,
                               .handle = opened->handle,
                               .names = names,
                               .names_count = FIRN_NAMES,
                               .real = real,
                               .routes = &firn_routes};
  struct FirnStandIn* expected = NULL;
  if (__atomic_compare_exchange_n(&told, &expected, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return made;
  free(made);
  return expected;
}

static const struct FirnBehind* open_behind(const struct FirnDriver* opened) {
  char path[4096];
  const size_t length = firn_own_folder(path, sizeof path);
  static const char file[] = "libfirn_behind.so";
  if (length == 0 || length + sizeof file > sizeof path) return NULL;
  memcpy(path + length, file, sizeof file);
  void* handle = firn_next_dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* why = dlerror();
    complain(why ? why : path, ": CUDA calls go to the driver, nothing will spill");
    return NULL;
  }
  const struct FirnBehind* (*start)(const struct FirnStandIn*) =
      (const struct FirnBehind* (*)(const struct FirnStandIn*))firn_next_dlsym(handle,
                                                                   "firn_behind_start");
  const struct FirnStandIn* knows = tell(opened);
  const struct FirnBehind* answer = start && knows ? start(knows) : NULL;
  if (!answer) complain(path, " is of another build: nothing will spill");
  return answer;
}

/* A program with another user's rights gets the driver and nothing else. */
static const struct FirnBehind* ensure_behind(const struct FirnDriver* opened) {
  const struct FirnBehind* known = __atomic_load_n(&behind, __ATOMIC_ACQUIRE);
  if (known || opening || !opened || !opened->handle ||
      __atomic_load_n(&without_behind, __ATOMIC_ACQUIRE))
    return known;
  ++opening;
  const struct FirnBehind* answer = getauxval(AT_SECURE) ? NULL : open_behind(opened);
  --opening;
  if (answer)
    __atomic_store_n(&behind, answer, __ATOMIC_RELEASE);
  else
    __atomic_store_n(&without_behind, 1, __ATOMIC_RELEASE);
  return answer;
}

int firn_asked(void) { return firn_real_driver(FIRN_KNOWN) != NULL; }

/* Called by the stubs. */
void* firn_resolve(unsigned index) {
  const int error = errno, last = !opening;
  firn_find_next();
  const struct FirnDriver* opened = firn_real_driver(FIRN_OPEN);
  const struct FirnBehind* answers = ensure_behind(opened);
  void* target = answers ? answers->handler(names[index]) : NULL;
  if (!target) target = real(names[index]);
  if (!target && opened && opened->handle) {
    __atomic_add_fetch(&firn_routes.missing_entries, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&firn_routes.missing_entry, names[index], __ATOMIC_RELAXED);
    target = (void*)no_entry;
  }
  if (!target) {
    if (last)
      complain("no CUDA driver (libcuda.so.1) on this machine: every call to it answers "
               "CUDA_ERROR_NO_DEVICE", "");
    target = (void*)no_driver;
  }
  if (last) __atomic_store_n(&firn_targets[index], target, __ATOMIC_RELEASE);
  errno = error;
  return target;
}

EXPORTED void* firn_stand_in(const char* what) {
  const int error = errno;
  firn_find_next();
  const struct FirnDriver* opened = firn_real_driver(FIRN_OPEN);
  void* found = NULL;
  if (strcmp(what, "driver") == 0) {
    found = opened ? opened->handle : NULL;
  } else {
    const struct FirnBehind* answers = ensure_behind(opened);
    if (answers) found = answers->offer(what);
  }
  errno = error;
  return found;
}
