// The store in a program that closes descriptors which it did not open, and then opens files of its
// own that get the same numbers; that forks, and is killed while the child lives; that is started
// without standard streams. Never a byte into a file of the program's.
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include <csignal>
#include <map>

#include "firn/neighbours.h"
#include "firn/said.h"
#include "tests/backing/store/store_descriptors.h"

namespace firn::testing_store {
namespace {

TEST_P(StoreDescriptors, closed_while_idle) {
  expect_child_ok([&] {
    Words words;
    OwnFiles own(program_.path());
    CHECK_CHILD(open() && attach() && fill_slots());
    CHECK_CHILD(own.take_numbers(numbers));
    fill(piece(0), 200);
    const Error write = write_now(store(), wall_clock(), slots_[0], piece(0)).error;
    const Error other = read(1);
    CHECK_CHILD(own.untouched());
    if (lasts()) {
      CHECK_CHILD(write.code == Code::ok && other.code == Code::ok && holds(piece(pieces), 1));
      CHECK_CHILD(read(0).code == Code::ok && holds(piece(pieces), 200));
    } else {
      CHECK_CHILD(write.code == Code::lost && other.code == Code::lost);
      CHECK_CHILD(other.text.find(dirs_[0].path()) != std::string::npos);
      CHECK_CHILD(other.text.find("closed descriptors that it did not open") != std::string::npos);
      CHECK_CHILD(!store().stats().dirs[0].writable);
    }
    // Without a table of its own what is laid out is used by the ring; the file grows no more.
    Error full;
    for (int i = 0; i < 64 && full.code == Code::ok; ++i)
      if (Result<Slot> slot = store().reserve(piece_bytes); !slot) full = slot.error();
    if (own_table()) {
      CHECK_CHILD(full.code == Code::ok && store().stats().dirs[0].trouble.empty());
      CHECK_CHILD(store().stats().dirs[0].file_bytes >= (pieces + 64) * piece_bytes);
      it_.store.reset();
      CHECK_CHILD(own.untouched() && words.all().empty());
      return 0;
    }
    CHECK_CHILD(full.code == Code::no_space);
    CHECK_CHILD(full.text.find("closed descriptors") != std::string::npos);
    CHECK_CHILD(store().stats().dirs[0].trouble.find("closed descriptors") != std::string::npos);
    Said::of_process().write();  // (said under a lock: who comes by without one writes it)
    CHECK_CHILD(count_of(words.all(), "closed descriptors that it did not open") == 1);
    it_.store.reset();
    CHECK_CHILD(own.untouched());
    return 0;
  });
}

TEST_P(StoreDescriptors, closed_in_mid_io) {
  for (int round = 0; round < 5; ++round) {
    TempDir program;
    expect_child_ok([&] {
      Words words;
      OwnFiles own(program.path());
      CHECK_CHILD(open() && attach() && fill_slots());
      CHECK_CHILD(begin_all() && own.take_numbers(numbers));
      const std::vector<StoreCompletion> all = await(store(), wall_clock(), 0, pieces);
      CHECK_CHILD(all.size() == pieces && own.untouched());
      std::map<uint64_t, Code> ended;
      for (const StoreCompletion& done : all) ended[done.tag] = done.error.code;
      for (uint64_t i = 0; i < pieces; ++i) {
        CHECK_CHILD(ended.at(i) == Code::ok || (!lasts() && ended.at(i) == Code::lost));
        if (i % 2 == 1 && ended.at(i) == Code::ok) CHECK_CHILD(holds(piece(pieces + i), i));
      }
      for (uint64_t i = 0; i < pieces; i += 2)
        if (lasts()) CHECK_CHILD(read(i).code == Code::ok && holds(piece(pieces), 100 + i));
      CHECK_CHILD(own.untouched());
      return 0;
    });
  }
}

TEST_P(StoreDescriptors, closed_before_the_first_request) {
  expect_child_ok([&] {
    Words words;
    OwnFiles own(program_.path());
    CHECK_CHILD(open());
    Result<Slot> slot = store().reserve(piece_bytes);
    CHECK_CHILD(slot && own.take_numbers(numbers) && attach());
    fill(piece(0), 1);
    CHECK_CHILD(write_now(store(), wall_clock(), *slot, piece(0)).error.code == Code::lost);
    CHECK_CHILD(own.untouched());
    Said::of_process().write();
    CHECK_CHILD(count_of(words.all(), "closed descriptors that it did not open") == 1);
    return 0;
  });
}

TEST_P(StoreDescriptors, other_directories_go_on) {
  expect_child_ok([&] {
    Words words;
    CHECK_CHILD(open(2) && attach() && fill_slots());
    // The first directory's descriptors only.
    for (int fd = 3; fd < numbers; ++fd) {
      std::error_code gone;
      const std::string at =
          std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), gone).string();
      if (at.starts_with(dirs_[0].path())) ::close(fd);
    }
    uint64_t lost = 0, right = 0;
    for (uint64_t i = 0; i < pieces; ++i) {
      const Error error = read(i);
      lost += error.code == Code::lost;
      right += error.code == Code::ok && holds(piece(pieces), i);
    }
    CHECK_CHILD(lost + right == pieces && right >= pieces / 2);
    CHECK_CHILD(lost == (lasts() ? 0 : pieces / 2));
    const StoreStats before = store().stats();
    CHECK_CHILD(before.dirs[1].writable && before.dirs[0].writable == lasts());
    slots_.clear();
    CHECK_CHILD(fill_slots());
    CHECK_CHILD(store().stats().dirs[1].written_bytes > before.dirs[1].written_bytes);
    return 0;
  });
}

TEST_P(StoreDescriptors, without_standard_streams) {
  expect_child_ok([&] {
    for (int fd : {0, 1, 2}) ::close(fd);
    if (!open() || !attach() || !fill_slots()) return 1;
    for (int fd : {0, 1, 2})
      if (::fcntl(fd, F_GETFD) >= 0) return 2;  // the program's first print would go there
    for (uint64_t i = 0; i < pieces; ++i)
      if (read(i).code != Code::ok || !holds(piece(pieces), i)) return 3;
    return 0;
  });
}

/// Ends with the test, however that ends.
struct Killed {
  pid_t process;
  ~Killed() {
    if (process <= 0) return;
    ::kill(process, SIGKILL);
    (void)::waitpid(process, nullptr, 0);
  }
};

/// What `process` has open or mapped of `dir`, or of io_uring.
std::string kept_by(pid_t process, const std::string& dir) {
  const std::string proc = "/proc/" + std::to_string(process);
  for (const auto& entry : std::filesystem::directory_iterator(proc + "/fd")) {
    std::error_code gone;
    const std::string at = std::filesystem::read_symlink(entry.path(), gone).string();
    if (at.starts_with(dir) || at.find("io_uring") != std::string::npos ||
        at.find("eventfd") != std::string::npos)
      return at;
  }
  std::ifstream maps(proc + "/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find(dir) != std::string::npos || line.find("io_uring") != std::string::npos)
      return line;
  return {};
}

TEST_P(StoreDescriptors, a_child_keeps_nothing_of_a_killed_parent) {
  expect_child_ok([&] {
    if (::unshare(CLONE_NEWNS) != 0) return cannot;
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return cannot;
    const std::string dir = dirs_[0].path();
    if (::mount("firn", dir.c_str(), "tmpfs", 0, "size=64m,mode=0700") != 0) return cannot;
    struct statvfs empty {}, now {};
    CHECK_CHILD(::statvfs(dir.c_str(), &empty) == 0);
    int told[2], end[2];
    CHECK_CHILD(::pipe(told) == 0 && ::pipe(end) == 0);
    const pid_t parent = ::fork();
    if (parent == 0) {
      if (!open() || !attach() || !fill_slots() || !begin_all()) ::_exit(1);
      const pid_t child = ::fork();  // in mid-I/O
      if (child == 0) {
        char byte = 0;
        const pid_t self = ::getpid();  // from here: what fork has to do in a child is done
        ::close(end[1]);
        if (::write(told[1], &self, sizeof self) != sizeof self) ::_exit(2);
        (void)!::read(end[0], &byte, 1);  // until the test is over
        ::_exit(0);
      }
      while (true) ::pause();
    }
    Killed ends{parent};
    ::close(end[0]);
    pid_t child = 0;
    CHECK_CHILD(::read(told[0], &child, sizeof child) == sizeof child);
    Neighbours here = Neighbours::join({dir});
    CHECK_CHILD(here.count() == 2);
    CHECK_CHILD(::statvfs(dir.c_str(), &now) == 0 && now.f_bfree + 4000 < empty.f_bfree);
    const std::string kept = kept_by(child, dir);
    std::fprintf(stderr, "%s", kept.c_str());
    CHECK_CHILD(kept.empty());
    ::kill(parent, SIGKILL);
    CHECK_CHILD(::waitpid(parent, nullptr, 0) == parent);
    ends.process = 0;
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    do {
      ::usleep(1000);
      CHECK_CHILD(::statvfs(dir.c_str(), &now) == 0);
    } while (now.f_bfree != empty.f_bfree && std::chrono::steady_clock::now() < late);
    CHECK_CHILD(::kill(child, 0) == 0);  // it lives
    CHECK_CHILD(now.f_bfree == empty.f_bfree && here.count() == 1);
    return 0;  // closes end[1], and so ends the child
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, StoreDescriptors,
                         testing::Values(Case{StoreOptions::Kind::io_uring},
                                         Case{StoreOptions::Kind::threads},
                                         Case{StoreOptions::Kind::io_uring, false},
                                         Case{StoreOptions::Kind::threads, false}),
                         case_name);

/// A ring on kernels that need a descriptor for it, or have no way to be woken in it, where its
/// thread has no table of descriptors of its own.
class OlderRing : public StoreDescriptors {
 public:
  void use(const std::set<Help>& unknown) {
    calls_.unknown = unknown;
    calls_.unknown.insert(Help::own_table);
  }
};

TEST_P(OlderRing, works_and_keeps_off_the_programs_files) {
  const std::set<Help> cases[] = {{Help::futex},
                                  {Help::no_number},
                                  {Help::own_index},
                                  {Help::fixed_files},
                                  {Help::own_index, Help::fixed_files, Help::futex}};
  for (const auto& unknown : cases) {
    TempDir program;
    expect_child_ok([&] {
      use(unknown);
      OwnFiles own(program.path());
      CHECK_CHILD(open() && attach() && fill_slots() && begin_all());
      const bool lasts = !unknown.contains(Help::fixed_files);
      CHECK_CHILD(store().stats().kind == "io_uring" && own.take_numbers(numbers));
      const std::vector<StoreCompletion> all = await(store(), wall_clock(), 0, pieces);
      CHECK_CHILD(all.size() == pieces && own.untouched());
      for (const StoreCompletion& done : all) {
        const bool ok = done.error.code == Code::ok;
        const bool may = ok || (done.error.code == Code::lost &&
                                (!lasts || unknown.contains(Help::own_index)));
        if (!may) std::fprintf(stderr, "%s\n", describe(done.error).c_str());
        CHECK_CHILD(may);
        if (ok && done.kind == StoreCompletion::Kind::read)
          CHECK_CHILD(holds(piece(pieces + done.tag), done.tag));
      }
      const Error after = read(1);
      if (lasts && !unknown.contains(Help::own_index))
        CHECK_CHILD(after.code == Code::ok && holds(piece(pieces), 1));
      else
        CHECK_CHILD(after.code == Code::lost);
      it_.store.reset();
      CHECK_CHILD(own.untouched());
      return 0;
    });
  }
}

TEST_P(OlderRing, refused_in_mid_io_goes_on_with_threads) {
  for (const int error : {EPERM, ENOSYS, EBADF})
    for (int round = 0; round < 3; ++round)
      expect_child_ok([&] {
        CHECK_CHILD(open() && attach() && fill_slots() && begin_all());
        if (!refuse_call(__NR_io_uring_enter, error, true)) return cannot;
        const std::vector<StoreCompletion> all = await(store(), wall_clock(), 0, pieces);
        CHECK_CHILD(all.size() == pieces);
        for (const StoreCompletion& done : all) {
          CHECK_CHILD(done.error.code == Code::ok);
          if (done.kind == StoreCompletion::Kind::read)
            CHECK_CHILD(holds(piece(pieces + done.tag), done.tag));
        }
        slots_.clear();
        CHECK_CHILD(fill_slots());
        for (uint64_t i = 0; i < pieces; ++i)
          CHECK_CHILD(read(i).code == Code::ok && holds(piece(pieces), i));
        const StoreStats stats = store().stats();
        CHECK_CHILD(stats.kind == "threads");
        CHECK_CHILD(stats.why.find("io_uring_enter") != std::string::npos);
        return 0;
      });
}

/// I/O threads, and a ring without registered files, whose files the program can close.
class SharedTable : public StoreDescriptors {
 protected:
  void SetUp() override {
    StoreDescriptors::SetUp();
    calls_.unknown.insert(Help::fixed_files);
  }
};

/// The file was the store's when it was looked at, and is an empty one of the program's when the
/// call comes.
TEST_P(SharedTable, closed_between_the_look_and_the_call) {
  expect_child_ok([&] {
    Words words;
    CHECK_CHILD(open() && attach() && fill_slots());
    calls_.at_begin = [&](const FileCall& call) {
      for (int fd = 3; fd < numbers; ++fd) ::close(fd);
      const int mine = ::open(program_.path().c_str(), O_RDWR | O_TMPFILE, 0600);
      (void)::dup2(mine, call.fd);
      return static_cast<ssize_t>(call.bytes);
    };
    const Error error = read(0);
    CHECK_CHILD(error.code == Code::lost);
    CHECK_CHILD(error.text.find("closed descriptors that it did not open") != std::string::npos);
    return 0;
  });
}

/// The program closes the file when the kernel has the requests, or Firn is about to call.
TEST_P(SharedTable, closed_before_the_answer) {
  expect_child_ok([&] {
    Words words;
    CHECK_CHILD(open() && attach() && fill_slots());
    calls_.at_end = [&](const FileCall&, ssize_t) {
      for (int fd = 3; fd < numbers; ++fd) ::close(fd);
      return static_cast<ssize_t>(-EBADF);
    };
    const Error error = read(0);
    CHECK_CHILD(error.code == Code::lost);
    CHECK_CHILD(error.text.find("closed descriptors that it did not open") != std::string::npos);
    return 0;
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, SharedTable,
                         testing::Values(Case{StoreOptions::Kind::io_uring, false},
                                         Case{StoreOptions::Kind::threads, false}),
                         case_name);

INSTANTIATE_TEST_SUITE_P(Kinds, OlderRing,
                         testing::Values(Case{StoreOptions::Kind::io_uring, false}), case_name);

}  // namespace
}  // namespace firn::testing_store
