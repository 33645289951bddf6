#include "tests/faults/interpose.h"

#include <dirent.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/random.h>
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
#include <iterator>
#include <new>
#include <string_view>

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

constexpr const char* all_names[] = {
    // libfirn's own, trapped
    "io_uring_setup", "io_uring_enter", "io_uring_register", "mmap_of_io_uring",
    // of files
    "open", "openat", "opendir", "readdir", "fopen", "fdopen", "memfd_create", "fallocate",
    "ftruncate", "fsync", "pread", "pwrite", "read", "write", "posix_fadvise", "fstat", "stat",
    "lstat", "statx", "statfs", "fstatfs", "access", "faccessat", "realpath", "mkdir", "chmod",
    "rename", "unlink", "remove", "fcntl",
    // of memory
    "mmap", "madvise", "mprotect", "mlock",
    // of sockets
    "socket", "bind", "listen", "connect", "accept4", "getsockopt", "setsockopt", "send", "recv",
    "poll", "pipe2", "eventfd",
    // of processes and threads
    "pthread_create", "posix_spawn", "kill", "syscall", "getrlimit",
    "sysconf", "getrandom",
    "operator_new"};
constexpr size_t name_count = std::size(all_names);
static_assert(name_count <= names_most);
consteval size_t listed(std::string_view name) {
  if (name.ends_with("64")) name.remove_suffix(2);
  for (size_t i = 0; i < name_count; ++i)
    if (all_names[i] == name) return i;
  throw "a stand-in that all_names lacks";
}
constexpr size_t operator_new = listed("operator_new");
constexpr size_t unarmed = SIZE_MAX;

std::atomic<uint64_t> counts[names_most], failures_of[names_most], failures{0};
std::atomic<size_t> armed{unarmed};  // the name
std::atomic<uint64_t> fails_at{0};
std::atomic<When> fails_when{When::once};
std::atomic<bool> all_fail{false};  // of the armed name's kind
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

bool fails(size_t name) {
  const uint64_t number = ++counts[name];
  const size_t which = armed.load(std::memory_order_acquire);
  if (which == unarmed) return false;
  if (which == name) {
    if (number < fails_at) return false;
    if (number > fails_at && fails_when == When::once) return false;
    if (fails_when == When::from) all_fail = true;
  } else if (!all_fail || kind_of(which) != kind_of(name)) {
    return false;
  }
  ++failures;
  ++failures_of[name];
  const char* none = nullptr;
  if (first.compare_exchange_strong(none, all_names[name]) && first_goes_to)
    ::strncpy(first_goes_to, all_names[name], first_bytes);
  return true;
}

/// Is it Firn's, and does it fail?
bool fails_for(const void* caller, size_t name) {
  if (!counting.load(std::memory_order_relaxed) || uncounted > 0) return false;
  if (!firn_text.has(caller) && !(standard_text.has(caller) && for_firn())) return false;
  return fails(name);
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
    if (fails_for(FIRN_CALLER, listed(#name))) {                                          \
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
  if (fails_for(FIRN_CALLER, listed("open"))) return errno = EMFILE, -1;
  return call(path, flags, mode);
}
int openat64(int folder, const char* path, int flags, ...) {
  static const auto call = real<int (*)(int, const char*, int, ...)>("openat64");
  va_list rest;
  va_start(rest, flags);
  const auto mode = static_cast<mode_t>(va_arg(rest, unsigned));
  va_end(rest);
  if (fails_for(FIRN_CALLER, listed("openat"))) return errno = EMFILE, -1;
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
  if (may && fails_for(FIRN_CALLER, listed("fcntl"))) return errno = ENOLCK, -1;
  return call(fd, command, argument);
}
long syscall(long number, ...) noexcept {
  static const auto call = real<long (*)(long, ...)>("syscall");
  va_list rest;
  va_start(rest, number);
  long a[6];
  for (long& each : a) each = va_arg(rest, long);
  va_end(rest);
  if (fails_for(FIRN_CALLER, listed("syscall"))) return errno = EPERM, -1;
  return call(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) noexcept {
  static const auto call = real<decltype(&::pthread_create)>("pthread_create");
  if (fails_for(FIRN_CALLER, listed("pthread_create"))) return EAGAIN;
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
int poll(pollfd* of, nfds_t count, int ms) {
  static const auto call = real<decltype(&::poll)>("poll");
  // (Who asks about nothing waits: that fails nowhere.)
  if (count > 0 && fails_for(FIRN_CALLER, listed("poll"))) return errno = ENOMEM, -1;
  return call(of, count, ms);
}
FIRN_STAND_IN(int, pipe2, -1, EMFILE, (int* fds, int flags) noexcept, (fds, flags))
FIRN_STAND_IN(int, getrlimit64, -1, EPERM, (__rlimit_resource_t of, rlimit64* into) noexcept,
              (of, into))
FIRN_STAND_IN(long, sysconf, -1, EINVAL, (int name) noexcept, (name))
FIRN_STAND_IN(int, mkdir, -1, EACCES, (const char* path, mode_t mode) noexcept, (path, mode))
FIRN_STAND_IN(int, chmod, -1, EPERM, (const char* path, mode_t mode) noexcept, (path, mode))
FIRN_STAND_IN(int, rename, -1, EACCES, (const char* from, const char* to) noexcept, (from, to))
FIRN_STAND_IN(int, unlink, -1, EACCES, (const char* path) noexcept, (path))
FIRN_STAND_IN(DIR*, opendir, nullptr, EMFILE, (const char* path), (path))
FIRN_STAND_IN(dirent64*, readdir64, nullptr, EIO, (DIR* of), (of))
FIRN_STAND_IN(FILE*, fdopen, nullptr, ENOMEM, (int fd, const char* mode) noexcept, (fd, mode))
FIRN_STAND_IN(int, memfd_create, -1, EMFILE, (const char* name, unsigned flags) noexcept,
              (name, flags))
FIRN_STAND_IN(int, fsync, -1, EIO, (int fd), (fd))
FIRN_STAND_IN(int, statx, -1, EIO,
              (int folder, const char* path, int flags, unsigned mask, struct statx* into) noexcept,
              (folder, path, flags, mask, into))
FIRN_STAND_IN(int, statfs64, -1, EIO, (const char* path, struct statfs64* into) noexcept,
              (path, into))
FIRN_STAND_IN(int, access, -1, EACCES, (const char* path, int mode) noexcept, (path, mode))
FIRN_STAND_IN(int, faccessat, -1, EACCES,
              (int folder, const char* path, int mode, int flags) noexcept,
              (folder, path, mode, flags))
FIRN_STAND_IN(char*, realpath, nullptr, EACCES, (const char* path, char* into) noexcept,
              (path, into))
FIRN_STAND_IN(int, remove, -1, EACCES, (const char* path) noexcept, (path))
FIRN_STAND_IN(int, mlock, -1, ENOMEM, (const void* at, size_t bytes) noexcept, (at, bytes))
FIRN_STAND_IN(int, getsockopt, -1, ENOBUFS,
              (int fd, int level, int option, void* into, socklen_t* size) noexcept,
              (fd, level, option, into, size))
FIRN_STAND_IN(int, setsockopt, -1, ENOBUFS,
              (int fd, int level, int option, const void* of, socklen_t size) noexcept,
              (fd, level, option, of, size))
FIRN_STAND_IN(ssize_t, send, -1, ECONNRESET, (int fd, const void* of, size_t bytes, int flags),
              (fd, of, bytes, flags))
FIRN_STAND_IN(ssize_t, recv, -1, ECONNRESET, (int fd, void* to, size_t bytes, int flags),
              (fd, to, bytes, flags))
FIRN_STAND_IN(int, eventfd, -1, EMFILE, (unsigned count, int flags) noexcept, (count, flags))
FIRN_STAND_IN(int, kill, -1, EPERM, (pid_t process, int signal) noexcept, (process, signal))
FIRN_STAND_IN(ssize_t, getrandom, -1, ENOSYS, (void* to, size_t bytes, unsigned flags),
              (to, bytes, flags))
// (These answer with the error itself.)
FIRN_STAND_IN(int, posix_fadvise64, EINVAL, 0, (int fd, off64_t from, off64_t bytes, int advice)
              noexcept, (fd, from, bytes, advice))
FIRN_STAND_IN(int, posix_spawn, EAGAIN, 0,
              (pid_t* child, const char* path, const posix_spawn_file_actions_t* actions,
               const posix_spawnattr_t* attributes, char* const* words, char* const* environment),
              (child, path, actions, attributes, words, environment))
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
  const size_t name = number == SYS_io_uring_setup      ? listed("io_uring_setup")
                      : number == SYS_io_uring_enter    ? listed("io_uring_enter")
                      : number == SYS_io_uring_register ? listed("io_uring_register")
                                                        : listed("mmap_of_io_uring");
  // (What gives something back does not fail.)
  const bool may = number != SYS_munmap && number != SYS_close;
  if (may && counting && uncounted == 0 && fails(name)) {
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

size_t names() { return name_count; }
const char* name_of(size_t name) { return all_names[name]; }
Kind kind_of(size_t name) {
  return name == operator_new ? Kind::allocation : Kind::system_call;
}
size_t name_called(const char* words) {
  size_t i = 0;
  while (i < name_count && std::strcmp(all_names[i], words) != 0) ++i;
  return i;
}

void arm(size_t name, uint64_t nth, When when) {
  fails_when = when;
  fails_at = counts[name] + nth;
  armed.store(name, std::memory_order_release);
}

void disarm() {
  armed = unarmed;
  all_fail = false;
}
uint64_t calls(size_t name) { return counts[name]; }
uint64_t failed(size_t name) { return failures_of[name]; }
uint64_t failed() { return failures; }
const char* first_failed() { return first.load() ? first.load() : "none"; }

}  // namespace firn::faults

// Every way to operator new goes through one of these.
namespace {
void* take(size_t bytes, size_t alignment, const void* caller) {
  if (fails_for(caller, operator_new)) return nullptr;
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
