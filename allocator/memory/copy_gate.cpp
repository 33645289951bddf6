#include "allocator/memory/copy_gate.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <chrono>
#include <new>
#include <system_error>

#include "firn/system_page.h"
#include "firn/signals_blocked.h"

namespace firn {

namespace {
constexpr unsigned equal = 1;  // CU_STREAM_WAIT_VALUE_EQ
constexpr unsigned portable_at_device_address = 1 | 2;
constexpr uint64_t look_ns = 1'000'000, idle_ns = 20'000'000;

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}
}  // namespace

CopyGate::~CopyGate() { stop_watching(); }

void CopyGate::start() {
  using AddressOf = CUresult (*)(CUdeviceptr* address, void* host, unsigned flags);
  if (!driver_.handle || word_) return;
  const auto wait = reinterpret_cast<WaitValue>(::dlsym(driver_.handle, "cuStreamWaitValue32_v2"));
  const auto address_of =
      reinterpret_cast<AddressOf>(::dlsym(driver_.handle, "cuMemHostGetDevicePointer_v2"));
  if (!wait || !address_of) return;
  const size_t bytes = system_page_bytes();
  void* page = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                      -1, 0);
  if (page == MAP_FAILED) return;
  if (driver_.mem_host_register(page, bytes, portable_at_device_address) != CUDA_SUCCESS ||
      address_of(&address_, page, 0) != CUDA_SUCCESS) {
    (void)driver_.mem_host_unregister(page);
    ::munmap(page, bytes);
    return;
  }
  page_ = page;
  word_ = new (page) std::atomic<uint32_t>(0);
  wait_value_ = wait;
  try {
    SignalsBlocked blocked;
    watcher_ = std::thread([this] { watch(); });
    works_.store(true, std::memory_order_release);
  } catch (const std::system_error&) {  // no thread would open it again
    end();
  }
}

void CopyGate::end() {
  stop_watching();
  works_.store(false, std::memory_order_release);
  if (!page_) return;
  {
    std::lock_guard lock(mutex_);
    word_->store(0, std::memory_order_release);
    word_ = nullptr;
  }
  if (driver_.mem_host_unregister(page_) == CUDA_SUCCESS) ::munmap(page_, system_page_bytes());
  page_ = nullptr;
}

void CopyGate::abandon() {
  works_.store(false, std::memory_order_release);
  word_ = nullptr;
  page_ = nullptr;
}

void CopyGate::pass(CUstream stream) {
  if (!works_.load(std::memory_order_acquire)) return;
  if (wait_value_(stream, address_, 0, equal) != CUDA_SUCCESS) {
    works_.store(false, std::memory_order_release);  // (The copy reports a lost device.)
    return;
  }
  std::lock_guard lock(mutex_);
  used_at_ns_ = now_ns();
  if (asleep_) changed_.notify_one();
}

bool CopyGate::close() {
  if (!works_.load(std::memory_order_acquire)) return false;
  std::lock_guard lock(mutex_);
  if (!word_) return false;
  if (closers_++ == 0) {
    closed_at_ns_ = now_ns();
    word_->store(1, std::memory_order_release);
  }
  return true;
}

void CopyGate::open() {
  std::lock_guard lock(mutex_);
  if (--closers_ == 0 && word_) word_->store(0, std::memory_order_release);
}

/// The watcher thread: sleeps while no copy passes, polls often while some do.
void CopyGate::watch() {
  std::unique_lock lock(mutex_);
  while (!over_) {
    if (closers_ == 0 && now_ns() - used_at_ns_ > idle_ns) {
      asleep_ = true;
      changed_.wait(lock);
      asleep_ = false;
      continue;
    }
    changed_.wait_for(lock, std::chrono::nanoseconds(look_ns));
    if (closers_ == 0 || !word_ || now_ns() - closed_at_ns_ < closed_ns_most ||
        word_->load(std::memory_order_relaxed) == 0)
      continue;
    word_->store(0, std::memory_order_release);
    forced_.fetch_add(1, std::memory_order_relaxed);
  }
}

void CopyGate::stop_watching() {
  {
    std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_one();
  }
  if (watcher_.joinable()) watcher_.join();
}

}  // namespace firn
