/* Fills the stubs' table at the first driver call: finds and opens the real driver, then the library
 * behind. Owns both handles, which stay open for the life of the process. Lock: start_lock, while
 * starting; afterwards none. */
#define _GNU_SOURCE
#include "allocator/preload/stand_in.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "allocator/preload/real_driver.h"

#define EXPORTED __attribute__((visibility("default")))

static const char* const names[] = {
#define N(index, name) #name,
#include "names.inc"
#undef N
};

/* The targets of the stubs; null: not asked for yet. */
void* firn_targets[FIRN_NAMES];

static struct FirnStandIn stand_in;
static struct FirnBehind behind;
static pthread_mutex_t start_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int started;    /* written under start_lock; read with acquire */
static int starting;   /* under start_lock */
static void* (*next_dlsym)(void* handle, const char* name);

/* What a program gets where there is no driver, and of one that is older than the program. */
static int no_driver(void) { return 100; /* CUDA_ERROR_NO_DEVICE */ }
static int no_entry(void) { return 801; /* CUDA_ERROR_NOT_SUPPORTED */ }

/* The C library's dlsym, whoever else hooks it: by its version, which hooks do not have. */
static void* next(const char* name) {
  static const char* const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5", "GLIBC_2.27"};
  if (!next_dlsym)
    for (size_t i = 0; !next_dlsym && i < sizeof versions / sizeof *versions; ++i)
      next_dlsym = (void* (*)(void*, const char*))dlvsym(RTLD_NEXT, "dlsym", versions[i]);
  return next_dlsym ? next_dlsym(RTLD_NEXT, name) : NULL;
}

static void* no_dlopen(const char* name, int flags) {
  (void)name, (void)flags;
  return NULL;
}

void* (*firn_next_dlopen)(const char* name, int flags);

static void find_next_dlopen(void) {
  if (__atomic_load_n(&firn_next_dlopen, __ATOMIC_ACQUIRE)) return;
  void* found = next("dlopen");
  __atomic_store_n(&firn_next_dlopen,
                   found ? (void* (*)(const char*, int))found : no_dlopen, __ATOMIC_RELEASE);
}

static void* real(const char* name) {
  return stand_in.handle ? next_dlsym(stand_in.handle, name) : NULL;
}

/* This library's own folder, with the final slash; "" where it cannot be told. */
static void own_folder(char* folder, size_t size) {
  Dl_info info;
  folder[0] = 0;
  if (!dladdr((void*)firn_targets, &info) || !info.dli_fname) return;
  const char* slash = strrchr(info.dli_fname, '/');
  const size_t length = slash ? (size_t)(slash - info.dli_fname) + 1 : 0;
  if (length == 0 || length >= size) return;
  memcpy(folder, info.dli_fname, length);
  folder[length] = 0;
}

/* A program with another user's rights gets the driver and nothing else. */
static void open_behind(const char* folder) {
  if (getauxval(AT_SECURE) || !folder[0]) return;
  char path[4096];
  if ((size_t)snprintf(path, sizeof path, "%slibfirn_behind.so", folder) >= sizeof path) return;
  void* handle = firn_next_dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* why = dlerror();
    fprintf(stderr, "firn: %s: every CUDA call goes to the driver, nothing will spill\n",
            why ? why : path);
    return;
  }
  int (*start)(const struct FirnStandIn*, struct FirnBehind*) =
      (int (*)(const struct FirnStandIn*, struct FirnBehind*))next_dlsym(handle,
                                                                         "firn_behind_start");
  struct FirnBehind answer = {NULL, NULL};
  if (start && start(&stand_in, &answer) == 0) {
    behind = answer;
  } else {
    fprintf(stderr, "firn: %s is of another build: nothing will spill\n", path);
  }
}

static void start(void) {
  static char library[4096];
  char folder[4096];
  find_next_dlopen();
  own_folder(folder, sizeof folder);
  stand_in.version = FIRN_STAND_IN_VERSION;
  stand_in.names = names;
  stand_in.names_count = FIRN_NAMES;
  stand_in.real = real;
  stand_in.next_dlopen = firn_next_dlopen;
  stand_in.library = library;
  if (firn_find_real_driver(folder, library, sizeof library)) {
    stand_in.handle = firn_next_dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!stand_in.handle) {
      const char* why = dlerror();
      fprintf(stderr, "firn: %s\n", why ? why : library);
    }
  }
  if (stand_in.handle) open_behind(folder);
}

/* False: this thread is starting just now, and the answer is not the last word. */
static int ensure_started(void) {
  if (__atomic_load_n(&started, __ATOMIC_ACQUIRE)) return 1;
  pthread_mutex_lock(&start_lock);
  const int within = starting;
  if (!started && !within) {
    starting = 1;
    start();
    starting = 0;
    __atomic_store_n(&started, 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&start_lock);
  return !within;
}

/* Called by the stubs. */
void* firn_resolve(unsigned index) {
  const int error = errno;
  const int last = ensure_started();
  void* target = behind.handler ? behind.handler(names[index]) : NULL;
  if (!target) target = real(names[index]);
  if (!target) target = stand_in.handle ? (void*)no_entry : (void*)no_driver;
  if (last) __atomic_store_n(&firn_targets[index], target, __ATOMIC_RELEASE);
  errno = error;
  return target;
}

/* Called by the stub of dlopen: the name to go on with. */
const char* firn_dlopen_name(const char* name) {
  const int error = errno;
  find_next_dlopen();
  errno = error;
  return name;
}

EXPORTED void* firn_stand_in(const char* what) {
  const int error = errno;
  ensure_started();
  void* found = strcmp(what, "driver") == 0 ? stand_in.handle
                : behind.offer              ? behind.offer(what)
                                            : NULL;
  errno = error;
  return found;
}
