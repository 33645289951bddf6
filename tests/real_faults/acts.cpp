#include "tests/real_faults/acts.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <new>

namespace firn::real_faults {

namespace {

constexpr unsigned child_seconds = 60;  // then it ends, should the test forget it

std::string cannot(const char* what) {
  return "cannot " + std::string(what) + ": " + std::strerror(errno);
}
std::string flying;  // what is in flight, for the answer

std::string child_words(pid_t child) {
  return "ok pid=" + std::to_string(child) + " flying=" + flying;
}

void say(const std::string& words) {
  std::printf("%s\n", words.c_str());
  std::fflush(stdout);
}

[[noreturn]] void stay() {
  ::alarm(child_seconds);
  while (true) ::pause();
}

/// Answers once the child runs: what fork has to do in it is done.
std::string fork_child() {
  int told[2];
  if (::pipe(told) != 0) return cannot("pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    if (::write(told[1], "x", 1) != 1) ::_exit(1);
    stay();
  }
  ::close(told[1]);
  char byte = 0;
  const bool runs = child > 0 && ::read(told[0], &byte, 1) == 1;
  ::close(told[0]);
  return runs ? child_words(child) : cannot("fork");
}

/// As posix_spawn and Python's subprocess do.
std::string vfork_child() {
  const pid_t child = ::vfork();
  if (child == 0) {
    ::execl("/bin/sleep", "sleep", std::to_string(child_seconds).c_str(), nullptr);
    ::_exit(1);
  }
  return child < 0 ? cannot("vfork") : child_words(child);
}

/// This process becomes another program.
std::string exec_other() {
  say(child_words(::getpid()));
  ::execl("/bin/sleep", "sleep", std::to_string(child_seconds).c_str(), nullptr);
  return cannot("exec");
}

/// As daemon(3): a child of a child that has no descriptor of ours; this process ends.
std::string daemonize() {
  int told[2];
  if (::pipe(told) != 0) return cannot("pipe");
  const pid_t child = ::fork();
  if (child < 0) return cannot("fork");
  if (child == 0) {
    (void)::setsid();
    const pid_t daemon = ::fork();
    if (daemon != 0) ::_exit(daemon < 0);
    const pid_t self = ::getpid();
    const bool said = ::write(told[1], &self, sizeof self) == sizeof self;
    for (int fd = 0; fd < 4096; ++fd) ::close(fd);
    if (!said) ::_exit(1);
    stay();
  }
  pid_t daemon = 0;
  if (::read(told[0], &daemon, sizeof daemon) != sizeof daemon) return cannot("start a daemon");
  (void)::waitpid(child, nullptr, 0);
  say(child_words(daemon));
  ::_exit(0);
}

/// os.closerange(3, END), but for the driver's; then files of the program's own by those numbers.
std::string close_range(const std::string& folder, int end) {
  for (int fd = 3; fd < end; ++fd) {
    char at[256] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (::readlink(link.c_str(), at, sizeof at - 1) < 0) continue;
    if (std::strncmp(at, "/memfd:", 7) != 0 && std::strncmp(at, "/dev/", 5) != 0) ::close(fd);
  }
  for (int number = 0;; ++number) {
    const std::string name = folder + "/by-number-" + std::to_string(number);
    const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || ::write(fd, "twelve bytes", 12) != 12) return cannot("make a file");
    if (fd >= end - 1) return "ok files=" + std::to_string(number + 1) + " flying=" + flying;
  }
}

/// The calls answer EPERM from here on, to every thread.
std::string forbid(const std::vector<std::string>& names) {
  static const std::map<std::string, unsigned> calls = {
      {"io_uring_setup", __NR_io_uring_setup},
      {"io_uring_enter", __NR_io_uring_enter},
      {"io_uring_register", __NR_io_uring_register},
      {"fallocate", __NR_fallocate},
      {"mmap", __NR_mmap}};
  std::vector<sock_filter> program{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const std::string& name : names) {
    const auto found = calls.find(name);
    if (found == calls.end()) return "cannot forbid " + name;
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, found->second, 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) != 0)
    return cannot("install a filter of system calls");
  return "ok";
}

/// The soft limit; "back": what it was.
std::string limit(const std::string& name, const std::string& value) {
  static const std::map<std::string, int> limits = {
      {"FSIZE", RLIMIT_FSIZE}, {"NOFILE", RLIMIT_NOFILE},   {"NPROC", RLIMIT_NPROC},
      {"AS", RLIMIT_AS},       {"MEMLOCK", RLIMIT_MEMLOCK}, {"DATA", RLIMIT_DATA}};
  static std::map<std::string, rlim_t> before;
  const auto found = limits.find(name);
  rlimit both{};
  if (found == limits.end() || ::getrlimit(static_cast<__rlimit_resource>(found->second), &both))
    return "cannot limit " + name;
  before.emplace(name, both.rlim_cur);
  both.rlim_cur = value == "back" ? before[name] : std::strtoull(value.c_str(), nullptr, 10);
  if (::setrlimit(static_cast<__rlimit_resource>(found->second), &both) != 0)
    return cannot("set a limit");
  return "ok";
}

/// Mappings up to the kernel's limit but `left`; "back": given back.
std::string use_up_maps(const std::string& left) {
  static std::byte* pages = nullptr;
  static size_t used = 0;
  constexpr size_t page = 4096, most = 4'000'000;
  if (left == "back") {
    if (pages) (void)::munmap(pages, most * page);
    pages = nullptr;
    return "ok";
  }
  void* at = ::mmap(nullptr, most * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                    -1, 0);
  if (at == MAP_FAILED) return cannot("reserve addresses");
  pages = static_cast<std::byte*>(at);
  // Every second page differs from its neighbours: two mappings more for each.
  for (used = 1; used < most; used += 2)
    if (::mprotect(pages + used * page, page, PROT_READ) != 0) break;
  if (used >= most) return "cannot meet vm.max_map_count";
  const size_t freed = std::strtoull(left.c_str(), nullptr, 10) / 2;
  for (size_t i = 0; i < freed && used > 2; ++i) {
    used -= 2;
    (void)::mprotect(pages + used * page, page, PROT_NONE);
  }
  return "ok maps=" + std::to_string(used);
}

/// Descriptors up to the limit but `left`; "back": closed.
std::string use_up_files(const std::string& left) {
  static std::vector<int> held;
  if (left != "back") {
    for (int fd; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) held.push_back(fd);
    if (errno != EMFILE) return cannot("open so many files");
  }
  size_t keep = 0;
  if (left != "back") {
    const size_t give = std::strtoull(left.c_str(), nullptr, 10);
    keep = held.size() > give ? held.size() - give : 0;
  }
  for (; held.size() > keep; held.pop_back()) ::close(held.back());
  return "ok files=" + std::to_string(keep);
}

/// A file of the program's own, by the least number that is free; it stays open.
std::string open_own(const std::string& name) {
  const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (fd < 0 || ::write(fd, "twelve bytes", 12) != 12) return cannot("make a file");
  return "ok number=" + std::to_string(fd);
}

}  // namespace

std::string in_flight(const std::string& folder) try {
  struct stat found {};
  if (::stat(folder.c_str(), &found) != 0) return {};
  std::ifstream in("/sys/dev/block/" + std::to_string(major(found.st_dev)) + ":" +
                   std::to_string(minor(found.st_dev)) + "/inflight");
  unsigned reads = 0, writes = 0;
  if (!(in >> reads >> writes)) return {};
  return std::to_string(reads + writes);
} catch (const std::bad_alloc&) {
  return {};
}

std::string act(const std::vector<std::string>& words, const std::string& requests) {
  const std::string& what = words[0];
  flying = requests;
  const auto word = [&](size_t i) { return i < words.size() ? words[i] : std::string(); };
  if (what == "fork") return fork_child();
  if (what == "vfork") return vfork_child();
  if (what == "exec") return exec_other();
  if (what == "daemon") return daemonize();
  if (what == "abort") {
    say("ok flying=" + flying);
    std::abort();
  }
  if (what == "closerange") return close_range(word(1), std::atoi(word(2).c_str()));
  if (what == "forbid") return forbid({words.begin() + 1, words.end()});
  if (what == "open") return open_own(word(1));
  if (what == "limit") return limit(word(1), word(2));
  if (what == "maps") return use_up_maps(word(1));
  if (what == "files") return use_up_files(word(1));
  return {};
}

}  // namespace firn::real_faults
