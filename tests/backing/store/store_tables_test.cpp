// I/O threads have tables of descriptors of their own: the program's files and its stderr are
// nothing of theirs, whenever it closes numbers, and theirs are nothing that it could close.
#include <sys/stat.h>

#include <thread>

#include "firn/neighbours.h"
#include "firn/said.h"
#include "tests/backing/store/store_descriptors.h"

namespace firn::testing_store {
namespace {

class StoreTables : public StoreDescriptors {};
class AnyTable : public StoreDescriptors {};  // whether they have one or not

// (Without a table of its own there is an instant between the question whose file it is and the
// call: nothing guards that.)
TEST_P(StoreTables, closed_at_the_instant_of_a_write) {
  expect_child_ok([&] {
    OwnFiles own(program_.path());
    CHECK_CHILD(open() && attach() && fill_slots());
    fill(piece(0), 100);
    calls_.slow = true;
    CHECK_CHILD(bool(store().write(0, slots_[0], piece(0), 0)));
    calls_.wait_until_it_stands();
    CHECK_CHILD(own.take_numbers(numbers));
    calls_.go_on();
    const std::vector<StoreCompletion> all = await(store(), wall_clock(), 0, 1);
    CHECK_CHILD(all.size() == 1 && own.untouched());
    CHECK_CHILD(all[0].error.code == Code::ok);
    CHECK_CHILD(read(0).code == Code::ok && holds(piece(pieces), 100));
    return 0;
  });
}

TEST_P(StoreTables, closed_while_the_file_is_laid_out) {
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
    calls_.go_on();
    grows.join();
    CHECK_CHILD(taken && own.untouched());
    CHECK_CHILD(full.code == Code::no_space);
    CHECK_CHILD(read(1).code == Code::ok && holds(piece(pieces), 1));
    return 0;
  });
}

// The ring's descriptors are the thread's own, and so are those of the threads that go on after it.
TEST_P(StoreTables, closed_before_the_ring_is_refused) {
  if (!ring()) return;
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
TEST_P(AnyTable, keep_nothing_of_the_programs_open) {
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

// All that it held is free, whatever threads of its own still come to their ends.
TEST_P(AnyTable, a_closed_store_is_no_neighbour) {
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(open() && attach() && fill_slots());
    ASSERT_EQ(Neighbours::join({dirs_[0].path()}).count(), 2u);
    it_.store.reset();
    slots_.clear();
    ASSERT_EQ(Neighbours::join({dirs_[0].path()}).count(), 1u) << round;
  }
}

// The program's stderr, and a file of its own by that number, are not I/O threads' to write to.
TEST_P(StoreTables, what_became_of_stderr_is_the_programs) {
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

INSTANTIATE_TEST_SUITE_P(Kinds, StoreTables,
                         testing::Values(Case{StoreOptions::Kind::io_uring},
                                         Case{StoreOptions::Kind::threads}),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Kinds, AnyTable,
                         testing::Values(Case{StoreOptions::Kind::io_uring},
                                         Case{StoreOptions::Kind::threads},
                                         Case{StoreOptions::Kind::io_uring, false},
                                         Case{StoreOptions::Kind::threads, false}),
                         case_name);

}  // namespace
}  // namespace firn::testing_store
