// Descriptors in a program that closes what it did not open, forks, or has few numbers.
#include "firn/descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "tests/backing/store/children.h"

namespace {
thread_local bool no_memory = false;
}

void* operator new(size_t bytes) {
  void* data = no_memory ? nullptr : std::malloc(bytes);
  if (!data) throw std::bad_alloc();
  return data;
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }

namespace firn {
namespace {

using testing_store::cannot;

int opened() { return ::open("/dev/null", O_RDWR); }
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

/// 0: `body` held in a child; else the number of what did not.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

TEST(Descriptor, MovesOutOfTheWay) {
  const int fd = opened();
  Descriptor one(fd);
  EXPECT_GE(one.get(), 512);
  EXPECT_TRUE(one && one.ours());
  EXPECT_FALSE(is_open(fd)) << "the first number is free again";
  EXPECT_EQ(::fcntl(one.get(), F_GETFD), FD_CLOEXEC);
  const int number = one.get();
  { Descriptor moved(std::move(one)); EXPECT_EQ(moved.get(), number); }
  EXPECT_FALSE(one);
  EXPECT_FALSE(is_open(number));
  errno = ENOENT;
  Descriptor none(-1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_FALSE(none || none.ours());
  EXPECT_EQ(none.get(), -1);
}

TEST(Descriptor, GoesAsHighAsTheLimitLets) {
  for (const rlim_t most : {rlim_t{256}, rlim_t{16}})
    EXPECT_EQ(in_child([most] {
      const rlimit limit{most, most};
      if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
      Descriptor one(opened());
      if (!one.ours() || one.get() < static_cast<int>(most) / 2) return 2;
      std::vector<Descriptor> all;  // until there is no number left: each works
      for (int fd = opened(); fd >= 0; fd = opened()) all.emplace_back(fd);
      for (const Descriptor& each : all)
        if (!each.ours()) return 3;
      return all.size() > 4 ? 0 : 4;
    }), 0) << most;
}

TEST(Descriptor, LeavesTheStandardStreamsAlone) {
  EXPECT_EQ(in_child([] {
    for (int fd : {0, 1, 2}) ::close(fd);
    Descriptor high(opened());
    const rlimit limit{8, 8};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
    Descriptor low(opened());
    return high.get() > 2 && low.get() > 2 && low.ours() ? 0 : 2;
  }), 0);
}

TEST(Descriptor, KnowsWhenTheProgramHasClosedIt) {
  Descriptor one(opened());
  const int number = one.get();
  ::close(number);
  EXPECT_FALSE(one.ours());
  // The same file, opened by the program: the same inode, and not ours.
  const int theirs = opened();
  ASSERT_EQ(::dup2(theirs, number), number);
  EXPECT_FALSE(one.ours());
  one = Descriptor();
  EXPECT_TRUE(is_open(number)) << "the program's";
  ::close(number);
  ::close(theirs);
}

TEST(Descriptor, AnInodeThatComesAgainIsNotOurs) {
  std::string name = std::filesystem::current_path().string() + "/firn-XXXXXX";
  const int first = ::mkstemp(name.data());
  ASSERT_GE(first, 0);
  ::unlink(name.c_str());
  struct stat before {}, after {};
  ASSERT_EQ(::fstat(first, &before), 0);
  Descriptor one(first);
  const int number = one.get();
  ::close(number);
  std::vector<int> theirs;
  do {
    theirs.push_back(::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
    ASSERT_GE(theirs.back(), 0);
    ::unlink(name.c_str());
    ASSERT_EQ(::fstat(theirs.back(), &after), 0);
  } while (after.st_ino != before.st_ino && theirs.size() < 200);
  ASSERT_EQ(::dup2(theirs.back(), number), number);
  EXPECT_FALSE(one.ours());
  one = Descriptor();
  for (const int fd : theirs) ::close(fd);
  EXPECT_TRUE(is_open(number));
  ::close(number);
  if (after.st_ino != before.st_ino) GTEST_SKIP() << "this file system gives numbers out in turn";
}

TEST(Descriptor, WhatSharesAnInodeIsToldApart) {
  Descriptor one(::eventfd(0, 0));
  const int theirs = ::eventfd(0, 0);
  ASSERT_EQ(::dup2(theirs, one.get()), one.get());
  EXPECT_FALSE(one.ours());
  const int number = one.get();
  one = Descriptor();
  EXPECT_TRUE(is_open(number));
  ::close(number);
  ::close(theirs);
}

TEST(Descriptor, AForkedChildHasNone) {
  Descriptor kept(opened()), closed(opened());
  std::vector<Descriptor> many;
  for (int i = 0; i < 200; ++i) many.emplace_back(opened());
  const int theirs = opened();
  ASSERT_EQ(::dup2(theirs, closed.get()), closed.get());  // the program's from here on
  const int kept_number = kept.get(), closed_number = closed.get();
  EXPECT_EQ(in_child([&] {
    if (kept || kept.ours() || is_open(kept_number)) return 1;
    if (!is_open(closed_number)) return 2;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
      if (const int fd = std::stoi(entry.path().filename()); fd >= 512 && fd != closed_number)
        return 3;
    Descriptor own(opened());  // and may have its own
    if (!own.ours()) return 4;
    many.clear();  // the parent's: nothing of the child's
    if (!own.ours() || Descriptor::live() != 1) return 5;
    return in_child([&own] { return own ? 6 : 0; });
  }), 0);
  EXPECT_TRUE(kept.ours());
  for (const Descriptor& each : many) EXPECT_TRUE(each.ours());
  ::close(theirs);
}

TEST(Descriptor, EntriesAreUsedAgainByManyThreads) {
  const unsigned before = Descriptor::live();
  std::atomic<bool> wrong{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&wrong, t] {
      std::vector<Descriptor> held(20);
      for (int i = 0; i < 2000; ++i) {
        Descriptor& slot = held[static_cast<size_t>(i * (t + 3) % 20)];
        slot = Descriptor(opened());
        if (!slot.ours()) wrong = true;
      }
    });
  for (int i = 0; i < 20; ++i)  // a child finds each either closed or not yet known
    EXPECT_EQ(in_child([] { return Descriptor::live() == 0 ? 0 : 1; }), 0);
  for (std::thread& each : threads) each.join();
  EXPECT_FALSE(wrong);
  EXPECT_EQ(Descriptor::live(), before);
}

TEST(Descriptor, WithoutMemoryIsClosed) {
  std::vector<Descriptor> held;
  held.reserve(300);
  int refused = 0;
  while (held.size() < 300 && refused == 0) {  // sooner or later the table has to grow
    const int fd = opened();
    no_memory = true;
    try {
      held.push_back(Descriptor(fd));
    } catch (const std::bad_alloc&) {
      refused = fd;
    }
    no_memory = false;
  }
  ASSERT_GT(refused, 0);
  EXPECT_FALSE(is_open(refused));
}

/// The numbers that are open in the calling thread's table.
std::vector<int> open_here() {
  std::vector<int> numbers;
  for (int fd = 0; fd < 2048; ++fd)
    if (is_open(fd)) numbers.push_back(fd);
  return numbers;
}

/// A thread with a table of its own, beside a program that closes and opens what it likes.
int takes_a_table() {
  ::alarm(30);
  const Descriptor file(::open("/tmp", O_TMPFILE | O_RDWR, 0600));
  int ends[2];
  if (!file || file.reopens() != 0 || ::pipe(ends) != 0) return 1;
  const std::vector<int> before = open_here();
  int wrong = 0, kept = -1;
  std::atomic<int> step{0};
  std::thread alone([&] {
    if (!take_empty_table() || !has_own_table()) wrong = 2;
    else if (!open_here().empty()) wrong = 3;
    else if (kept = file.reopened(O_RDWR); kept < 0 || ::write(kept, "bytes", 5) != 5) wrong = 4;
    step = 1;
    while (step == 1) std::this_thread::yield();
    char back[5];
    if (!wrong && ::pread(kept, back, 5, 0) != 5) wrong = 5;  // whatever has been closed
    if (!wrong && (file.reopened(O_RDWR) >= 0 || errno != EBADF)) wrong = 6;
    if (!wrong && open_here() != std::vector<int>{kept}) wrong = 7;
    std::thread child([&] {  // has the table of who started it
      if (!wrong && open_here() != std::vector<int>{kept}) wrong = 8;
    });
    child.join();
  });
  while (step == 0) std::this_thread::yield();
  if (!wrong && (open_here() != before || has_own_table())) wrong = 9;  // nobody else's are closed
  const int number = file.get();
  ::close(number);
  if (::dup2(opened(), number) != number) wrong = 10;  // the program's, by now
  if (!wrong && file.reopens() != EBADF) wrong = 11;
  ::close(ends[1]);
  char byte = 0;
  if (!wrong && ::read(ends[0], &byte, 1) != 0) wrong = 12;  // the thread holds no end of it
  step = 2;
  alone.join();
  return wrong;
}

TEST(Descriptor, AThreadHasATableOfItsOwn) { EXPECT_EQ(in_child(takes_a_table), 0); }

TEST(Descriptor, WithoutATableOfItsOwnAllIsAsBefore) {
  for (const int error : {ENOSYS, EPERM}) {
    const int told = in_child([&] {
      if (!testing_store::refuse_call(SYS_close_range, error)) return cannot;
      const std::vector<int> before = open_here();
      bool taken = true;
      int why = 0;
      std::thread alone([&] {
        taken = take_empty_table() || has_own_table();
        why = errno;
      });
      alone.join();
      return taken || why != error ? 1 : open_here() != before ? 2 : 0;
    });
    if (told == cannot) GTEST_SKIP() << "not permitted here";
    EXPECT_EQ(told, 0);
  }
}

}  // namespace
}  // namespace firn
