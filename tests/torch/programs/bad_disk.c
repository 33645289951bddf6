// A disk that fails, for a process that this is preloaded into: reads and writes of files that have
// no name, on a disk (spill files), at rates of the environment's
// BAD_DISK=SEED:READ:WRITE:SHORT:FLIP:TURN. READ and WRITE: EIO. SHORT: half of it. FLIP: a bit of
// what was read, which the next read gives right. TURN: a bit of what is written, which no read
// gives right.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static double rates[5];
static uint64_t state;
static ssize_t (*real_read)(int, void*, size_t, off_t);
static ssize_t (*real_write)(int, const void*, size_t, off_t);
static unsigned long long faults[5];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void tell(void) {
  fprintf(stderr, "bad_disk %llu %llu %llu %llu %llu\n", faults[0], faults[1], faults[2], faults[3],
          faults[4]);
}

__attribute__((constructor)) static void begin(void) {
  real_read = (ssize_t(*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, "pread");
  real_write = (ssize_t(*)(int, const void*, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
  const char* words = getenv("BAD_DISK");
  unsigned long long seed = 1;
  if (words)
    (void)sscanf(words, "%llu:%lf:%lf:%lf:%lf:%lf", &seed, &rates[0], &rates[1], &rates[2],
                 &rates[3], &rates[4]);
  state = seed * 2654435761u + 1;
  if (words) (void)atexit(tell);
}

static uint64_t next(void) {
  pthread_mutex_lock(&mutex);
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  const uint64_t drawn = state;
  pthread_mutex_unlock(&mutex);
  return drawn;
}

static int happens(int kind) {
  if (rates[kind] <= 0 || (double)(next() >> 11) / 9007199254740992.0 >= rates[kind]) return 0;
  __atomic_fetch_add(&faults[kind], 1, __ATOMIC_RELAXED);
  return 1;
}

/// Not in memory: the software GPU's memory is such a file, too.
static int is_spill_file(int fd) {
  struct stat status;
  struct statfs system;
  return fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 0 &&
         fstatfs(fd, &system) == 0 && system.f_type != TMPFS_MAGIC;
}

static size_t part_of(size_t bytes) {
  return bytes >= 8192 && happens(2) ? bytes / 2 / 4096 * 4096 : bytes;
}

ssize_t pread(int fd, void* data, size_t bytes, off_t offset) {
  if (!is_spill_file(fd)) return real_read(fd, data, bytes, offset);
  if (happens(0)) return errno = EIO, -1;
  const ssize_t got = real_read(fd, data, part_of(bytes), offset);
  if (got > 0 && happens(3)) ((char*)data)[next() % (uint64_t)got] ^= 4;
  return got;
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  if (!is_spill_file(fd)) return real_write(fd, data, bytes, offset);
  if (happens(1)) return errno = EIO, -1;
  bytes = part_of(bytes);
  if (!happens(4)) return real_write(fd, data, bytes, offset);
  void* other = NULL;
  if (posix_memalign(&other, 4096, bytes) != 0) return real_write(fd, data, bytes, offset);
  memcpy(other, data, bytes);
  ((char*)other)[next() % bytes] ^= 4;
  const ssize_t put = real_write(fd, other, bytes, offset);
  free(other);
  return put;
}
ssize_t pread64(int, void*, size_t, off_t) __attribute__((alias("pread")));
ssize_t pwrite64(int, const void*, size_t, off_t) __attribute__((alias("pwrite")));
