#include "tests/faults/interpose.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace firn::faults {
namespace {

struct Range {
  uintptr_t begin = 0, end = 0;
  bool has(const void* address) const {
    return reinterpret_cast<uintptr_t>(address) - begin < end - begin;
  }
};
Range firn_text, standard_text;  // of libfirn, of the C++ library
std::atomic<bool> counting{false};
std::atomic<uint64_t> counts[2], failures{0};
std::atomic<uint64_t> fails_at[2];  // 0: none
std::atomic<bool> fails_on[2];
std::atomic<const char*> first{nullptr};
char* first_goes_to = nullptr;
size_t first_bytes = 0;
thread_local int uncounted __attribute__((tls_model("initial-exec"))) = 0;

int find_ranges(dl_phdr_info* info, size_t, void*) {
  const bool firn = std::strstr(info->dlpi_name, "/libfirn.so") != nullptr;
  if (!firn && !std::strstr(info->dlpi_name, "/libstdc++.so")) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || !(part.p_flags & PF_X)) continue;
    const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    (firn ? firn_text : standard_text) = {begin, begin + part.p_memsz};
  }
  return 0;
}

/// Did Firn ask the C++ library for it?
bool for_firn() {
  void* stack[24];
  ++uncounted;
  const int depth = ::backtrace(stack, 24);
  --uncounted;
  // Past this function and its caller, out of the C++ library.
  for (int i = 2; i < depth; ++i)
    if (!standard_text.has(stack[i])) return firn_text.has(stack[i]);
  return false;
}

bool fails(Kind kind, const char* name) {
  const auto index = static_cast<size_t>(kind);
  const uint64_t number = ++counts[index];
  const uint64_t at = fails_at[index].load(std::memory_order_relaxed);
  if (at == 0 || (fails_on[index] ? number < at : number != at)) return false;
  ++failures;
  const char* none = nullptr;
  if (first.compare_exchange_strong(none, name) && first_goes_to)
    ::strncpy(first_goes_to, name, first_bytes);
  return true;
}

/// Is it Firn's, and does it fail?
bool fails_for(const void* caller, const char* name, Kind kind = Kind::system_call) {
  if (!counting.load(std::memory_order_relaxed) || uncounted > 0) return false;
  if (!firn_text.has(caller) && !(standard_text.has(caller) && for_firn())) return false;
  return fails(kind, name);
}

template <class T>
T real(const char* name) {
  return reinterpret_cast<T>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

Uncounted::Uncounted() { ++uncounted; }
Uncounted::~Uncounted() { --uncounted; }

}  // namespace firn::faults

using namespace firn::faults;

#define FIRN_CALLER __builtin_extract_return_addr(__builtin_return_address(0))
// A call of the C library: its name, what it answers when it fails (errno: `error`), its types.
#define FIRN_STAND_IN(type, name, failure, error, parameters, arguments)          \
  type name parameters {                                                          \
    static const auto call = real<type(*) parameters>(#name);                     \
    if (fails_for(FIRN_CALLER, #name)) {                                          \
      errno = error;                                                              \
      return failure;                                                             \
    }                                                                             \
    return call arguments;                                                        \
  }

#pragma GCC diagnostic ignored "-Wmissing-declarations"
#pragma GCC visibility push(default)
extern "C" {
int open64(const char* path, int flags, ...) {
  static const auto call = real<int (*)(const char*, int, ...)>("open64");
  va_list rest;
  va_start(rest, flags);
  const auto mode = static_cast<mode_t>(va_arg(rest, unsigned));
  va_end(rest);
  if (fails_for(FIRN_CALLER, "open")) return errno = EMFILE, -1;
  return call(path, flags, mode);
}
int openat64(int folder, const char* path, int flags, ...) {
  static const auto call = real<int (*)(int, const char*, int, ...)>("openat64");
  va_list rest;
  va_start(rest, flags);
  const auto mode = static_cast<mode_t>(va_arg(rest, unsigned));
  va_end(rest);
  if (fails_for(FIRN_CALLER, "openat")) return errno = EMFILE, -1;
  return call(folder, path, flags, mode);
}
int fcntl64(int fd, int command, ...) {
  static const auto call = real<int (*)(int, int, ...)>("fcntl64");
  va_list rest;
  va_start(rest, command);
  void* argument = va_arg(rest, void*);
  va_end(rest);
  // (What asks for a descriptor's flags and marks fails for no descriptor that is open.)
  const bool may = command != F_GETFD && command != F_SETFD && command != F_GETFL &&
                   command != F_GETSIG && command != F_SETSIG;
  if (may && fails_for(FIRN_CALLER, "fcntl")) return errno = ENOLCK, -1;
  return call(fd, command, argument);
}
long syscall(long number, ...) noexcept {
  static const auto call = real<long (*)(long, ...)>("syscall");
  va_list rest;
  va_start(rest, number);
  long a[6];
  for (long& each : a) each = va_arg(rest, long);
  va_end(rest);
  if (fails_for(FIRN_CALLER, "syscall")) return errno = EPERM, -1;
  return call(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) noexcept {
  static const auto call = real<decltype(&::pthread_create)>("pthread_create");
  if (fails_for(FIRN_CALLER, "pthread_create")) return EAGAIN;
  return call(thread, attributes, start, argument);
}
/// io_uring's calls of a thread that takes no signals are trapped all the same.
int pthread_sigmask(int how, const sigset_t* set, sigset_t* before) noexcept {
  static const auto call = real<decltype(&::pthread_sigmask)>("pthread_sigmask");
  if (!set || how == SIG_UNBLOCK) return call(how, set, before);
  sigset_t less = *set;
  ::sigdelset(&less, SIGSYS);
  return call(how, &less, before);
}
// (A full disk is another thing: nothing more is asked of it.)
FIRN_STAND_IN(int, fallocate64, -1, EIO, (int fd, int mode, off64_t from, off64_t bytes),
              (fd, mode, from, bytes))
FIRN_STAND_IN(int, ftruncate64, -1, EIO, (int fd, off64_t bytes) noexcept, (fd, bytes))
FIRN_STAND_IN(ssize_t, pread64, -1, EIO, (int fd, void* to, size_t bytes, off64_t from),
              (fd, to, bytes, from))
FIRN_STAND_IN(ssize_t, pwrite64, -1, EIO, (int fd, const void* of, size_t bytes, off64_t to),
              (fd, of, bytes, to))
FIRN_STAND_IN(ssize_t, read, -1, EIO, (int fd, void* to, size_t bytes), (fd, to, bytes))
FIRN_STAND_IN(ssize_t, write, -1, EIO, (int fd, const void* of, size_t bytes), (fd, of, bytes))
FIRN_STAND_IN(void*, mmap64, MAP_FAILED, ENOMEM,
              (void* at, size_t bytes, int open, int flags, int fd, off64_t from) noexcept,
              (at, bytes, open, flags, fd, from))
FIRN_STAND_IN(int, madvise, -1, ENOMEM, (void* at, size_t bytes, int advice) noexcept,
              (at, bytes, advice))
FIRN_STAND_IN(int, mprotect, -1, ENOMEM, (void* at, size_t bytes, int open) noexcept,
              (at, bytes, open))
FIRN_STAND_IN(int, fstat64, -1, EIO, (int fd, struct stat64* into) noexcept, (fd, into))
FIRN_STAND_IN(int, stat64, -1, EACCES, (const char* path, struct stat64* into) noexcept,
              (path, into))
FIRN_STAND_IN(int, lstat64, -1, EACCES, (const char* path, struct stat64* into) noexcept,
              (path, into))
FIRN_STAND_IN(int, fstatfs64, -1, EIO, (int fd, struct statfs64* into) noexcept, (fd, into))
FIRN_STAND_IN(int, socket, -1, EMFILE, (int family, int type, int protocol) noexcept,
              (family, type, protocol))
FIRN_STAND_IN(int, bind, -1, EADDRINUSE, (int fd, const sockaddr* to, socklen_t size) noexcept,
              (fd, to, size))
FIRN_STAND_IN(int, listen, -1, EADDRINUSE, (int fd, int waiting) noexcept, (fd, waiting))
FIRN_STAND_IN(int, connect, -1, ECONNREFUSED, (int fd, const sockaddr* to, socklen_t size),
              (fd, to, size))
FIRN_STAND_IN(int, accept4, -1, EMFILE, (int fd, sockaddr* from, socklen_t* size, int flags),
              (fd, from, size, flags))
FIRN_STAND_IN(int, poll, -1, ENOMEM, (pollfd* of, nfds_t count, int ms), (of, count, ms))
FIRN_STAND_IN(int, pipe2, -1, EMFILE, (int* fds, int flags) noexcept, (fds, flags))
FIRN_STAND_IN(int, getrlimit64, -1, EPERM, (__rlimit_resource_t of, rlimit64* into) noexcept,
              (of, into))
FIRN_STAND_IN(long, sysconf, -1, EINVAL, (int name) noexcept, (name))
FIRN_STAND_IN(int, mkdir, -1, EACCES, (const char* path, mode_t mode) noexcept, (path, mode))
FIRN_STAND_IN(int, chmod, -1, EPERM, (const char* path, mode_t mode) noexcept, (path, mode))
FIRN_STAND_IN(int, rename, -1, EACCES, (const char* from, const char* to) noexcept, (from, to))
FIRN_STAND_IN(int, unlink, -1, EACCES, (const char* path) noexcept, (path))
FIRN_STAND_IN(FILE*, fopen64, nullptr, EMFILE, (const char* path, const char* mode), (path, mode))

/// The one place from which trapped calls are made: the filter lets it through.
long firn_faults_gate(long number, long a, long b, long c, long d, long e, long f);
extern const char firn_faults_gate_end[];
}
#pragma GCC visibility pop
asm(R"(
.text
.globl firn_faults_gate
.type firn_faults_gate, @function
firn_faults_gate:
  mov %rdi, %rax
  mov %rsi, %rdi
  mov %rdx, %rsi
  mov %rcx, %rdx
  mov %r8, %r10
  mov %r9, %r8
  mov 8(%rsp), %r9
  syscall
.globl firn_faults_gate_end
firn_faults_gate_end:
  ret
.size firn_faults_gate, .-firn_faults_gate
)");

namespace firn::faults {
namespace {

void on_trap(int, siginfo_t* info, void* context) {
  auto* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const int number = info->si_syscall;
  const char* name = number == SYS_io_uring_setup      ? "io_uring_setup"
                     : number == SYS_io_uring_enter    ? "io_uring_enter"
                     : number == SYS_io_uring_register ? "io_uring_register"
                                                       : "mmap of io_uring";
  // (What gives something back does not fail.)
  const bool may = number != SYS_munmap && number != SYS_close;
  if (may && counting && uncounted == 0 && fails(Kind::system_call, name)) {
    registers[REG_RAX] = number == SYS_io_uring_enter ? -EPERM : -ENOMEM;
    return;
  }
  registers[REG_RAX] =
      firn_faults_gate(number, registers[REG_RDI], registers[REG_RSI], registers[REG_RDX],
                       registers[REG_R10], registers[REG_R8], registers[REG_R9]);
}

/// io_uring's system calls, and any that lie in libfirn's own text, but for the gate's.
bool trap() {
  struct sigaction action {};
  action.sa_sigaction = on_trap;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  if (::sigaction(SIGSYS, &action, nullptr) != 0) return false;
  const auto gate = reinterpret_cast<uintptr_t>(firn_faults_gate_end);
  const auto low = [](uintptr_t at) { return static_cast<uint32_t>(at); };
  const auto high = [](uintptr_t at) { return static_cast<uint32_t>(at >> 32); };
  if (high(firn_text.begin) != high(firn_text.end)) return false;
  constexpr uint32_t ip = offsetof(seccomp_data, instruction_pointer);
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ip),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, low(gate), 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ip + 4),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, high(gate), 9, 0),  // allowed
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, SYS_io_uring_register, 0, 5),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ip + 4),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, high(firn_text.begin), 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ip),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, low(firn_text.begin), 0, 2),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, low(firn_text.end), 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{sizeof filter / sizeof *filter, filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace

bool begin_interposing(char* to, size_t bytes) {
  first_goes_to = to;
  first_bytes = bytes - 1;
  void* stack[2];
  (void)::backtrace(stack, 2);  // (loads what it needs)
  (void)::dl_iterate_phdr(find_ranges, nullptr);
  if (!firn_text.end || !standard_text.end) std::abort();
  const bool trapped = trap();
  counting = true;
  return trapped;
}

void arm(Kind kind, uint64_t nth, bool lasting) {
  const auto index = static_cast<size_t>(kind);
  fails_on[index] = lasting;
  fails_at[index] = nth ? counts[index] + nth : 0;
}

void disarm() { fails_at[0] = fails_at[1] = 0; }
uint64_t calls(Kind kind) { return counts[static_cast<size_t>(kind)]; }
uint64_t failed() { return failures; }
const char* first_failed() { return first.load() ? first.load() : "none"; }

}  // namespace firn::faults

// Every way to operator new goes through one of these.
namespace {
void* take(size_t bytes, size_t alignment, const void* caller) {
  if (fails_for(caller, "operator new", Kind::allocation)) return nullptr;
  return alignment ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)
                   : std::malloc(bytes ? bytes : 1);
}
void* take_or_throw(size_t bytes, size_t alignment, const void* caller) {
  if (void* taken = take(bytes, alignment, caller)) return taken;
  throw std::bad_alloc();
}
}  // namespace
void* operator new(size_t bytes) { return take_or_throw(bytes, 0, FIRN_CALLER); }
void* operator new[](size_t bytes) { return take_or_throw(bytes, 0, FIRN_CALLER); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return take(bytes, 0, FIRN_CALLER);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return take(bytes, 0, FIRN_CALLER);
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return take_or_throw(bytes, static_cast<size_t>(alignment), FIRN_CALLER);
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return take_or_throw(bytes, static_cast<size_t>(alignment), FIRN_CALLER);
}
void operator delete(void* taken) noexcept { std::free(taken); }
void operator delete[](void* taken) noexcept { std::free(taken); }
void operator delete(void* taken, size_t) noexcept { std::free(taken); }
void operator delete[](void* taken, size_t) noexcept { std::free(taken); }
void operator delete(void* taken, std::align_val_t) noexcept { std::free(taken); }
void operator delete[](void* taken, std::align_val_t) noexcept { std::free(taken); }
void operator delete(void* taken, size_t, std::align_val_t) noexcept { std::free(taken); }
void operator delete[](void* taken, size_t, std::align_val_t) noexcept { std::free(taken); }
