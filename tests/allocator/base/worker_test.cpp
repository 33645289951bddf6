#include "allocator/base/worker.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <future>
#include <set>
#include <thread>

namespace firn::test {
namespace {

size_t threads() {
  size_t count = 0;
  std::FILE* status = std::fopen("/proc/self/status", "re");
  char line[256];
  while (std::fgets(line, sizeof line, status))
    if (std::sscanf(line, "Threads: %zu", &count) == 1) break;
  std::fclose(status);
  return count;
}

TEST(Worker, does_all_of_it_in_order_on_one_thread) {
  std::thread([] {}).join();  // with the first thread a sanitizer may begin one of its own
  const size_t before = threads();
  std::vector<int> order;
  std::set<std::thread::id> who;
  {
    Worker worker("firn-test");
    EXPECT_EQ(threads(), before) << "none without work";
    std::promise<void> done;
    for (int i = 0; i < 100; ++i)
      worker.post([&, i] {
        order.push_back(i);
        who.insert(std::this_thread::get_id());
        if (i == 99) done.set_value();
      });
    done.get_future().wait();
    EXPECT_EQ(threads(), before + 1);
  }
  EXPECT_EQ(threads(), before);
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  EXPECT_EQ(who.size(), 1u);
  EXPECT_FALSE(who.contains(std::this_thread::get_id()));
}

TEST(Worker, wakes_each_time) {
  std::promise<void> done;
  Worker worker("firn-test");
  for (int round = 0; round < 5'000; ++round) {
    done = std::promise<void>();
    worker.post([&] { done.set_value(); });
    ASSERT_EQ(done.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready)
        << "round " << round;
  }
}

TEST(Worker, takes_no_signals_and_has_its_name) {
  Worker worker("firn-test");
  std::promise<std::pair<bool, std::string>> seen;
  worker.post([&] {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    char name[16];
    pthread_getname_np(pthread_self(), name, sizeof name);
    seen.set_value({sigismember(&blocked, SIGALRM) == 1, name});
  });
  EXPECT_EQ(seen.get_future().get(), std::make_pair(true, std::string("firn-test")));
}

TEST(Worker, ends_with_what_is_under_way_and_begins_nothing_more) {
  std::atomic<int> done{0};
  std::promise<void> begun, go;
  std::shared_future<void> may = go.get_future().share();
  std::thread opener;
  {
    Worker worker("firn-test");
    worker.post([&] {
      begun.set_value();
      may.wait();
      ++done;
    });
    worker.post([&] { done += 100; });
    begun.get_future().wait();
    opener = std::thread([&] { go.set_value(); });
    // (It may do the second, too, where it is quick.)
  }
  opener.join();
  EXPECT_EQ(done % 100, 1) << "what was under way is over";
}

TEST(Worker, the_caller_does_it_where_no_thread_can_be_had) {
  constexpr uid_t nobody = 65534;
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be a user with a limit";
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit none{1, 1};
    if (::setrlimit(RLIMIT_NPROC, &none) != 0 || ::setuid(nobody) != 0) ::_exit(2);
    Worker worker("firn-test");
    std::thread::id who;
    worker.post([&] { who = std::this_thread::get_id(); });
    ::_exit(who == std::this_thread::get_id() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace firn::test
