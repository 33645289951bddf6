#include "firn/said.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "tests/scarce_memory.h"

using namespace firn;
using namespace std::chrono_literals;

namespace {

/// Does something just after this thread's nth unlock from now on.
struct AfterUnlock {
  int left = 0;
  std::function<void()> act;
};
thread_local AfterUnlock after_unlock;

}  // namespace

extern "C" int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  static const auto real = reinterpret_cast<int (*)(pthread_mutex_t*)>(
      ::dlsym(RTLD_NEXT, "pthread_mutex_unlock"));
  const int result = real(mutex);
  if (after_unlock.left > 0 && --after_unlock.left == 0) after_unlock.act();
  return result;
}

namespace {

/// A pipe as stderr may be one; full: nobody has read it so far.
struct Pipe {
  Pipe() { EXPECT_EQ(::pipe(ends), 0); }
  ~Pipe() {
    ::close(ends[0]);
    if (ends[1] >= 0) ::close(ends[1]);
  }
  size_t fill() {
    const int flags = ::fcntl(ends[1], F_GETFL);
    ::fcntl(ends[1], F_SETFL, flags | O_NONBLOCK);
    size_t bytes = 0;
    const std::string some(4096, '.');
    for (ssize_t written; (written = ::write(ends[1], some.data(), some.size())) > 0;)
      bytes += static_cast<size_t>(written);
    ::fcntl(ends[1], F_SETFL, flags);
    return bytes;
  }
  std::string read(size_t bytes) {
    std::string text(bytes, '\0');
    size_t have = 0;
    while (have < bytes) {
      const ssize_t got = ::read(ends[0], &text[have], bytes - have);
      if (got <= 0) break;
      have += static_cast<size_t>(got);
    }
    text.resize(have);
    return text;
  }
  std::string rest() {
    ::close(std::exchange(ends[1], -1));
    return read(1 << 20);
  }
  int ends[2];
};

TEST(Said, lines_come_whole_and_in_order) {
  Pipe pipe;
  Said said(pipe.ends[1]);
  EXPECT_FALSE(said.waits());
  said.say("one");
  said.say("two");
  EXPECT_TRUE(said.waits());
  said.write();
  EXPECT_FALSE(said.waits());
  EXPECT_EQ(pipe.rest(), "one\ntwo\n");
}

TEST(Said, nobody_waits_for_who_does_not_read) {
  Pipe pipe;
  const size_t before = pipe.fill();
  Said said(pipe.ends[1]);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) {
    said.say("line " + std::to_string(i));
    said.write();
  }
  said.write(50ms);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  EXPECT_TRUE(said.waits());
  EXPECT_EQ(pipe.read(before).size(), before);
  said.write();
  const std::string text = pipe.rest();
  EXPECT_EQ(text.substr(0, 14), "line 0\nline 1\n");
  EXPECT_NE(text.find("line 99\n"), std::string::npos);
}

TEST(Said, who_reads_late_is_given_the_chance) {
  Pipe pipe;
  const size_t before = pipe.fill();
  Said said(pipe.ends[1]);
  said.say("late");
  std::thread reader([&] { EXPECT_EQ(pipe.read(before).size(), before); });
  said.write(10s);
  reader.join();
  EXPECT_FALSE(said.waits());
  EXPECT_EQ(pipe.rest(), "late\n");
}

TEST(Said, the_first_line_without_memory_is_kept) {
  Pipe pipe;
  Said said(pipe.ends[1]);
  const std::string first(5000, '1'), other(5000, '2');
  for (int day = 0; day < 2; ++day) {
    test::memory_left = 0;
    said.say(first);
    said.say(other);
    said.write();  // what can be written without memory is
    test::memory_left = -1;
    const std::string text = pipe.read(1024);
    EXPECT_EQ(text, std::string(1023, '1') + "\n");
    said.write();
    EXPECT_FALSE(said.waits());
    const std::string count =
        "firn: 1 more lines were dropped: stderr was blocked, or memory was short\n";
    EXPECT_EQ(pipe.read(count.size()), count);
  }
  said.say("as before");
  said.write();
  EXPECT_EQ(pipe.rest(), "as before\n");
}

TEST(Said, of_too_many_lines_the_number_is_said) {
  Pipe pipe;
  const size_t before = pipe.fill();
  Said said(pipe.ends[1]);
  for (size_t i = 0; i < Said::lines_most + 7; ++i) said.say("line");
  (void)pipe.read(before);
  said.write();
  const std::string text = pipe.rest();
  EXPECT_NE(text.find("firn: 7 more lines were dropped"), std::string::npos) << text;
}

TEST(Said, long_lines_come_whole) {
  Pipe pipe;
  Said said(pipe.ends[1]);
  const std::string line(20'000, 'x');
  said.say(line);
  said.write();
  EXPECT_EQ(pipe.rest(), line + "\n");
}

TEST(Said, nothing_is_wrong_with_a_closed_descriptor) {
  Pipe pipe;
  ::close(pipe.ends[1]);
  Said said(std::exchange(pipe.ends[1], -1));
  Said none(-1);
  said.say("nobody");
  said.write();
  EXPECT_FALSE(said.waits());
  none.say("nobody");
  none.write(1ms);
}

TEST(Said, who_no_longer_reads_ends_nobody) {  // (SIGPIPE would, where the program lets it)
  int ends[2], sockets[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  ::close(ends[0]);
  ::close(sockets[0]);
  for (const int fd : {ends[1], sockets[1]}) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::signal(SIGPIPE, SIG_DFL);
      Said said(fd);
      said.say("nobody");
      said.write(1ms);
      ::_exit(said.waits() ? 1 : 0);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "signal " << WTERMSIG(status);
    ::close(fd);
  }
}

/// A terminal is writable, by poll(), with room for less than a line.
TEST(Said, nobody_waits_for_a_terminal_that_is_nearly_full) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || ::grantpt(master) != 0 || ::unlockpt(master) != 0)
    GTEST_SKIP() << "no pseudo terminal";
  const int terminal = ::open(::ptsname(master), O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);  // who waits is ended
    Said said(terminal);
    for (int i = 0; i < 2'000; ++i) {
      said.say(std::string(99, 'x'));
      said.write();
    }
    ::_exit(said.waits() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "signal " << WTERMSIG(status);
  ::close(terminal);
  ::close(master);
}

TEST(Said, no_line_is_left_over) {  // by one who found another writing
  for (int number = 1; number <= 6; ++number) {
    Pipe pipe;
    Said said(pipe.ends[1]);
    after_unlock.left = number;
    after_unlock.act = [&said] {
      std::thread([&said] {
        said.say("second");
        said.write();
      }).join();
    };
    said.say("first");
    said.write();
    const bool came = after_unlock.left <= 0;
    after_unlock.left = 0;
    after_unlock.act = {};
    EXPECT_FALSE(said.waits()) << "after unlock " << number;
    EXPECT_EQ(pipe.rest(), came ? "first\nsecond\n" : "first\n") << "after unlock " << number;
  }
}

TEST(Said, a_forked_child_does_not_say_it_again) {
  Said::of_process().say("of the parent's");
  const pid_t child = ::fork();
  if (child == 0) ::_exit(Said::of_process().waits() ? 1 : 0);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(Said::of_process().waits());
  Said::of_process().write(1s);
}

}  // namespace
