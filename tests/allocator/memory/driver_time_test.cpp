#include "allocator/memory/driver_time.h"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

namespace firn {
namespace {

constexpr uint64_t ms = 1'000'000;

CUresult takes_a_while(CUstream) {
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return CUDA_ERROR_NOT_READY;
}
CUresult takes_no_time(CUevent) { return CUDA_SUCCESS; }

class DriverTime : public ::testing::Test {
 protected:
  DriverTime() {
    Driver plain;
    plain.stream_query = takes_a_while;
    plain.event_query = takes_no_time;
    plain.library = "a library";
    driver = timed(plain);
  }
  Driver driver;
  DriverTimes times;
};

TEST_F(DriverTime, a_timed_table_answers_as_the_plain_one) {
  EXPECT_EQ(driver.stream_query(nullptr), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(driver.event_query(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(driver.library, "a library");
}

TEST_F(DriverTime, a_table_may_be_timed_twice) {
  driver = timed(driver);
  const uint64_t before = thread_driver_ns();
  EXPECT_EQ(driver.stream_query(nullptr), CUDA_ERROR_NOT_READY);
  EXPECT_GE(thread_driver_ns() - before, 5 * ms);
}

TEST_F(DriverTime, a_scope_counts_its_calls_once) {
  {
    DriverTimeScope outer(times);
    (void)driver.stream_query(nullptr);
    {
      DriverTimeScope inner(times);
      (void)driver.stream_query(nullptr);
    }
    EXPECT_EQ(times.program.all_ns, 0u);
  }
  EXPECT_GE(times.program.all_ns, 10 * ms);
  const uint64_t counted = times.program.all_ns;
  (void)driver.stream_query(nullptr);  // outside
  EXPECT_EQ(times.program.all_ns, counted);
  EXPECT_EQ(times.service.all_ns, 0u);
}

TEST_F(DriverTime, the_part_under_the_lock_is_told_apart) {
  DriverTimedMutex mutex(times);
  {
    DriverTimeScope scope(times);
    (void)driver.stream_query(nullptr);
    std::unique_lock lock(mutex);
    EXPECT_FALSE(times.program.locked_ns);
    (void)driver.stream_query(nullptr);
    lock.unlock();
    (void)driver.stream_query(nullptr);
  }
  EXPECT_GE(times.program.all_ns, 15 * ms);
  EXPECT_GE(times.program.locked_ns, 5 * ms);
  EXPECT_LT(times.program.locked_ns, times.program.all_ns - 9 * ms);
  EXPECT_EQ(times.program.waited_ns, 0u);
}

TEST_F(DriverTime, threads_of_our_own_are_counted_apart) {
  DriverTimedMutex mutex(times);
  mutex.lock();
  std::thread([&] { EXPECT_FALSE(mutex.try_lock()); }).join();
  mutex.unlock();
  // The second to come waits; whether there was one is the scheduler's choice.
  for (int round = 0; round < 1000 && times.service.waited_ns == 0; ++round) {
    mutex.lock();
    std::thread service([&] {
      thread_serves();
      DriverTimeScope scope(times);
      mutex.lock();
      (void)driver.stream_query(nullptr);
      mutex.unlock();
    });
    std::this_thread::yield();
    mutex.unlock();
    service.join();
  }
  EXPECT_GT(times.service.waited_ns, 0u);
  EXPECT_GE(times.service.locked_ns, 5 * ms);
  EXPECT_GE(times.service.all_ns, times.service.locked_ns);
  EXPECT_EQ(times.program.locked_ns, 0u);
}

}  // namespace
}  // namespace firn
