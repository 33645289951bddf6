#include "firn/said.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

using namespace firn;
using namespace std::chrono_literals;

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

TEST(Said, of_too_many_lines_the_number_is_said) {
  Pipe pipe;
  const size_t before = pipe.fill();
  Said said(pipe.ends[1]);
  for (size_t i = 0; i < Said::lines_most + 7; ++i) said.say("line");
  (void)pipe.read(before);
  said.write();
  const std::string text = pipe.rest();
  EXPECT_NE(text.find("firn: 7 more lines were not said"), std::string::npos) << text;
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
