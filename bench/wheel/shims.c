// Compilers and headers of today ask glibc for these, which 2.28 does not have. They are linked into
// each of the wheel's files, hidden.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// Of glibc 2.32, for atomic counters that need no lock prefix in one thread: here there may always
// be others.
char __libc_single_threaded = 0;

// 2.30.
pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

// 2.30: libstdc++'s waits with a steady clock. Glibc's own where there is one; else a wait by the
// clock that the condition has, for what is left: a clock that is set meanwhile makes the wait
// longer or shorter, and callers look at their own clock again.
typedef int (*ClockWait)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  static ClockWait own;
  static int asked;
  if (!__atomic_load_n(&asked, __ATOMIC_ACQUIRE)) {
    __atomic_store_n(&own, (ClockWait)dlvsym(RTLD_DEFAULT, "pthread_cond_clockwait", "GLIBC_2.34"),
                     __ATOMIC_RELAXED);
    if (!own)
      __atomic_store_n(&own,
                       (ClockWait)dlvsym(RTLD_DEFAULT, "pthread_cond_clockwait", "GLIBC_2.30"),
                       __ATOMIC_RELAXED);
    __atomic_store_n(&asked, 1, __ATOMIC_RELEASE);
  }
  if (own) return own(condition, mutex, clock, until);
  struct timespec now, real;
  if (clock_gettime(clock, &now) != 0 || clock_gettime(CLOCK_REALTIME, &real) != 0) return EINVAL;
  real.tv_sec += until->tv_sec - now.tv_sec;
  real.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (real.tv_nsec < 0) {
    real.tv_nsec += 1000000000;
    --real.tv_sec;
  } else if (real.tv_nsec >= 1000000000) {
    real.tv_nsec -= 1000000000;
    ++real.tv_sec;
  }
  if (real.tv_sec < 0) return ETIMEDOUT;
  return pthread_cond_timedwait(condition, mutex, &real);
}
