#include "allocator/memory/driver_time.h"

#include <chrono>

namespace firn {

namespace {
struct ThreadTime {
  uint64_t driver_ns = 0;
  unsigned scopes = 0;
  bool serves = false;
};
thread_local ThreadTime this_thread;

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

void add(std::atomic<uint64_t>& to, uint64_t ns) {
  if (ns > 0) to.fetch_add(ns, std::memory_order_relaxed);
}

/// An entry of the table. (A function pointer has no room for what to call: each entry is a type.)
template <auto Member, class Function>
struct Entry;
template <auto Member, class... Parameters>
struct Entry<Member, CUresult (*)(Parameters...)> {
  static inline CUresult (*real)(Parameters...) = nullptr;
  static CUresult call(Parameters... parameters) {
    const uint64_t begin = now_ns();
    const CUresult result = real(parameters...);
    this_thread.driver_ns += now_ns() - begin;
    return result;
  }
};
}  // namespace

Driver timed(const Driver& driver) {
  Driver out = driver;
#define FIRN_TIME_ENTRY(member, symbol, parameters)                       \
  {                                                                       \
    using Timed = Entry<&Driver::member, decltype(Driver::member)>;       \
    if (driver.member != &Timed::call) Timed::real = driver.member;       \
    out.member = &Timed::call;                                            \
  }
  FIRN_DRIVER_ENTRIES(FIRN_TIME_ENTRY)
#undef FIRN_TIME_ENTRY
  return out;
}

uint64_t thread_driver_ns() { return this_thread.driver_ns; }
void thread_serves() { this_thread.serves = true; }

DriverTimes::Of& DriverTimes::of_this_thread() { return this_thread.serves ? service : program; }

DriverTimeScope::DriverTimeScope(DriverTimes& times)
    : times_(times), begun_ns_(this_thread.driver_ns) {
  ++this_thread.scopes;
}

DriverTimeScope::~DriverTimeScope() {
  if (--this_thread.scopes == 0)
    add(times_.of_this_thread().all_ns, this_thread.driver_ns - begun_ns_);
}

void DriverTimedMutex::lock() {
  if (!mutex_.try_lock()) {
    const uint64_t begin = now_ns();
    mutex_.lock();
    add(times_.of_this_thread().waited_ns, now_ns() - begin);
  }
  begun_ns_ = this_thread.driver_ns;
}

bool DriverTimedMutex::try_lock() {
  if (!mutex_.try_lock()) return false;
  begun_ns_ = this_thread.driver_ns;
  return true;
}

void DriverTimedMutex::unlock() {
  const uint64_t ns = this_thread.driver_ns - begun_ns_;
  mutex_.unlock();
  add(times_.of_this_thread().locked_ns, ns);
}

}  // namespace firn
