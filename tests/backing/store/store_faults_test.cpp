// The real path, by ring and by threads, with system calls that fail: no wrong byte is handed over,
// no failure is lost, nothing stays behind.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "tests/backing/store/store_faults.h"

namespace firn::testing_store {
namespace {

TEST_P(StoreFaults, short_transfers_are_continued) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    auto random = std::make_shared<std::mt19937_64>(seed);
    calls_.at_begin = [random](const FileCall& call) -> ssize_t {
      if ((*random)() % 2) return static_cast<ssize_t>(call.bytes);
      if ((*random)() % 4 == 0) return (*random)() % 2 ? -EAGAIN : -EINTR;
      return static_cast<ssize_t>((1 + (*random)() % (call.bytes / 4096)) * 4096);
    };
    // A result that is no multiple of the block: what came beyond is moved once more.
    calls_.at_end = [random](const FileCall&, ssize_t result) -> ssize_t {
      return result > 4096 && (*random)() % 4 == 0 ? result - 100 : result;
    };
    Slot slot = filled(seed);
    StoreCompletion read = read_now(store(), clock(), slot, back());
    ASSERT_EQ(read.error.code, Code::ok) << describe(read.error);
    ASSERT_TRUE(holds(back(), seed));
    store().discard(slot);
  }
  EXPECT_TRUE(store().stats().dirs[0].writable);
}

TEST_P(StoreFaults, no_progress_ends_in_an_error) {
  Slot slot = filled(1);
  for (ssize_t answer : {ssize_t{-EAGAIN}, ssize_t{-EINTR}, ssize_t{0}}) {
    open(1);
    slot = filled(1);
    calls_.at_end = [answer](const FileCall&, ssize_t) { return answer; };
    StoreCompletion read = read_now(store(), clock(), slot, back());
    EXPECT_EQ(read.error.code, Code::io) << answer;
    calls_.at_end = nullptr;
    EXPECT_EQ(read_now(store(), clock(), slot, back()).error.code, Code::ok);
    Result<Slot> other = store().reserve(4096);
    EXPECT_FALSE(other) << "no new slot where an error was met";
  }
}

// As SQLite does: the n-th call fails, for n = 1, 2, ... until none does.
TEST_P(StoreFaults, every_call_fails_once) {
  for (int error : {EIO, ENOSPC, EDQUOT, EFBIG, EINVAL}) {
    bool fired = true;
    for (uint64_t n = 1; fired; ++n) {
      open(1);
      Slot slots[2] = {filled(1), filled(2)};
      auto left = std::make_shared<std::atomic<uint64_t>>(n);
      calls_.at_begin = [left, error](const FileCall& call) -> ssize_t {
        return --*left == 0 ? -error : static_cast<ssize_t>(call.bytes);
      };
      fill(bytes(), 3);
      ASSERT_TRUE(store().write(0, slots[0], bytes(), 1));
      ASSERT_TRUE(store().read(0, slots[1], back(), 2));
      bool wrote = false, failed = false;
      std::vector<StoreCompletion> all = await(store(), clock(), 0, 2);
      ASSERT_EQ(all.size(), 2u) << "a completion was lost, n = " << n;
      for (auto& done : all) {
        if (done.error.code == Code::ok) {
          wrote |= done.kind == StoreCompletion::Kind::write;
          continue;
        }
        failed = true;
        bool space = error == ENOSPC || error == EDQUOT || error == EFBIG;
        EXPECT_EQ(done.error.code, space ? Code::no_space : Code::io);
        EXPECT_EQ(done.error.detail, error);
        EXPECT_NE(done.error.text.find(dirs_[0].path()), std::string::npos) << done.error.text;
      }
      fired = *left == 0 || *left > n;  // counted down past zero
      ASSERT_EQ(failed, fired);
      calls_.at_begin = nullptr;
      StoreStats stats = store().stats();
      EXPECT_EQ(stats.dirs[0].writable, !failed);
      EXPECT_EQ(stats.dirs[0].trouble.empty(), !failed);
      EXPECT_EQ(bool(store().reserve(4096)), !failed);
      // What was there before, and was not being written, is there still; what failed is not.
      ASSERT_EQ(read_now(store(), clock(), slots[1], back()).error.code, Code::ok);
      ASSERT_TRUE(holds(back(), 2));
      StoreCompletion again = read_now(store(), clock(), slots[0], back());
      ASSERT_EQ(again.error.code, wrote ? Code::ok : Code::invalid_argument);
      if (wrote) {
        ASSERT_TRUE(holds(back(), 3));
      }
      ASSERT_LT(n, 100u);
    }
  }
}

TEST_P(StoreFaults, a_troubled_directory_gets_no_new_slots) {
  open(2);
  std::string bad = dirs_[0].path();
  Slot first = filled(1), second = filled(2);
  const auto inode = [](int fd) {  // (each I/O thread has numbers of its own)
    struct stat found {};
    return ::fstat(fd, &found) == 0 ? found.st_ino : 0;
  };
  ino_t bad_file = 0;  // first's directory's
  calls_.at_begin = [&](const FileCall& call) -> ssize_t {
    bad_file = inode(call.fd);
    return static_cast<ssize_t>(call.bytes);
  };
  fill(bytes(), 1);
  ASSERT_EQ(write_now(store(), clock(), first, bytes()).error.code, Code::ok);
  ASSERT_NE(bad_file, 0u);
  calls_.at_begin = [&](const FileCall& call) -> ssize_t {
    return call.write && inode(call.fd) == bad_file ? -EIO : static_cast<ssize_t>(call.bytes);
  };
  ASSERT_EQ(write_now(store(), clock(), first, bytes()).error.code, Code::io);
  for (uint64_t i = 0; i < 10; ++i) {
    Slot slot = filled(10 + i);  // expects success
    ASSERT_EQ(read_now(store(), clock(), slot, back()).error.code, Code::ok);
    ASSERT_TRUE(holds(back(), 10 + i));
  }
  ASSERT_EQ(read_now(store(), clock(), second, back()).error.code, Code::ok);
  EXPECT_TRUE(holds(back(), 2));
  StoreStats stats = store().stats();
  EXPECT_NE(stats.dirs[0].writable, stats.dirs[1].writable);
}

TEST_P(StoreFaults, slots_go_round_the_directories) {
  open(2);
  for (uint64_t i = 0; i < 10; ++i) filled(i);
  StoreStats stats = store().stats();
  EXPECT_EQ(stats.dirs[0].written_bytes, 5u << 20);
  EXPECT_EQ(stats.dirs[1].written_bytes, 5u << 20);
}

TEST_P(StoreFaults, reads_go_ahead_of_waiting_writes) {
  Slot wanted = filled(1);
  std::vector<Slot> slots;
  for (uint64_t i = 0; i < 10; ++i) slots.push_back(filled(2));
  std::mutex gate;  // closed until everything is asked for
  std::vector<bool> calls;
  calls_.at_begin = [&](const FileCall& call) -> ssize_t {
    std::lock_guard open(gate);
    calls.push_back(call.write);
    return static_cast<ssize_t>(call.bytes);
  };
  {
    std::lock_guard closed(gate);
    for (uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(store().write(0, slots[i], bytes(), i));
    ASSERT_TRUE(store().read(0, wanted, back(), 10));
  }
  ASSERT_EQ(await(store(), clock(), 0, 11).size(), 11u);
  ASSERT_EQ(calls.size(), 44u);  // four of each slot
  auto last_read = std::find(calls.rbegin(), calls.rend(), false);
  ASSERT_NE(last_read, calls.rend());
  // The ring, or each thread, may have had a write in hand before.
  EXPECT_LE(calls.rend() - last_read, 8 + 4);
  EXPECT_TRUE(holds(back(), 1));
}

TEST_P(StoreFaults, flipped_bits_are_healed_by_reading_again) {
  for (int times : {1, 2}) {
    Slot slot = filled(5);
    flip_reads(calls_, times);
    StoreCompletion read = read_now(store(), clock(), slot, back());
    ASSERT_EQ(read.error.code, Code::ok) << describe(read.error);
    EXPECT_TRUE(holds(back(), 5));
    EXPECT_EQ(store().stats().reread, static_cast<uint64_t>(times));  // reads healed so far
    calls_.at_end = nullptr;
  }
  EXPECT_EQ(store().stats().corrupt, 0u);
}

TEST_P(StoreFaults, the_third_read_goes_through_the_page_cache) {
  Slot slot = filled(6);
  // The direct path is broken for good.
  calls_.at_end = [](const FileCall& call, ssize_t result) {
    if (!call.write && (::fcntl(call.fd, F_GETFL) & O_DIRECT)) call.data[9] ^= std::byte{1};
    return result;
  };
  StoreCompletion read = read_now(store(), clock(), slot, back());
  ASSERT_EQ(read.error.code, Code::ok) << describe(read.error);
  EXPECT_TRUE(holds(back(), 6));
}

TEST_P(StoreFaults, corrupt_is_said_with_both_sums) {
  Slot slot = filled(7);
  Sum right = sum_of(bytes().data(), bytes().size());
  flip_reads(calls_, 1'000);
  StoreCompletion read = read_now(store(), clock(), slot, back());
  ASSERT_EQ(read.error.code, Code::corrupt);
  bytes()[(256u << 10) / 2] ^= std::byte{16};  // what came back
  Sum wrong = sum_of(bytes().data(), bytes().size());
  EXPECT_NE(read.error.text.find(right.words()), std::string::npos) << read.error.text;
  EXPECT_NE(read.error.text.find(wrong.words()), std::string::npos) << read.error.text;
  EXPECT_NE(read.error.text.find("slot " + std::to_string(slot.id)), std::string::npos);
  EXPECT_EQ(store().stats().corrupt, 1u);
  EXPECT_EQ(store().stats().dirs[0].read_bytes, 0u);
  EXPECT_TRUE(store().reserve(4096)) << "once may be chance";
}

TEST_P(StoreFaults, a_lost_write_is_noticed) {
  Slot slot = filled(8), other = filled(9);
  // The disk says "written", and still holds what it held before.
  std::map<uint64_t, std::byte*> old;
  calls_.at_begin = [&old](const FileCall& call) -> ssize_t {
    if (call.write) {
      auto* kept = static_cast<std::byte*>(std::aligned_alloc(4096, call.bytes));
      EXPECT_EQ(::pread(call.fd, kept, call.bytes, static_cast<off_t>(call.offset)),
                static_cast<ssize_t>(call.bytes));
      old[call.offset] = kept;
    }
    return static_cast<ssize_t>(call.bytes);
  };
  calls_.at_end = [&old](const FileCall& call, ssize_t result) -> ssize_t {
    if (call.write) {
      auto offset = static_cast<off_t>(call.offset);
      EXPECT_EQ(::pwrite(call.fd, old[call.offset], call.bytes, offset), result);
      std::free(old[call.offset]);
    }
    return result;
  };
  fill(bytes(), 10);
  ASSERT_EQ(write_now(store(), clock(), slot, bytes()).error.code, Code::ok);
  calls_.at_begin = nullptr;
  calls_.at_end = nullptr;
  EXPECT_EQ(read_now(store(), clock(), slot, back()).error.code, Code::corrupt);
  EXPECT_TRUE(holds(back(), 8)) << "the old bytes, well formed, yet not handed over as good";
  ASSERT_EQ(read_now(store(), clock(), other, back()).error.code, Code::ok);
  EXPECT_TRUE(holds(back(), 9));
}

TEST_P(StoreFaults, a_failed_preallocation_leaves_nothing) {
  struct stat after {};
  std::string name;  // of the number in that thread's table
  calls_.at_fallocate = [&](int file, uint64_t offset, uint64_t bytes) {
    name = "/proc/self/task/" + std::to_string(::gettid()) + "/fd/" + std::to_string(file);
    (void)calls_.FileCalls::fallocate(file, offset, bytes / 2);  // part of it is done
    return -ENOSPC;
  };
  Result<Slot> slot = store().reserve(1u << 20);
  ASSERT_FALSE(slot);
  EXPECT_EQ(slot.error().code, Code::no_space);
  EXPECT_EQ(slot.error().detail, ENOSPC);
  EXPECT_NE(slot.error().text.find("No space left"), std::string::npos) << slot.error().text;
  ASSERT_EQ(::stat(name.c_str(), &after), 0) << name;
  EXPECT_EQ(after.st_size, 0);
  EXPECT_EQ(after.st_blocks, 0);
  EXPECT_EQ(store().stats().slots_in_use, 0u);
  EXPECT_EQ(store().stats().dirs[0].file_bytes, 0u);
  EXPECT_FALSE(store().stats().dirs[0].trouble.empty());
}

TEST_P(StoreFaults, a_smaller_step_is_tried_and_room_in_use_stays_in_use) {
  uint64_t most = 2u << 20;
  calls_.at_fallocate = [&](int, uint64_t offset, uint64_t bytes) {
    return offset + bytes > most ? -ENOSPC : 0;
  };
  Slot first = filled(1), second = filled(2);  // steps of 8 MiB do not fit, 1 MiB does
  EXPECT_EQ(store().stats().dirs[0].file_bytes, 2u << 20);
  EXPECT_FALSE(store().reserve(1u << 20));
  store().discard(first);
  Result<Slot> again = store().reserve(1u << 20);
  EXPECT_TRUE(again) << "a full disk does not take away what is preallocated";
  ASSERT_EQ(read_now(store(), clock(), second, back()).error.code, Code::ok);
  EXPECT_TRUE(holds(back(), 2));
}

TEST_P(StoreFaults, without_preallocation_the_file_grows_sparsely) {
  calls_.at_fallocate = [](int, uint64_t, uint64_t) { return -EOPNOTSUPP; };
  Slot slot = filled(3);
  ASSERT_EQ(read_now(store(), clock(), slot, back()).error.code, Code::ok);
  EXPECT_TRUE(holds(back(), 3));
  EXPECT_NE(store().stats().why.find("preallocate"), std::string::npos);
}

/// (Longer together than the process's patience: slow_work.h.)
TEST_P(StoreFaults, a_slow_preallocation_is_said_once) {
  static bool said_before = false;
  if (std::exchange(said_before, true)) GTEST_SKIP() << "said in this process, for another kind";
  int steps = 0;
  calls_.at_fallocate = [&](int file, uint64_t offset, uint64_t bytes) {
    ++steps;
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    return calls_.FileCalls::fallocate(file, offset, bytes);
  };
  ::testing::internal::CaptureStderr();
  while (steps < 4) ASSERT_TRUE(store().reserve(1u << 20));
  const std::string said = ::testing::internal::GetCapturedStderr();
  const std::string words = "firn: preallocating the spill file in " + dirs_[0].path() + " (";
  ASSERT_TRUE(said.starts_with(words)) << said;
  EXPECT_EQ(said.find("firn:", 1), std::string::npos) << said;
}

TEST_P(StoreFaults, the_limit_on_file_sizes_is_kept) {
  calls_.file_limit = 4u << 20;
  std::vector<Slot> slots;
  for (uint64_t i = 0; i < 4; ++i) slots.push_back(filled(i));
  Result<Slot> more = store().reserve(4096);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, Code::no_space);
  EXPECT_NE(more.error().text.find("RLIMIT_FSIZE"), std::string::npos) << more.error().text;
}

// Everything at once, from a seed: short, again, interrupted, failed, flipped.
TEST_P(StoreFaults, storm) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    open(2);
    auto random = std::make_shared<std::mt19937_64>(seed);
    auto quiet = std::make_shared<std::atomic<bool>>(false);
    calls_.at_begin = [random, quiet](const FileCall& call) -> ssize_t {
      if (*quiet) return static_cast<ssize_t>(call.bytes);
      switch ((*random)() % 40) {
        case 0:
          return -EAGAIN;
        case 1:
          return -EINTR;
        case 2:
        case 3:
        case 4:
          return static_cast<ssize_t>(4096);
        case 5:
          return call.write ? static_cast<ssize_t>(call.bytes) : -EIO;
        default:
          return static_cast<ssize_t>(call.bytes);
      }
    };
    calls_.at_end = [random, quiet](const FileCall& call, ssize_t result) -> ssize_t {
      if (!*quiet && !call.write && result > 0 && (*random)() % 10 == 0)
        call.data[(*random)() % static_cast<size_t>(result)] ^= std::byte{1};
      return result;
    };
    std::vector<std::pair<Slot, uint64_t>> held;
    for (uint64_t i = 0; i < 24; ++i) {
      Result<Slot> slot = store().reserve(1u << 20);
      if (!slot) break;  // read errors have taken both directories out
      fill(bytes(), seed * 100 + i);
      StoreCompletion wrote = write_now(store(), clock(), *slot, bytes());
      ASSERT_EQ(wrote.error.code, Code::ok) << describe(wrote.error);
      held.emplace_back(*slot, seed * 100 + i);
      auto& [which, content] = held[(*random)() % held.size()];
      StoreCompletion read = read_now(store(), clock(), which, back());
      if (read.error.code == Code::ok) {
        ASSERT_TRUE(holds(back(), content));
      } else {
        ASSERT_TRUE(read.error.code == Code::io || read.error.code == Code::corrupt);
      }
    }
    *quiet = true;
    for (auto& [slot, content] : held) {
      ASSERT_EQ(read_now(store(), clock(), slot, back()).error.code, Code::ok);
      ASSERT_TRUE(holds(back(), content));
      store().discard(slot);
    }
    EXPECT_EQ(store().stats().slots_in_use, 0u);
    calls_.at_begin = nullptr;
    calls_.at_end = nullptr;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, StoreFaults,
                         testing::Values(StoreOptions::Kind::io_uring, StoreOptions::Kind::threads),
                         [](const auto& kind) { return kind_name(kind.param); });

}  // namespace
}  // namespace firn::testing_store
