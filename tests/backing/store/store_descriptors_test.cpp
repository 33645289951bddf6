// The store in a program that closes descriptors which it did not open, and then opens files of its
// own that get the same numbers; that forks, and is killed while the child lives; that is started
// without standard streams. Never a byte into a file of the program's.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>

#include "firn/descriptor.h"
#include "firn/neighbours.h"
#include "firn/said.h"
#include "tests/backing/store/children.h"
#include "tests/backing/store/store_testing.h"

namespace firn::testing_store {
namespace {

using Help = FileCalls::RingHelp;
constexpr size_t piece_bytes = 1u << 20;
constexpr uint64_t pieces = 16;

/// A kernel that does not know some things, and one that is slow: an I/O thread that has decided on
/// a call stands still before it.
class OlderKernel : public FaultyCalls {
 public:
  bool helps(Help what) override { return !unknown.contains(what); }
  ssize_t begin(const FileCall& call) override {
    if (call.write) stand();
    return FaultyCalls::begin(call);
  }
  int fallocate(int fd, uint64_t offset, uint64_t bytes) override {
    stand();
    return full ? -ENOSPC : FaultyCalls::fallocate(fd, offset, bytes);
  }
  void stand() {
    if (!slow) return;
    stands = true;
    while (slow) ::usleep(100);
  }
  void wait_until_it_stands() const {
    while (!stands) ::usleep(100);
  }
  std::set<Help> unknown;
  std::atomic<bool> slow{false}, stands{false};
  std::atomic<bool> full{false};  // the disk: the length is set to what it was
};

/// Stderr from here on, as a file; what did not hold is told at the end.
class Words {
 public:
  Words() { (void)::dup2(::fileno(std::tmpfile()), STDERR_FILENO); }
  ~Words() {
    if (all().find("not so:") == std::string::npos) return;
    std::printf("%s", all().c_str());
    std::fflush(stdout);
  }
  std::string all() {
    std::string text(1u << 16, '\0');
    const ssize_t got = ::pread(STDERR_FILENO, text.data(), text.size(), 0);
    text.resize(got < 0 ? 0 : static_cast<size_t>(got));
    return text;
  }
};

size_t count_of(const std::string& text, const std::string& words) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(words, at)) != std::string::npos; ++at) ++count;
  return count;
}

/// The program's own files, by every number that it closed before.
class OwnFiles {
 public:
  explicit OwnFiles(const std::string& dir) : name_(dir + "/mine-") {}
  /// os.closerange(3, `end`), then files with 12 bytes each.
  bool take_numbers(int end) {
    for (int fd = 3; fd < end; ++fd) ::close(fd);
    while (true) {
      const std::string name = name_ + std::to_string(files_.size());
      const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
      if (fd < 0 || ::write(fd, "twelve bytes", 12) != 12) return false;
      files_.push_back(name);
      if (fd >= end - 1) return true;
    }
  }
  bool untouched() const {
    for (const std::string& name : files_) {
      std::ifstream in(name, std::ios::binary);
      const std::string text((std::istreambuf_iterator<char>(in)), {});
      if (text != "twelve bytes") {
        std::fprintf(stdout, "%s: %zu bytes\n", name.c_str(), text.size());
        return false;
      }
    }
    return !files_.empty();
  }

 private:
  std::string name_;
  std::vector<std::string> files_;
};

constexpr int numbers = 640;  // the store's own are among them

struct Case {
  StoreOptions::Kind kind;
  bool own_table = true;  // close_range or unshare are there
};
std::string case_name(const testing::TestParamInfo<Case>& info) {
  return kind_name(info.param.kind) + (info.param.own_table ? "" : "_one_table");
}

class StoreDescriptors : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (ring() && !io_uring_trouble().empty()) GTEST_SKIP() << io_uring_trouble();
    if (!own_table()) calls_.unknown = {Help::own_table};
  }
  bool ring() const { return GetParam().kind == StoreOptions::Kind::io_uring; }
  bool own_table() const { return GetParam().own_table; }
  /// What is laid out stays within reach.
  bool lasts() const { return own_table() || ring(); }
  bool open(size_t dirs = 1) {
    StoreOptions options = small_options(dirs_[0].path(), GetParam().kind);
    for (size_t i = 1; i < dirs; ++i) options.dirs.push_back(dirs_[i].path());
    Result<std::unique_ptr<Store>> opened = open_file_store(options, calls_);
    Result<StagingRegion> staging = StagingRegion::create(2 * pieces * piece_bytes);
    if (!opened || !staging) return false;
    it_.store = std::move(*opened);
    it_.staging = std::make_unique<StagingRegion>(std::move(*staging));
    return true;
  }
  static bool told(const Error& error) {
    std::fprintf(stderr, "%s\n", describe(error).c_str());
    return false;
  }
  bool attach() { return bool(store().attach_staging(it_.staging->bytes())); }
  Store& store() { return *it_.store; }
  std::span<std::byte> piece(uint64_t i) { return it_.piece(i * piece_bytes, piece_bytes); }
  bool fill_slots() {
    for (uint64_t i = 0; i < pieces; ++i) {
      Result<Slot> slot = store().reserve(piece_bytes);
      if (!slot) return told(slot.error());
      slots_.push_back(*slot);
      fill(piece(i), i);
      const Error written = write_now(store(), wall_clock(), *slot, piece(i)).error;
      if (written.code != Code::ok) return told(written);
    }
    return true;
  }
  /// Even slots are written anew, odd ones read back, all at once.
  bool begin_all() {
    for (uint64_t i = 0; i < pieces; ++i) {
      if (i % 2 == 0) fill(piece(i), 100 + i);
      const bool begun = i % 2 == 0 ? bool(store().write(0, slots_[i], piece(i), i))
                                    : bool(store().read(0, slots_[i], piece(pieces + i), i));
      if (!begun) return false;
    }
    return true;
  }
  Error read(uint64_t i) {
    return read_now(store(), wall_clock(), slots_[i], piece(pieces)).error;
  }

  TempDir dirs_[2], program_;
  OlderKernel calls_;  // outlives the store
  OpenStore it_;
  std::vector<Slot> slots_;
};

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

// (Without a table of its own there is an instant between the question whose file it is and the
// call: nothing guards that.)
TEST_P(StoreDescriptors, closed_at_the_instant_of_a_write) {
  if (!own_table()) return;
  expect_child_ok([&] {
    OwnFiles own(program_.path());
    CHECK_CHILD(open() && attach() && fill_slots());
    fill(piece(0), 100);
    calls_.slow = true;
    CHECK_CHILD(bool(store().write(0, slots_[0], piece(0), 0)));
    calls_.wait_until_it_stands();
    CHECK_CHILD(own.take_numbers(numbers));
    calls_.slow = false;
    const std::vector<StoreCompletion> all = await(store(), wall_clock(), 0, 1);
    CHECK_CHILD(all.size() == 1 && own.untouched());
    CHECK_CHILD(all[0].error.code == Code::ok);
    CHECK_CHILD(read(0).code == Code::ok && holds(piece(pieces), 100));
    return 0;
  });
}

TEST_P(StoreDescriptors, closed_while_the_file_is_laid_out) {
  if (!own_table()) return;
  expect_child_ok([&] {
    OwnFiles own(program_.path());
    CHECK_CHILD(open() && attach() && fill_slots());
    calls_.slow = calls_.full = true;
    Error full;
    std::thread grows([&] {
      while (full.code == Code::ok)
        if (Result<Slot> slot = store().reserve(piece_bytes); !slot) full = slot.error();
    });
    calls_.wait_until_it_stands();
    const bool taken = own.take_numbers(numbers);
    calls_.slow = false;
    grows.join();
    CHECK_CHILD(taken && own.untouched());
    CHECK_CHILD(full.code == Code::no_space);
    CHECK_CHILD(read(1).code == Code::ok && holds(piece(pieces), 1));
    return 0;
  });
}

// The ring's descriptors are the thread's own, and so are those of the threads that go on after it.
TEST_P(StoreDescriptors, closed_before_the_ring_is_refused) {
  if (!ring() || !own_table()) return;
  for (const int error : {EPERM, EBADF})
    expect_child_ok([&] {
      OwnFiles own(program_.path() + "/" + std::to_string(error));
      ::mkdir((program_.path() + "/" + std::to_string(error)).c_str(), 0700);
      CHECK_CHILD(open() && attach() && fill_slots() && own.take_numbers(numbers));
      if (!refuse_call(__NR_io_uring_enter, error, true)) return cannot;
      CHECK_CHILD(begin_all());
      const std::vector<StoreCompletion> all = await(store(), wall_clock(), 0, pieces);
      CHECK_CHILD(all.size() == pieces && store().stats().kind == "threads");
      for (const StoreCompletion& done : all) {
        if (done.error.code != Code::ok) (void)told(done.error);
        CHECK_CHILD(done.error.code == Code::ok);
      }
      for (uint64_t i = 0; i < pieces; ++i)
        CHECK_CHILD(read(i).code == Code::ok && holds(piece(pieces), i % 2 ? i : 100 + i));
      CHECK_CHILD(own.untouched());
      return 0;
    });
}

// A pipe whose end the program closes is closed, whatever threads of the store's there are.
TEST_P(StoreDescriptors, keep_nothing_of_the_programs_open) {
  expect_child_ok([&] {
    int ends[2];
    CHECK_CHILD(::pipe(ends) == 0);
    CHECK_CHILD(open() && attach() && fill_slots() && begin_all());
    CHECK_CHILD(await(store(), wall_clock(), 0, pieces).size() == pieces);
    ::close(ends[1]);
    char byte = 0;
    ::alarm(10);
    CHECK_CHILD(::read(ends[0], &byte, 1) == 0);
    return 0;
  });
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

// What it held is free, whatever threads of its own still come to their ends.
TEST_P(StoreDescriptors, a_closed_store_is_no_neighbour) {
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(open() && attach() && fill_slots());
    ASSERT_EQ(Neighbours::join({dirs_[0].path()}).count(), 2u);
    it_.store.reset();
    slots_.clear();
    ASSERT_EQ(Neighbours::join({dirs_[0].path()}).count(), 1u) << round;
  }
}

// The program's stderr, and a file of its own by that number, are not I/O threads' to write to.
TEST_P(StoreDescriptors, what_became_of_stderr_is_the_programs) {
  if (!own_table()) return;
  expect_child_ok([&] {
    int ends[2];
    CHECK_CHILD(::pipe(ends) == 0 && ::dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
    CHECK_CHILD(open() && attach() && fill_slots());
    ::close(ends[1]);
    const std::string name = program_.path() + "/mine";
    const int file = ::open(name.c_str(), O_RDWR | O_CREAT, 0600);
    CHECK_CHILD(file >= 0 && ::write(file, "twelve bytes", 12) == 12);
    CHECK_CHILD(::dup2(file, STDERR_FILENO) == STDERR_FILENO);
    char byte = 0;
    ::alarm(10);
    CHECK_CHILD(::read(ends[0], &byte, 1) == 0);  // nobody keeps the pipe
    calls_.at_end = [](const FileCall& call, ssize_t result) {
      if (!call.write && result > 0) call.data[0] ^= std::byte{1};
      return result;
    };
    CHECK_CHILD(read(1).code == Code::corrupt && read(2).code == Code::corrupt);  // words
    std::ifstream in(name, std::ios::binary);
    CHECK_CHILD(std::string((std::istreambuf_iterator<char>(in)), {}) == "twelve bytes");
    CHECK_CHILD(Said::of_process().waits());
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

INSTANTIATE_TEST_SUITE_P(Kinds, OlderRing,
                         testing::Values(Case{StoreOptions::Kind::io_uring, false}), case_name);

}  // namespace
}  // namespace firn::testing_store
