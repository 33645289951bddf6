/* What a process is besides its CUDA calls, before, within and after: hygiene WAY. Status 0: as it
 * was without Firn. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "routes.h"

#define CHECK(what) \
  do { \
    if (!(what)) { \
      fprintf(stderr, "hygiene.c:%d: %s\n", __LINE__, #what); \
      _exit(2); \
    } \
  } while (0)

typedef int (*CuMemAlloc)(uint64_t* address, size_t bytes);
typedef int (*CuMemFree)(uint64_t address);

static CuInit init;
static CuDeviceGet device_get;
static CuRetain retain;
static CuSetCurrent set_current;
static CuMemGetInfo info;
static CuMemAlloc alloc;
static CuMemFree give;

static void open_driver(void) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(driver);
  init = (CuInit)dlsym(driver, "cuInit");
  device_get = (CuDeviceGet)dlsym(driver, "cuDeviceGet");
  retain = (CuRetain)dlsym(driver, "cuDevicePrimaryCtxRetain");
  set_current = (CuSetCurrent)dlsym(driver, "cuCtxSetCurrent");
  info = (CuMemGetInfo)dlsym(driver, "cuMemGetInfo_v2");
  alloc = (CuMemAlloc)dlsym(driver, "cuMemAlloc_v2");
  give = (CuMemFree)dlsym(driver, "cuMemFree_v2");
  CHECK(init && device_get && retain && set_current && info && alloc && give);
}

static void begin(void) {
  int device = -1;
  void* context = NULL;
  CHECK(init(0) == 0 && device_get(&device, 0) == 0 && retain(&context, device) == 0);
  CHECK(set_current(context) == 0);
}

static int threads(void) {
  int count = 0;
  DIR* tasks = opendir("/proc/self/task");
  for (struct dirent* each; tasks && (each = readdir(tasks)) != NULL;)
    count += each->d_name[0] != '.';
  closedir(tasks);
  return count;
}

/* Everything of the process that is not Firn's to change. */
struct State {
  mode_t mask;
  sigset_t blocked;
  struct sigaction actions[NSIG];
  struct rlimit limits[RLIM_NLIMITS];
  int priority;
  char folder[512];
};

static void take_state(struct State* state) {
  memset(state, 0, sizeof *state);
  state->mask = umask(0);
  umask(state->mask);
  sigprocmask(SIG_SETMASK, NULL, &state->blocked);
  for (int i = 1; i < NSIG; ++i) sigaction(i, NULL, &state->actions[i]);
  for (int i = 0; i < (int)RLIM_NLIMITS; ++i) getrlimit(i, &state->limits[i]);
  state->priority = getpriority(PRIO_PROCESS, 0);
  CHECK(getcwd(state->folder, sizeof state->folder));
}

static int state(void) {
  static struct State before, after;
  umask(027);
  take_state(&before);
  const int alone = threads();
  open_driver();
  CHECK(threads() == alone);  /* looking at the driver starts nothing */
  begin();
  uint64_t addresses[4] = {0};
  for (int i = 0; i < 4; ++i) {
    errno = 70 + i;
    CHECK(alloc(&addresses[i], (size_t)4 << 20) == 0);
    CHECK(errno == 70 + i);
  }
  size_t free_bytes = 0, total_bytes = 0;
  errno = 75;
  CHECK(info(&free_bytes, &total_bytes) == 0 && errno == 75);
  for (int i = 0; i < 4; ++i) CHECK(give(addresses[i]) == 0);
  CHECK(errno == 75);
  take_state(&after);
  CHECK(before.mask == after.mask);
  CHECK(memcmp(&before.blocked, &after.blocked, sizeof before.blocked) == 0);
  for (int i = 1; i < NSIG; ++i)
    CHECK(before.actions[i].sa_handler == after.actions[i].sa_handler &&
          before.actions[i].sa_flags == after.actions[i].sa_flags);
  CHECK(memcmp(before.limits, after.limits, sizeof before.limits) == 0);
  CHECK(before.priority == after.priority && strcmp(before.folder, after.folder) == 0);
  return 0;
}

/* What a child is answered, in one word. */
static int child_answers(void) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    size_t free_bytes = 0, total_bytes = 0;
    const int result = info(&free_bytes, &total_bytes);
    uint64_t address = 0;
    const int allocated = alloc(&address, (size_t)4 << 20);
    const int freed = allocated == 0 ? give(address) : -1;
    printf("child: memory %d, free %zu MiB of %zu, alloc %d, free %d, threads %d\n", result,
           free_bytes >> 20, total_bytes >> 20, allocated, freed, threads());
    fflush(stdout);
    _exit(0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  return status;
}

/* The parent uses Firn; its child gets the driver, whatever that says. */
static int forked(void) {
  open_driver();
  begin();
  uint64_t before = 0, after = 0;
  CHECK(alloc(&before, (size_t)4 << 20) == 0);
  CHECK(child_answers() == 0);
  /* And the parent goes on as it was. */
  CHECK(alloc(&after, (size_t)4 << 20) == 0 && give(before) == 0 && give(after) == 0);
  return 0;
}

/* Nobody used CUDA before the fork: the child is a process like any other. */
static int forked_early(void) {
  open_driver();
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    begin();
    uint64_t address = 0;
    CHECK(alloc(&address, (size_t)4 << 20) == 0);
    _exit(memory_is_firns(init, device_get, retain, set_current, info));
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
  return WEXITSTATUS(status);
}

static uint64_t left_over;
static void give_late(void) {
  const int result = give(left_over);
  if (result != 0) {
    fprintf(stderr, "freeing once exit has begun: %d\n", result);
    _exit(2);
  }
}

/* Memory that a program's last handlers free, when Firn has stopped already. */
static int late(void) {
  CHECK(atexit(give_late) == 0);
  open_driver();
  begin();
  CHECK(alloc(&left_over, (size_t)4 << 20) == 0);
  return 0;
}

int main(int count, char** words) {
  if (count < 2) return 2;
  if (strcmp(words[1], "state") == 0) return state();
  if (strcmp(words[1], "forked") == 0) return forked();
  if (strcmp(words[1], "forked-early") == 0) return forked_early();
  if (strcmp(words[1], "late") == 0) return late();
  return 2;
}
