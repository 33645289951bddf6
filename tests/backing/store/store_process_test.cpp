// The store and its process: killed in mid-I/O, forked in mid-I/O, io_uring refused, little memory
// to lock, limits on file sizes, a disk that is really full. Each in a child of its own.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <climits>
#include <csignal>
#include <fstream>

#include "tests/backing/store/children.h"
#include "tests/backing/store/store_testing.h"

namespace firn::testing_store {
namespace {
int threads_left = INT_MAX;  // that this process can have
}
}  // namespace firn::testing_store

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* argument) noexcept {
  static const auto real =
      reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  if (firn::testing_store::threads_left-- <= 0) return EAGAIN;
  return real(thread, attributes, run, argument);
}

namespace firn::testing_store {
namespace {

/// Four slots there and back; false when a byte is wrong.
bool round_trip(Store& store, std::span<std::byte> staging) {
  for (uint64_t i = 0; i < 4; ++i) {
    std::span<std::byte> bytes = staging.subspan(0, 1u << 20);
    Result<Slot> slot = store.reserve(bytes.size());
    if (!slot) return false;
    fill(bytes, i + 50);
    if (write_now(store, wall_clock(), *slot, bytes).error.code != Code::ok) return false;
    std::memset(bytes.data(), 0, bytes.size());
    if (read_now(store, wall_clock(), *slot, bytes).error.code != Code::ok) return false;
    if (!holds(bytes, i + 50)) return false;
  }
  return true;
}

class StoreProcess : public testing::TestWithParam<StoreOptions::Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == StoreOptions::Kind::io_uring && !io_uring_trouble().empty())
      GTEST_SKIP() << io_uring_trouble();
  }
  std::unique_ptr<Store> open(const std::string& dir) {
    Result<std::unique_ptr<Store>> store = open_store(small_options(dir, GetParam()));
    if (!store) std::fprintf(stderr, "%s\n", describe(store.error()).c_str());
    return store ? std::move(*store) : nullptr;
  }
  TempDir dir_;
};

/// Threads of this process whose names begin so.
int threads_named(const std::string& begin) {
  int count = 0;
  for (auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    count += name.starts_with(begin);
  }
  return count;
}

TEST_P(StoreProcess, starts_no_thread_before_it_has_to) {
  expect_child_ok([&] {
    const int before = threads_named("store_process");
    std::unique_ptr<Store> store = open(dir_.path());
    CHECK_CHILD(store && store->reserve(4096));
    CHECK_CHILD(threads_named("firn-io") == 0 && threads_named("store_process") == before);
    Result<StagingMemory> staging = StagingMemory::create(4u << 20);
    CHECK_CHILD(staging && round_trip(*store, staging->bytes()));
    CHECK_CHILD(threads_named("firn-io") > 0);
    store.reset();
    for (int tries = 0; threads_named("firn-io") > 0; ++tries) {
      CHECK_CHILD(tries < 1000);  // joined, yet in /proc for a moment more
      ::usleep(1000);
    }
    return 0;
  });
}

TEST_P(StoreProcess, killed_in_mid_io_leaves_no_file) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  pid_t child = ::fork();
  if (child == 0) {
    std::unique_ptr<Store> store = open(dir_.path());
    Result<StagingMemory> staging = StagingMemory::create(32u << 20);
    if (!store || !staging || !store->attach_staging(staging->bytes())) ::_exit(1);
    std::vector<Slot> slots;
    for (uint64_t i = 0; i < 32; ++i) slots.push_back(*store->reserve(1u << 20));
    bool told = false;
    while (true) {
      for (uint64_t i = 0; i < 32; ++i)
        if (!store->write(0, slots[i], staging->bytes().subspan(i << 20, 1u << 20), i)) ::_exit(2);
      if (!told && ::write(ready[1], "x", 1) != 1) ::_exit(3);
      told = true;
      if (await(*store, wall_clock(), 0, 32).size() != 32) ::_exit(4);
    }
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_TRUE(dir_.empty()) << "not even while it runs";
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << "it ended by itself: " << WEXITSTATUS(status);
  EXPECT_TRUE(dir_.empty());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_P(StoreProcess, a_fork_in_mid_io_keeps_the_parents_bytes_right) {
  std::unique_ptr<Store> store = open(dir_.path());
  ASSERT_TRUE(store);
  Result<StagingMemory> staging = StagingMemory::create(64u << 20);
  ASSERT_TRUE(staging && store->attach_staging(staging->bytes()));
  auto piece = [&](size_t i) { return staging->bytes().subspan(i << 21, 2u << 20); };
  std::vector<Slot> slots;
  for (uint64_t i = 0; i < 16; ++i) {
    slots.push_back(*store->reserve(2u << 20));
    fill(piece(i), i);
    ASSERT_EQ(write_now(*store, wall_clock(), slots[i], piece(i)).error.code, Code::ok);
  }
  for (int round = 0; round < 5; ++round) {
    for (uint64_t i = 0; i < 8; ++i) {
      fill(piece(i), i + 100);
      ASSERT_TRUE(store->write(0, slots[i], piece(i), i));
      ASSERT_TRUE(store->read(0, slots[8 + i], piece(16 + i), 8 + i));
    }
    pid_t child = ::fork();
    if (child == 0) {
      store->abandon();
      StoreCompletion none[1];
      bool refused = !store->reserve(4096) && !store->write(0, slots[0], piece(0), 1) &&
                     !store->read(0, slots[8], piece(0), 1) && !store->cancel(0, 1) &&
                     store->poll(0, none) == 0 && store->stats().kind == "abandoned" &&
                     !store->attach_staging(piece(0));
      store->discard(slots[0]);
      store.reset();  // ends at once, although its threads are the parent's
      ::_exit(refused ? 0 : 1);
    }
    std::vector<StoreCompletion> all = await(*store, wall_clock(), 0, 16);
    ASSERT_EQ(all.size(), 16u);
    for (auto& done : all) ASSERT_EQ(done.error.code, Code::ok) << describe(done.error);
    for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(holds(piece(16 + i), 8 + i)) << i;
    for (uint64_t i = 0; i < 8; ++i) {
      ASSERT_EQ(read_now(*store, wall_clock(), slots[i], piece(24)).error.code, Code::ok);
      ASSERT_TRUE(holds(piece(24), i + 100)) << i;
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

TEST_P(StoreProcess, the_limit_on_file_sizes_kills_nobody) {
  expect_child_ok([&] {
    rlimit none{0, RLIM_INFINITY};
    CHECK_CHILD(::setrlimit(RLIMIT_FSIZE, &none) == 0);
    Result<std::unique_ptr<Store>> refused = open_store(small_options(dir_.path(), GetParam()));
    CHECK_CHILD(!refused && refused.error().text.find("RLIMIT_FSIZE") != std::string::npos);
    rlimit some{8u << 20, RLIM_INFINITY};
    CHECK_CHILD(::setrlimit(RLIMIT_FSIZE, &some) == 0);
    std::unique_ptr<Store> store = open(dir_.path());
    Result<StagingMemory> staging = StagingMemory::create(4u << 20);
    CHECK_CHILD(store && staging);
    Result<Slot> first = store->reserve(4u << 20), second = store->reserve(4u << 20);
    CHECK_CHILD(first && second);
    Result<Slot> third = store->reserve(4096);
    CHECK_CHILD(!third && third.error().code == Code::no_space);
    CHECK_CHILD(third.error().text.find("RLIMIT_FSIZE") != std::string::npos);
    fill(staging->bytes(), 1);
    CHECK_CHILD(write_now(*store, wall_clock(), *second, staging->bytes()).error.code == Code::ok);
    // Lowered afterwards, by the program: an error, and no SIGXFSZ.
    rlimit less{1u << 20, RLIM_INFINITY};
    CHECK_CHILD(::setrlimit(RLIMIT_FSIZE, &less) == 0);
    StoreCompletion late = write_now(*store, wall_clock(), *second, staging->bytes());
    CHECK_CHILD(late.error.code == Code::no_space && late.error.detail == EFBIG);
    CHECK_CHILD(!store->reserve(4096));
    return 0;
  });
}

TEST_P(StoreProcess, a_full_disk_is_said_and_costs_nothing) {
  expect_child_ok([&] {
    if (::unshare(CLONE_NEWNS) != 0) return cannot;
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return cannot;
    if (::mount("firn", dir_.path().c_str(), "tmpfs", 0, "size=20m,mode=0700") != 0) return cannot;
    std::unique_ptr<Store> store = open(dir_.path());
    Result<StagingMemory> staging = StagingMemory::create(2u << 20);
    CHECK_CHILD(store && staging);
    std::vector<Slot> slots;
    Error full;
    while (slots.size() < 20) {
      Result<Slot> slot = store->reserve(2u << 20);
      if (!slot) {
        full = slot.error();
        break;
      }
      fill(staging->bytes(), slots.size());
      CHECK_CHILD(write_now(*store, wall_clock(), *slot, staging->bytes()).error.code == Code::ok);
      slots.push_back(*slot);
    }
    CHECK_CHILD(full.code == Code::no_space && full.detail == ENOSPC);
    CHECK_CHILD(full.text.find("No space left") != std::string::npos);
    CHECK_CHILD(slots.size() >= 8 && slots.size() <= 10);
    CHECK_CHILD(!store->stats().dirs[0].trouble.empty());
    for (size_t i = 0; i < slots.size(); ++i) {
      CHECK_CHILD(read_now(*store, wall_clock(), slots[i], staging->bytes()).error.code ==
                  Code::ok);
      CHECK_CHILD(holds(staging->bytes(), i));
    }
    store->discard(slots[3]);
    CHECK_CHILD(store->reserve(2u << 20));
    return 0;
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, StoreProcess,
                         testing::Values(StoreOptions::Kind::io_uring, StoreOptions::Kind::threads),
                         [](const auto& kind) { return kind_name(kind.param); });

TEST(StoreFallback, io_uring_refused_is_threads) {
  for (int error : {EPERM, ENOSYS, EINVAL}) {
    TempDir dir;
    expect_child_ok([&] {
      if (!refuse_call(__NR_io_uring_setup, error)) return cannot;
      CHECK_CHILD(!io_uring_trouble().empty());
      auto options = small_options(dir.path(), StoreOptions::Kind::automatic);
      Result<std::unique_ptr<Store>> store = open_store(options);
      CHECK_CHILD(store);
      CHECK_CHILD((*store)->stats().kind == "threads");
      CHECK_CHILD((*store)->stats().why.find(std::strerror(error)) != std::string::npos);
      Result<StagingMemory> staging = StagingMemory::create(4u << 20);
      CHECK_CHILD(staging && (*store)->attach_staging(staging->bytes()));
      CHECK_CHILD(round_trip(**store, staging->bytes()));
      options.kind = StoreOptions::Kind::io_uring;
      Result<std::unique_ptr<Store>> wanted = open_store(options);
      CHECK_CHILD(!wanted && wanted.error().code == Code::not_supported);
      CHECK_CHILD(wanted.error().text.find("firn_store") != std::string::npos);
      return 0;
    });
  }
}

TEST(StoreFallback, io_uring_refused_after_opening_is_threads) {
  if (!io_uring_trouble().empty()) GTEST_SKIP() << io_uring_trouble();
  TempDir dir;
  expect_child_ok([&] {
    auto options = small_options(dir.path(), StoreOptions::Kind::io_uring);
    Result<std::unique_ptr<Store>> store = open_store(options);
    CHECK_CHILD(store);
    if (!refuse_call(__NR_io_uring_setup, EPERM)) return cannot;
    Result<StagingMemory> staging = StagingMemory::create(4u << 20);
    CHECK_CHILD(staging && (*store)->attach_staging(staging->bytes()));
    CHECK_CHILD(round_trip(**store, staging->bytes()));
    CHECK_CHILD((*store)->stats().kind == "threads");
    CHECK_CHILD((*store)->stats().why.find("io_uring_setup") != std::string::npos);
    return 0;
  });
}

bool drop_ipc_lock() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  data[0].effective &= ~(1u << CAP_IPC_LOCK);
  return ::syscall(SYS_capset, &header, data) == 0;
}

/// The memory behind a region that was refused may be others' soon.
TEST(StoreFallback, a_region_that_is_refused_is_registered_nowhere) {
  if (!io_uring_trouble().empty()) GTEST_SKIP() << io_uring_trouble();
  TempDir one, other;
  StoreOptions options = small_options(one.path(), StoreOptions::Kind::io_uring);
  options.dirs.push_back(other.path());
  expect_child_ok([&] {
    auto store = open_store(options);
    Result<StagingMemory> staging = StagingMemory::create(4u << 20);
    CHECK_CHILD(store && staging);
    const std::span<std::byte> bytes = staging->bytes();
    std::memset(bytes.data(), 1, bytes.size());
    threads_left = 1;
    CHECK_CHILD(!(*store)->attach_staging(bytes));
    threads_left = INT_MAX;
    CHECK_CHILD(::mmap(bytes.data(), bytes.size(), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == bytes.data());
    CHECK_CHILD(round_trip(**store, bytes));
    return 0;
  });
}

TEST(StoreFallback, little_memory_to_lock_is_said_and_works) {
  if (!io_uring_trouble().empty()) GTEST_SKIP() << io_uring_trouble();
  TempDir dir;
  expect_child_ok([&] {
    rlimit little{256u << 10, 256u << 10};
    if (::setrlimit(RLIMIT_MEMLOCK, &little) != 0 || !drop_ipc_lock()) return cannot;
    auto options = small_options(dir.path(), StoreOptions::Kind::io_uring);
    Result<std::unique_ptr<Store>> store = open_store(options);
    CHECK_CHILD(store);
    Result<StagingMemory> staging = StagingMemory::create(16u << 20);
    CHECK_CHILD(staging && (*store)->attach_staging(staging->bytes()));
    std::string why = (*store)->stats().why;
    CHECK_CHILD(why.find("not registered") != std::string::npos);
    CHECK_CHILD(why.find("RLIMIT_MEMLOCK") != std::string::npos);
    CHECK_CHILD((*store)->stats().kind == "io_uring");
    CHECK_CHILD(round_trip(**store, staging->bytes()));
    return 0;
  });
}

TEST(StoreFallback, enough_memory_to_lock_is_not_mentioned) {
  if (!io_uring_trouble().empty()) GTEST_SKIP() << io_uring_trouble();
  TempDir dir;
  Result<std::unique_ptr<Store>> store =
      open_store(small_options(dir.path(), StoreOptions::Kind::io_uring));
  ASSERT_TRUE(store);
  Result<StagingMemory> staging = StagingMemory::create(4u << 20);
  ASSERT_TRUE(staging && (*store)->attach_staging(staging->bytes()));
  EXPECT_EQ((*store)->stats().why, "");
  EXPECT_TRUE(round_trip(**store, staging->bytes()));
}

}  // namespace
}  // namespace firn::testing_store
