// The control socket: its place and permissions, who is answered, what a child of fork has of it,
// and what is left when a process ends or is killed.
#include "allocator/runtime/control.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "allocator/runtime/control_folder.h"

namespace firn {
namespace {

namespace fs = std::filesystem;

class Control : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/firn-control-test.XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    place_ = name;
    ASSERT_EQ(::setenv("XDG_RUNTIME_DIR", name, 1), 0);
  }
  void TearDown() override { fs::remove_all(place_); }

  /// (Left behind, as its threads may be late.)
  static ControlSocket* open(ControlSocket::Answer answer = [](const std::string& word) {
    return word == "stats" ? std::string(1 << 20, 'x') : std::string();
  }) {
    Result<std::unique_ptr<ControlSocket>> made = ControlSocket::open(std::move(answer));
    EXPECT_TRUE(made) << (made ? "" : made.error().text);
    return made ? made->release() : nullptr;
  }

  /// All that comes until the connection ends.
  static std::string ask(int fd, const std::string& line) {
    (void)::send(fd, line.data(), line.size(), MSG_NOSIGNAL);  // (it may be closed already)
    std::string text;
    for (;;) {
      pollfd polled{fd, POLLIN, 0};
      EXPECT_EQ(::poll(&polled, 1, 60'000), 1) << "no answer";
      char buffer[4096];
      const ssize_t got = ::recv(fd, buffer, sizeof buffer, 0);
      if (got <= 0) break;
      text.append(buffer, static_cast<size_t>(got));
    }
    ::close(fd);
    return text;
  }
  static std::string ask(const std::string& path, const std::string& line) {
    Result<int> fd = connect_control(path);
    EXPECT_TRUE(fd) << fd.error().text;
    return fd ? ask(*fd, line) : "";
  }
  std::string folder() const { return place_ + "/firn"; }

  std::string place_;
};

TEST_F(Control, answers_words_and_ends) {
  ControlSocket* control = open();
  EXPECT_EQ(control->path(), control_path(folder(), ::getpid()));
  struct stat found{};
  ASSERT_EQ(::stat(folder().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0700u);
  ASSERT_EQ(::stat(control->path().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0600u);
  EXPECT_EQ(control_sockets(folder()), std::vector<pid_t>{::getpid()});
  EXPECT_EQ(ask(control->path(), "stats\n").size(), size_t{1} << 20);
  EXPECT_EQ(ask(control->path(), "nothing\n"), "");
  EXPECT_EQ(ask(control->path(), std::string(1000, 'a')), "");
  control->stop();
  EXPECT_TRUE(fs::is_empty(folder()));
  EXPECT_FALSE(connect_control(control->path()));
}

TEST_F(Control, a_caller_who_says_nothing_keeps_nobody_waiting) {
  ControlSocket* control = open();
  Result<int> silent = connect_control(control->path());
  ASSERT_TRUE(silent);
  EXPECT_EQ(ask(control->path(), "stats\n").size(), size_t{1} << 20);
  control->stop();
  ::close(*silent);
}

TEST_F(Control, further_callers_are_turned_away) {
  std::mutex busy;
  std::unique_lock held(busy);
  std::atomic<unsigned> answering{0};
  ControlSocket* control = open([&](const std::string&) {
    ++answering;
    std::lock_guard wait(busy);
    return std::string("done");
  });
  std::vector<int> callers;
  for (unsigned i = 0; i < 8; ++i) {
    Result<int> fd = connect_control(control->path());
    ASSERT_TRUE(fd) << fd.error().text;
    ASSERT_EQ(::send(*fd, "x\n", 2, 0), 2);
    callers.push_back(*fd);
  }
  while (answering < 8) std::this_thread::yield();
  EXPECT_EQ(ask(control->path(), "x\n"), "");
  held.unlock();
  for (const int fd : callers) {
    pollfd polled{fd, POLLIN, 0};
    ASSERT_EQ(::poll(&polled, 1, 60'000), 1);
    char buffer[8];
    EXPECT_EQ(::recv(fd, buffer, sizeof buffer, 0), 4);
    ::close(fd);
  }
  control->stop();
}

/// Runs `child` in a fork; its status.
template <class Child>
int in_child(Child&& child) {
  const pid_t process = ::fork();
  if (process == 0) ::_exit(child());
  int status = 0;
  EXPECT_EQ(::waitpid(process, &status, 0), process);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST_F(Control, a_killed_process_leaves_a_name_that_is_tidied) {
  int status = in_child([] {
    open();
    ::raise(SIGKILL);
    return 0;
  });
  EXPECT_EQ(status, 128 + SIGKILL);
  std::vector<pid_t> left = control_sockets(folder());
  ASSERT_EQ(left.size(), 1u);
  Result<int> dead = connect_control(control_path(folder(), left[0]));
  ASSERT_FALSE(dead);
  EXPECT_EQ(dead.error().code, Code::not_supported);
  EXPECT_TRUE(fs::is_empty(folder()));

  in_child([] {
    open();
    ::raise(SIGKILL);
    return 0;
  });
  EXPECT_FALSE(fs::is_empty(folder()));
  ControlSocket* control = open();  // who comes next tidies too
  EXPECT_EQ(control_sockets(folder()), std::vector<pid_t>{::getpid()});
  control->stop();
}

TEST_F(Control, a_forked_child_owns_nothing_of_it) {
  int pipes[2], told[2];
  ASSERT_EQ(::pipe(pipes), 0);
  ASSERT_EQ(::pipe(told), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    (void)open();
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(pipes[1]);
      const char yes = 1;
      (void)!::write(told[1], &yes, 1);
      char wait = 0;
      (void)!::read(pipes[0], &wait, 1);  // until the test is over
      ::_exit(0);
    }
    char wait = 0;
    (void)!::read(told[0], &wait, 1);
    ::raise(SIGKILL);
  }
  ASSERT_EQ(::waitpid(parent, nullptr, 0), parent);
  // The child lives, and listens to nobody.
  Result<int> dead = connect_control(control_path(folder(), parent));
  ASSERT_FALSE(dead);
  EXPECT_EQ(dead.error().code, Code::not_supported);
  ::close(pipes[1]);
}

TEST_F(Control, a_program_that_closes_everything_ends_it_alone) {
  const pid_t program = ::fork();
  if (program == 0) {
    ControlSocket* control = open();
    for (int fd = 3; fd < 1024; ++fd) ::close(fd);
    int mine[2];
    bool kept = ::socketpair(AF_UNIX, SOCK_STREAM, 0, mine) == 0;
    // Every number, also its own. (accept() holds one of the low ones while it waits.)
    for (int fd = mine[1] + 1; fd < 1024; ++fd) (void)::dup2(mine[0], fd);
    control->stop();
    kept = kept && ::send(mine[1], "x", 1, MSG_NOSIGNAL) == 1;  // not shut down
    ::_exit(kept ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(program, &status, 0), program);
  EXPECT_EQ(status, 0);
}

TEST_F(Control, a_folder_that_others_may_enter_is_not_used) {
  ASSERT_EQ(::mkdir(folder().c_str(), 0700), 0);
  ASSERT_EQ(::chmod(folder().c_str(), 0755), 0);
  EXPECT_FALSE(make_control_folder(folder()));
  ControlSocket* control = open();  // in another one
  EXPECT_TRUE(fs::is_empty(folder()));
  EXPECT_NE(control->path(), control_path(folder(), ::getpid()));
  control->stop();
}

TEST_F(Control, another_users_process_is_not_answered_nor_heard) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  constexpr uid_t nobody = 65534;
  ControlSocket* control = open();
  // As if the folder did not keep them out.
  ASSERT_EQ(::chmod(place_.c_str(), 0777), 0);
  ASSERT_EQ(::chmod(folder().c_str(), 0777), 0);
  ASSERT_EQ(::chmod(control->path().c_str(), 0666), 0);
  const std::string path = control->path();
  const int status = in_child([&] {
    if (::setuid(nobody) != 0) return 2;
    if (connect_control(path)) return 3;  // it does not take root's word
    // And one who does is not answered.
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return 4;
    return ask(fd, "stats\n").empty() ? 0 : 5;
  });
  EXPECT_EQ(status, 0);
  control->stop();
}

}  // namespace
}  // namespace firn
