/* A program that reaches the driver by one route, named by its argument, and says whether Firn
 * answers there: no more device memory is then free than FIRN_BUDGET. FIRN_TEST_ANSWER is what it
 * is to be: firn, or driver for the driver itself. Status 0: so it is; 1: the other; 2: the route
 * itself did not work. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "routes.h"

#define CHECK(what) \
  do { \
    if (!(what)) { \
      fprintf(stderr, "routes.c:%d: %s: %s\n", __LINE__, #what, last_error()); \
      exit(2); \
    } \
  } while (0)

static const char* last_error(void) {
  const char* words = dlerror();
  return words ? words : "";
}

/* Entries by whatever way there is. */
typedef void* (*Look)(void* handle, const char* name, const char* exported);

static int firn_answers(Look look, void* handle) {
  CuInit init = (CuInit)look(handle, "cuInit", "cuInit");
  CuDeviceGet device_get = (CuDeviceGet)look(handle, "cuDeviceGet", "cuDeviceGet");
  CuRetain retain =
      (CuRetain)look(handle, "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain");
  CuSetCurrent set = (CuSetCurrent)look(handle, "cuCtxSetCurrent", "cuCtxSetCurrent");
  CuMemGetInfo info = (CuMemGetInfo)look(handle, "cuMemGetInfo", "cuMemGetInfo_v2");
  CHECK(init && device_get && retain && set && info);
  return memory_is_firns(init, device_get, retain, set, info);
}

static void* by_dlsym(void* handle, const char* name, const char* exported) {
  (void)name;
  return dlsym(handle, exported);
}

static CuGetProcAddress ask1;
static CuGetProcAddress2 ask2;
static uint64_t stream_flags;

static void* by_ask1(void* handle, const char* name, const char* exported) {
  void* entry = NULL;
  (void)handle, (void)exported;
  CHECK(ask1(name, &entry, 12000, stream_flags) == 0);
  return entry;
}

static void* by_ask2(void* handle, const char* name, const char* exported) {
  void* entry = NULL;
  int status = -1;
  (void)handle, (void)exported;
  CHECK(ask2(name, &entry, 12000, stream_flags, &status) == 0 && status == 0);
  return entry;
}

/* cuGetProcAddress asked for itself: what it hands out hands out Firn too. */
static void* by_itself(void* handle, const char* name, const char* exported) {
  void* again = NULL;
  void* entry = NULL;
  (void)handle, (void)exported;
  CHECK(ask2("cuGetProcAddress", &again, 12000, 0, NULL) == 0 && again);
  CHECK(((CuGetProcAddress2)again)(name, &entry, 12000, 0, NULL) == 0);
  return entry;
}

static int ask(const char* way, void* handle) {
  ask1 = (CuGetProcAddress)dlsym(handle, "cuGetProcAddress");
  ask2 = (CuGetProcAddress2)dlsym(handle, "cuGetProcAddress_v2");
  CHECK(ask1 && ask2);
  stream_flags = strstr(way, "-legacy") ? 1 : strstr(way, "-thread") ? 2 : 0;
  if (strstr(way, "-itself")) return firn_answers(by_itself, NULL);
  return firn_answers(strncmp(way, "ask1", 4) == 0 ? by_ask1 : by_ask2, NULL);
}

/* A library that opens the driver by itself, itself opened so that its own symbols come first. */
static int in_library(const char* path, int flags, const char* function) {
  void* library = dlopen(path, RTLD_NOW | flags);
  CHECK(library);
  int (*answers)(void) = (int (*)(void))dlsym(library, function);
  CHECK(answers);
  return answers();
}

/* The driver's names have no versions: it has none of any version. */
static int by_dlvsym(void* handle) {
  CHECK(dlvsym(handle, "cuInit", "GLIBC_2.2.5") == NULL);
  CHECK(dlvsym(handle, "no_such_name", "GLIBC_2.2.5") == NULL);
  return firn_answers(by_dlsym, handle);
}

static int no_load(void) {
  /* Nobody has asked for the driver yet: it is not there. */
  CHECK(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) == NULL);
  void* first = dlopen("libcuda.so.1", RTLD_NOW);
  void* second = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  CHECK(first && first == second);
  return firn_answers(by_dlsym, second);
}

/* A library that closes the driver does not take it from those who still use it. */
static int closed(void) {
  void* handle = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(handle);
  CuMemGetInfo info = (CuMemGetInfo)dlsym(handle, "cuMemGetInfo_v2");
  const int answer = firn_answers(by_dlsym, handle);
  size_t free_bytes = 0, total_bytes = 0;
  for (int i = 0; i < 5; ++i) dlclose(handle);
  CHECK(info(&free_bytes, &total_bytes) == 0);
  handle = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(handle);
  return answer ? answer : firn_answers(by_dlsym, handle);
}

/* What is no driver stays what it was, and errors are the loader's own. */
static int other_names(void) {
  CHECK(!dlopen("libcuda.so.2", RTLD_NOW) && strstr(last_error(), "libcuda.so.2"));
  CHECK(!dlopen("/nowhere/libcuda.so.1", RTLD_NOW) && strstr(last_error(), "/nowhere/"));
  CHECK(!dlopen("libcudart_of_nobody.so", RTLD_NOW) && strstr(last_error(), "of_nobody"));
  CHECK(dlopen("libm.so.6", RTLD_NOW));
  CHECK(dlopen(NULL, RTLD_NOW));
  return firn_answers(by_dlsym, dlopen("libcuda.so.1", RTLD_NOW));
}

/* A path that is tried when the name has led nowhere. */
static int path_at_last(void) {
  CHECK(!dlopen("libcuda.so.1", RTLD_NOW) && strstr(last_error(), "libcuda.so.1"));
  void* handle = dlopen(getenv("FIRN_TEST_GPU"), RTLD_NOW);
  CHECK(handle && handle == dlopen("libcuda.so.1", RTLD_NOW));
  return firn_answers(by_dlsym, handle);
}

/* What other front ends of Firn's ask the stand-in. */
static int stand_in(void) {
  void* handle = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(handle);
  void* (*ask_stand_in)(const char*) = (void* (*)(const char*))dlsym(handle, "firn_stand_in");
  CHECK(ask_stand_in && ask_stand_in("driver") && ask_stand_in("driver") != handle);
  CHECK(ask_stand_in("nonsense") == NULL);
  void* (*meet)(void*, const char*) = (void* (*)(void*, const char*))ask_stand_in("runtime");
  CHECK(meet && meet(NULL, "another build") == NULL);
  CHECK(meet((void*)0x1234, "another build") == NULL);  /* nor is it looked at */
  return firn_answers(by_dlsym, handle);
}

/* Threads that come at once, with the first calls that there are. */
enum { threads_count = 16 };
static pthread_barrier_t at_once;
static void* one_thread(void* answer) {
  pthread_barrier_wait(&at_once);
  *(int*)answer = firn_answers(by_dlsym, dlopen("libcuda.so.1", RTLD_NOW));
  return NULL;
}
static int threads(void) {
  pthread_t all[threads_count];
  int answers[threads_count], worst = 0;
  CHECK(pthread_barrier_init(&at_once, NULL, threads_count) == 0);
  for (int i = 0; i < threads_count; ++i)
    CHECK(pthread_create(&all[i], NULL, one_thread, &answers[i]) == 0);
  for (int i = 0; i < threads_count; ++i) {
    CHECK(pthread_join(all[i], NULL) == 0);
    if (answers[i] > worst) worst = answers[i];
  }
  return worst;
}

/* A library's constructor, which holds the loader's lock, calls the driver while another thread's
 * first call is under way; `later`: its first call for memory. */
static void* load_library(void* path) {
  return dlopen(path, RTLD_NOW);
}
static int constructor(const char* path, int later) {
  static int phase;  /* the library's too: 1: it is in its constructor; 2: we are about to call */
  char word[32];
  snprintf(word, sizeof word, "%p", (void*)&phase);
  CHECK(setenv("FIRN_TEST_PHASE", word, 1) == 0);
  void* handle = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(handle);
  void* entries[5];
  static const char* const names[] = {"cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain",
                                      "cuCtxSetCurrent", "cuMemGetInfo_v2"};
  for (int i = 0; i < 5; ++i) CHECK((entries[i] = dlsym(handle, names[i])) != NULL);
  int device = 0;
  void* context = NULL;
  if (later)
    CHECK(((CuInit)entries[0])(0) == 0 && ((CuDeviceGet)entries[1])(&device, 0) == 0 &&
          ((CuRetain)entries[2])(&context, device) == 0 &&
          ((CuSetCurrent)entries[3])(context) == 0);
  pthread_t loader;
  CHECK(pthread_create(&loader, NULL, load_library, (void*)path) == 0);
  while (__atomic_load_n(&phase, __ATOMIC_ACQUIRE) != 1) sched_yield();
  __atomic_store_n(&phase, 2, __ATOMIC_RELEASE);
  const int answer =
      memory_is_firns((CuInit)entries[0], (CuDeviceGet)entries[1], (CuRetain)entries[2],
                      (CuSetCurrent)entries[3], (CuMemGetInfo)entries[4]);
  void* library = NULL;
  CHECK(pthread_join(loader, &library) == 0 && library);
  int (*seen)(void) = (int (*)(void))dlsym(library, "seen_by_constructor");
  CHECK(seen);
  return answer ? answer : seen();
}

static int take(const char* way, const char* library) {
  errno = 77;
  void* handle = NULL;
  if (strcmp(way, "no-load") == 0) return no_load();
  if (strcmp(way, "closed") == 0) return closed();
  if (strcmp(way, "elsewhere") == 0) {
    CHECK(chdir("/") == 0);
    return firn_answers(by_dlsym, dlopen("libcuda.so.1", RTLD_NOW));
  }
  if (strcmp(way, "other-names") == 0) return other_names();
  if (strcmp(way, "default") == 0) return firn_answers(by_dlsym, RTLD_DEFAULT);
  if (strcmp(way, "library") == 0) return in_library(library, 0, "answers");
  if (strcmp(way, "deep-library") == 0) return in_library(library, RTLD_DEEPBIND, "answers");
  if (strcmp(way, "constructor") == 0) return constructor(library, 0);
  if (strcmp(way, "constructor-later") == 0) return constructor(library, 1);
  if (strcmp(way, "threads") == 0) return threads();
  if (strcmp(way, "stand-in") == 0) return stand_in();
  if (strcmp(way, "path-at-last") == 0) return path_at_last();
  if (strcmp(way, "sibling") == 0) return in_library(library, 0, "finds_sibling");
  if (strcmp(way, "namespace") == 0)
    handle = dlmopen(LM_ID_NEWLM, getenv("FIRN_TEST_GPU"), RTLD_NOW);
  else if (strcmp(way, "unversioned") == 0)
    handle = dlopen("libcuda.so", RTLD_NOW);
  else if (strcmp(way, "path") == 0)
    handle = dlopen(getenv("FIRN_TEST_GPU"), RTLD_NOW);
  else if (strcmp(way, "deep") == 0)
    handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND);
  else
    handle = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(handle);
  CHECK(errno == 77);
  if (strncmp(way, "ask", 3) == 0) return ask(way, handle);
  if (strcmp(way, "dlvsym") == 0) return by_dlvsym(handle);
  return firn_answers(by_dlsym, handle);
}

int main(int count, char** words) {
  const char* expected = getenv("FIRN_TEST_ANSWER");
  if (count < 2 || !expected) return 2;
  const int driver = take(words[1], count > 2 ? words[2] : NULL);
  return driver == 2 ? 2 : driver != (strcmp(expected, "driver") == 0);
}
