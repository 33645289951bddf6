// Who shares a place: counted, across processes, gone with them however they die, nothing left.
#include "firn/neighbours.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace firn {
namespace {

class Place {
 public:
  Place() {
    std::string name = std::filesystem::temp_directory_path().string() + "/firn-XXXXXX";
    if (!::mkdtemp(name.data())) std::abort();
    path = name;
  }
  ~Place() {
    EXPECT_TRUE(std::filesystem::is_empty(path)) << "left behind";
    std::filesystem::remove_all(path);
  }
  std::string path;
};

/// A process that has joined, until it is killed.
class Other {
 public:
  explicit Other(const std::string& place) {
    int joined[2];
    if (::pipe(joined) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      Neighbours here = Neighbours::join({place});
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
  Place place;
  Neighbours one = Neighbours::join({place.path});
  EXPECT_EQ(one.count(), 1u);
  {
    Neighbours two = Neighbours::join({place.path});
    Neighbours moved = std::move(two);
    EXPECT_EQ(one.count(), 2u);
    EXPECT_EQ(moved.count(), 2u);
  }
  EXPECT_EQ(one.count(), 1u);
}

TEST(Neighbours, KilledProcessesAreGoneAtOnce) {
  Place place;
  Neighbours here = Neighbours::join({place.path});
  std::vector<Other> others;
  for (int i = 0; i < 9; ++i) others.emplace_back(place.path);
  EXPECT_EQ(here.count(), 10u);
  for (int kind : {SIGKILL, SIGKILL, SIGSEGV, SIGTERM}) {
    others.back().end(kind);
    others.pop_back();
    EXPECT_EQ(here.count(), others.size() + 1);
  }
  // A stopped process is alive, and holds nobody up.
  ::kill(others.back().pid(), SIGSTOP);
  Neighbours late = Neighbours::join({place.path});
  EXPECT_EQ(late.count(), others.size() + 2);
}

TEST(Neighbours, AForkedChildIsNoneOfItsOwn) {
  Place place;
  Neighbours here = Neighbours::join({place.path});
  const pid_t child = ::fork();
  if (child == 0)
    while (true) ::pause();
  EXPECT_EQ(here.count(), 1u);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(Neighbours, WhereThereIsNoPlaceThereIsOne) {
  EXPECT_EQ(Neighbours::join({}).count(), 1u);
  EXPECT_EQ(Neighbours::join({"", "/does/not/exist", "/etc/passwd"}).count(), 1u);
}

TEST(Neighbours, ClosingTheDirectoryElsewhereChangesNothing) {
  Place place;
  Neighbours here = Neighbours::join({place.path}), other = Neighbours::join({place.path});
  for (const auto& entry : std::filesystem::directory_iterator(place.path)) (void)entry;
  EXPECT_EQ(here.count(), 2u);
}

TEST(Neighbours, TheDirectoriesOfSysfsAndTheRootServeToo) {
  // (Others on this machine may be there.)
  for (const char* place : {"/", "/sys/class/block"}) {
    if (!std::filesystem::exists(place)) continue;
    Neighbours here = Neighbours::join({place});
    const unsigned before = here.count();
    std::vector<Neighbours> more;
    for (int i = 0; i < 5; ++i) more.push_back(Neighbours::join({place}));
    EXPECT_GE(here.count(), 6u) << place;
    EXPECT_GE(before, 1u);
  }
}

TEST(Neighbours, CountAsAModelDoes) {
  std::vector<Place> places(3);
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
        for (size_t i = 0; i < places.size(); ++i)
          if (random() % 2) {
            at.push_back(i);
            paths.push_back(places[i].path);
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
