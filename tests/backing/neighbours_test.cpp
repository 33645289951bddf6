// Processes that share a folder: counted, gone with them however they die, nothing left.
#include "firn/neighbours.h"

#include <gtest/gtest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {
unsigned calls = 0;  // of fcntl, that ask for somebody's lock
}

// The executable's own, for the count's.
extern "C" int fcntl(int fd, int command, ...) {
  va_list more;
  va_start(more, command);
  void* words = va_arg(more, void*);
  va_end(more);
  calls += command == F_OFD_GETLK;
  return static_cast<int>(::syscall(SYS_fcntl, fd, command, words));
}

namespace firn {
namespace {

class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path().string() + "/firn-XXXXXX";
    if (!::mkdtemp(name.data())) std::abort();
    path = name;
  }
  ~Folder() {
    EXPECT_TRUE(std::filesystem::is_empty(path)) << "left behind";
    std::filesystem::remove_all(path);
  }
  std::string path;
};

/// A process that has joined, until it is killed.
class Other {
 public:
  explicit Other(const std::string& folder) {
    int joined[2];
    if (::pipe(joined) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      Neighbours here = Neighbours::join({folder});
      if (::write(joined[1], "j", 1) != 1) ::_exit(1);
      while (true) ::pause();
    }
    char said = 0;
    if (::read(joined[0], &said, 1) != 1) std::abort();
    ::close(joined[0]);
    ::close(joined[1]);
  }
  Other(Other&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  ~Other() { end(SIGKILL); }
  void end(int kind) {
    if (pid_ == 0) return;
    ::kill(pid_, kind);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

TEST(Neighbours, AreCountedAndLeave) {
  Folder folder;
  Neighbours one = Neighbours::join({folder.path});
  EXPECT_EQ(one.count(), 1u);
  {
    Neighbours two = Neighbours::join({folder.path});
    Neighbours moved = std::move(two);
    EXPECT_EQ(one.count(), 2u);
    EXPECT_EQ(moved.count(), 2u);
  }
  EXPECT_EQ(one.count(), 1u);
}

TEST(Neighbours, KilledProcessesAreGoneAtOnce) {
  Folder folder;
  Neighbours here = Neighbours::join({folder.path});
  std::vector<Other> others;
  for (int i = 0; i < 9; ++i) others.emplace_back(folder.path);
  EXPECT_EQ(here.count(), 10u);
  for (int kind : {SIGKILL, SIGKILL, SIGSEGV, SIGTERM}) {
    others.back().end(kind);
    others.pop_back();
    EXPECT_EQ(here.count(), others.size() + 1);
  }
  // A stopped process is alive, and holds nobody up.
  ::kill(others.back().pid(), SIGSTOP);
  Neighbours late = Neighbours::join({folder.path});
  EXPECT_EQ(late.count(), others.size() + 2);
}

TEST(Neighbours, AForkedChildIsNoneAndKeepsNoLock) {
  Folder folder;
  Neighbours other = Neighbours::join({folder.path});
  pid_t lives = 0;
  {
    Neighbours here = Neighbours::join({folder.path});
    int told[2];
    ASSERT_EQ(::pipe(told), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      (void)!::write(told[1], "y", 1);
      while (true) ::pause();
    }
    char said = 0;
    EXPECT_EQ(::read(told[0], &said, 1), 1);
    ::close(told[0]);
    ::close(told[1]);
    EXPECT_EQ(here.count(), 2u);
    lives = child;
  }
  EXPECT_EQ(other.count(), 1u) << "its parent has left, though it lives";
  ::kill(lives, SIGKILL);
  ::waitpid(lives, nullptr, 0);
}

/// Locks of another user, until it is ended: 900 by 900 open descriptions.
class Stranger {
 public:
  explicit Stranger(const std::string& folder) {
    int joined[2];
    if (::pipe(joined) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      const rlimit many{2000, 2000};
      bool done = ::setrlimit(RLIMIT_NOFILE, &many) == 0 && ::setgid(65534) == 0 &&
                  ::setuid(65534) == 0;
      for (int i = 0; i < 900 && done; ++i) {
        const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY);
        struct flock words {};
        words.l_type = F_RDLCK;
        words.l_start = (off_t{1} << 50) * (i + 1);
        words.l_len = 1;
        done = fd >= 0 && ::fcntl(fd, F_OFD_SETLK, &words) == 0;
      }
      (void)!::write(joined[1], done ? "y" : "n", 1);
      while (true) ::pause();
    }
    char said = 0;
    locks = ::read(joined[0], &said, 1) == 1 && said == 'y';
    ::close(joined[0]);
    ::close(joined[1]);
  }
  ~Stranger() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  bool locks = false;

 private:
  pid_t pid_ = 0;
};

TEST(Neighbours, AnotherUsersLocksCountAsManyAsOnesOwnAtMost) {
  if (::geteuid() != 0) GTEST_SKIP() << "another user's process needs root";
  Folder folder;
  ASSERT_EQ(::chmod(folder.path.c_str(), 0755), 0);
  Neighbours here = Neighbours::join({folder.path});
  EXPECT_EQ(here.count(), 1u);
  std::vector<Neighbours> own;
  {
    Stranger stranger(folder.path);
    ASSERT_TRUE(stranger.locks);
    calls = 0;
    EXPECT_EQ(here.count(), 2u) << "half the share, not a nine hundredth";
    EXPECT_LE(calls, 10u);
    for (int i = 0; i < 7; ++i) own.push_back(Neighbours::join({folder.path}));
    EXPECT_EQ(here.count(), 16u);
    while (own.size() < 100) own.push_back(Neighbours::join({folder.path}));
    calls = 0;
    EXPECT_EQ(here.count(), 2 * Neighbours::count_most);
    EXPECT_LE(calls, 200u);
  }
  while (own.size() > 4) own.pop_back();
  EXPECT_EQ(here.count(), 5u) << "one's own are counted one by one";
}

// (A folder of one's own is nobody else's: all that is counted there is.)
TEST(Neighbours, InADirectoryOfOnesOwnNobodyElseCounts) {
  if (::geteuid() != 0) GTEST_SKIP() << "another user's process needs root";
  Folder folder;
  Neighbours here = Neighbours::join({folder.path});
  Stranger stranger(folder.path);
  EXPECT_FALSE(stranger.locks);
  EXPECT_EQ(here.count(), 1u);
}

TEST(Neighbours, AClosedDescriptorCountsNobody) {
  Folder folder;
  Neighbours here = Neighbours::join({folder.path}), other = Neighbours::join({folder.path});
  EXPECT_EQ(here.count(), 2u);
  for (int fd = 3; fd < 1024; ++fd) ::close(fd);
  EXPECT_EQ(here.count(), 1u);
}

TEST(Neighbours, WhereThereIsNoFolderThereIsOne) {
  EXPECT_EQ(Neighbours::join({}).count(), 1u);
  EXPECT_EQ(Neighbours::join({"", "/does/not/exist", "/etc/passwd"}).count(), 1u);
}

TEST(Neighbours, ClosingTheDirectoryElsewhereChangesNothing) {
  Folder folder;
  Neighbours here = Neighbours::join({folder.path}), other = Neighbours::join({folder.path});
  for (const auto& entry : std::filesystem::directory_iterator(folder.path)) (void)entry;
  EXPECT_EQ(here.count(), 2u);
}

TEST(Neighbours, TheDirectoriesOfSysfsAndTheRootServeToo) {
  // (Others on this machine may be there.)
  for (const char* folder : {"/", "/sys/class/block"}) {
    if (!std::filesystem::exists(folder)) continue;
    Neighbours here = Neighbours::join({folder});
    const unsigned before = here.count();
    std::vector<Neighbours> more;
    for (int i = 0; i < 5; ++i) more.push_back(Neighbours::join({folder}));
    EXPECT_GE(here.count(), 6u) << folder;
    EXPECT_GE(before, 1u);
  }
}

TEST(Neighbours, CountAsAModelDoes) {
  std::vector<Folder> folders(3);
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    struct Member {
      std::vector<size_t> at;
      Neighbours neighbours;
    };
    std::vector<std::unique_ptr<Member>> members;
    for (int step = 0; step < 60; ++step) {
      if (members.empty() || random() % 3 != 0) {
        std::vector<size_t> at;
        std::vector<std::string> paths;
        for (size_t i = 0; i < folders.size(); ++i)
          if (random() % 2) {
            at.push_back(i);
            paths.push_back(folders[i].path);
          }
        members.emplace_back(new Member{at, Neighbours::join(paths)});
      } else {
        members.erase(members.begin() + static_cast<ptrdiff_t>(random() % members.size()));
      }
      std::map<size_t, unsigned> count;
      for (const auto& member : members)
        for (size_t i : member->at) ++count[i];
      for (const auto& member : members) {
        unsigned most = 1;
        for (size_t i : member->at) most = std::max(most, count[i]);
        ASSERT_EQ(member->neighbours.count(), most) << "seed " << seed << " step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace firn
