// Opening spill files: which directories are refused and how that is said; that the file has no
// name and is private; what examine_dir() reports; staging memory.
#include "backing/store/spill_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>

#include "tests/backing/store/store_testing.h"

namespace firn::testing_store {
namespace {

Result<std::unique_ptr<Store>> try_open(const std::string& dir, bool allow_tmpfs = true) {
  StoreOptions options = small_options(dir, StoreOptions::Kind::automatic);
  options.allow_tmpfs = allow_tmpfs;
  return open_store(options);
}

void expect_refused(const std::string& dir, const std::string& words, bool allow_tmpfs = true) {
  Result<std::unique_ptr<Store>> store = try_open(dir, allow_tmpfs);
  ASSERT_FALSE(store) << dir;
  EXPECT_EQ(store.error().code, Code::invalid_argument);
  for (const std::string& part : {std::string("firn_dir"), dir, words})
    EXPECT_NE(store.error().text.find(part), std::string::npos) << store.error().text;
}

/// The exit status of `body` in a child; 99 when it was killed.
int in_child(const std::function<int()>& body) {
  pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

TEST(SpillFile, wrong_directories_are_refused_in_words) {
  TempDir dir;
  expect_refused("relative/dir", "not an absolute path");
  expect_refused("", "not an absolute path");
  expect_refused(dir.path() + "/missing", "does not exist");
  std::ofstream(dir.path() + "/file") << "x";
  expect_refused(dir.path() + "/file", "not a directory");
  ASSERT_EQ(::chmod(dir.path().c_str(), 0777), 0);
  expect_refused(dir.path(), "writable by everybody");
  ASSERT_EQ(::chmod(dir.path().c_str(), 01777), 0);
  EXPECT_TRUE(try_open(dir.path())) << "the sticky bit keeps others out";
  ASSERT_EQ(::chmod(dir.path().c_str(), 0770), 0);
  EXPECT_TRUE(try_open(dir.path()));
  StoreOptions none;
  EXPECT_FALSE(open_store(none));
}

TEST(SpillFile, others_directories_are_refused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to give a directory away";
  TempDir dir;
  ASSERT_EQ(::chown(dir.path().c_str(), 12345, 12345), 0);
  ASSERT_EQ(::chmod(dir.path().c_str(), 0770), 0);
  Result<std::unique_ptr<Store>> by_root = try_open(dir.path());
  ASSERT_TRUE(by_root) << "root may";
  const std::string why = (*by_root)->stats().why;
  EXPECT_NE(why.find("belongs to user 12345"), std::string::npos) << why;
  int status = in_child([&] {
    if (::setegid(12345) != 0 || ::seteuid(54321) != 0) return 10;
    Result<std::unique_ptr<Store>> foreign = try_open(dir.path());
    if (foreign) return 11;
    if (foreign.error().text.find("belongs to user 12345") == std::string::npos &&
        foreign.error().text.find("ermission denied") == std::string::npos)  // above it already
      return 12;
    return 0;
  });
  EXPECT_EQ(status, 0);
}

TEST(SpillFile, a_directory_one_cannot_write_is_refused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to stop being it";
  TempDir dir;
  ASSERT_EQ(::chmod(dir.path().c_str(), 0755), 0);
  int status = in_child([&] {
    if (::seteuid(54321) != 0) return 10;
    Result<std::unique_ptr<Store>> store = try_open(dir.path());
    return store ? 11 : store.error().code == Code::invalid_argument ? 0 : 12;
  });
  EXPECT_EQ(status, 0);
}

TEST(SpillFile, memory_is_no_disk_unless_asked_for) {
  Result<DirReport> report = examine_dir("/dev/shm", 0);
  ASSERT_TRUE(report);
  if (report->filesystem != "tmpfs") GTEST_SKIP() << "/dev/shm is " << report->filesystem;
  EXPECT_FALSE(report->usable);
  expect_refused("/dev/shm", "tmpfs", false);
  EXPECT_TRUE(try_open("/dev/shm", true));
}

TEST(SpillFile, has_no_name_and_is_private) {
  TempDir dir;
  Result<std::unique_ptr<Store>> store = try_open(dir.path());
  ASSERT_TRUE(store) << describe(store.error());
  ASSERT_TRUE((*store)->reserve(1u << 20));
  EXPECT_TRUE(dir.empty());
  int found = 0;
  for (auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (gone || target.find(dir.path()) != 0) continue;
    struct stat status {};
    int fd = std::stoi(entry.path().filename());
    ASSERT_EQ(::fstat(fd, &status), 0);
    if (!S_ISREG(status.st_mode)) continue;
    ++found;
    EXPECT_EQ(status.st_mode & 07777, 0600u);
    EXPECT_EQ(status.st_nlink, 0u);
    EXPECT_EQ(status.st_size, 8 << 20) << "preallocated by a step";
    EXPECT_TRUE(::fcntl(fd, F_GETFD) & FD_CLOEXEC);
  }
  EXPECT_EQ(found, 2) << "one direct, one through the page cache";
}

TEST(SpillFile, two_stores_in_one_directory_do_not_meet) {
  TempDir dir;
  auto a = try_open(dir.path()), b = try_open(dir.path());
  ASSERT_TRUE(a && b);
  Result<StagingMemory> staging = StagingMemory::create(4u << 20);
  ASSERT_TRUE(staging);
  auto piece = [&](size_t i) { return staging->bytes().subspan(i << 20, 1u << 20); };
  Slot in_a = *(*a)->reserve(1u << 20), in_b = *(*b)->reserve(1u << 20);
  fill(piece(0), 1);
  fill(piece(1), 2);
  ASSERT_EQ(write_now(**a, wall_clock(), in_a, piece(0)).error.code, Code::ok);
  ASSERT_EQ(write_now(**b, wall_clock(), in_b, piece(1)).error.code, Code::ok);
  ASSERT_EQ(read_now(**a, wall_clock(), in_a, piece(2)).error.code, Code::ok);
  ASSERT_EQ(read_now(**b, wall_clock(), in_b, piece(3)).error.code, Code::ok);
  EXPECT_TRUE(holds(piece(2), 1));
  EXPECT_TRUE(holds(piece(3), 2));
}

TEST(ExamineDir, measures_and_leaves_nothing) {
  TempDir dir;
  Result<DirReport> report = examine_dir(dir.path(), 32u << 20);
  ASSERT_TRUE(report) << describe(report.error());
  if (!report->usable) GTEST_SKIP() << report->why;
  EXPECT_TRUE(report->o_direct);
  EXPECT_GT(report->free_bytes, 0u);
  EXPECT_GT(report->write_bytes_s, 0);
  EXPECT_GT(report->read_bytes_s, 0);
  EXPECT_EQ(report->store_kind, io_uring_trouble().empty() ? "io_uring" : "threads");
  EXPECT_TRUE(dir.empty());
  Result<DirReport> missing = examine_dir(dir.path() + "/missing", 0);
  ASSERT_TRUE(missing);
  EXPECT_FALSE(missing->usable);
  EXPECT_NE(missing->why.find("No such file"), std::string::npos) << missing->why;
}

TEST(StagingMemory, regions_are_never_neighbours) {
  // A range that crosses from one registration into the next is refused by drivers and rings.
  std::vector<StagingMemory> regions;
  for (int i = 0; i < 8; ++i)
    regions.push_back(std::move(*StagingMemory::create(4u << 20, i % 2 == 0)));
  for (const StagingMemory& a : regions)
    for (const StagingMemory& b : regions)
      EXPECT_NE(a.bytes().data() + a.bytes().size(), b.bytes().data());
}

TEST(StagingMemory, is_aligned_zeroed_and_hidden_from_children) {
  Result<StagingMemory> region = StagingMemory::create(5u << 20);
  ASSERT_TRUE(region) << describe(region.error());
  std::span<std::byte> bytes = region->bytes();
  EXPECT_EQ(bytes.size(), 5u << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % (2u << 20), 0u);
  for (size_t i = 0; i < bytes.size(); i += 4096) ASSERT_EQ(bytes[i], std::byte{0});
  EXPECT_NE(std::string(region->pages()), "");
  EXPECT_EQ(in_child([&] {
              unsigned char resident = 0;
              return ::mincore(bytes.data(), 4096, &resident) == -1 && errno == ENOMEM ? 0 : 1;
            }),
            0);
  EXPECT_FALSE(StagingMemory::create(0));
  EXPECT_FALSE(StagingMemory::create(4097));
  Result<StagingMemory> too_much = StagingMemory::create(size_t{1} << 60);
  ASSERT_FALSE(too_much);
  EXPECT_EQ(too_much.error().code, Code::host_out_of_memory);
}

TEST(StagingMemory, moves_and_unmaps) {
  std::byte* data = nullptr;
  {
    StagingMemory first = std::move(*StagingMemory::create(2u << 20));
    data = first.bytes().data();
    StagingMemory second = std::move(first);
    EXPECT_TRUE(first.bytes().empty());
    EXPECT_EQ(second.bytes().data(), data);
    data[0] = std::byte{1};
  }
  unsigned char resident = 0;
  EXPECT_EQ(::mincore(data, 4096, &resident), -1);
}

}  // namespace
}  // namespace firn::testing_store
