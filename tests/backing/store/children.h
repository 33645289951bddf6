// Tests in a process of their own: what they say on stderr, system calls that are refused there.
// Owns nothing. Locks: none.
#pragma once

#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <functional>

namespace firn::testing_store {

inline constexpr int cannot = 77;  // the child could not set its scene up

#define CHECK_CHILD(condition)                                                     \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      return 1;                                                                    \
    }                                                                              \
  } while (0)

/// Wait status of `body` run in a child.
inline int run_child(const std::function<int()>& body) {
  pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

inline void expect_child_ok(const std::function<int()>& body) {
  int status = run_child(body);
  ASSERT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == cannot) GTEST_SKIP() << "not permitted here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

/// Makes a system call answer `error` from now on, to this thread or to all.
inline bool refuse_call(long number, int error, bool all_threads = false) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<__u32>(number), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<__u32>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter{4, program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                   all_threads ? SECCOMP_FILTER_FLAG_TSYNC : 0, &filter) == 0;
}

}  // namespace firn::testing_store
