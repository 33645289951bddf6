#include "sticky.h"

#include <setjmp.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <string_view>

namespace firn::software {

namespace {

struct Fault {
  int signal;
  CUresult error;
  const char* words;
};
// The GPU errors that a kernel's signals stand for.
constexpr std::array<Fault, 5> faults_of_kernels{{
    {SIGSEGV, CUDA_ERROR_ILLEGAL_ADDRESS, "used memory that it may not use, at "},
    {SIGBUS, CUDA_ERROR_ILLEGAL_ADDRESS, "used memory that is not there, at "},
    {SIGABRT, CUDA_ERROR_ASSERT, "failed an assertion"},
    {SIGILL, CUDA_ERROR_ILLEGAL_INSTRUCTION, "met an illegal instruction"},
    {SIGFPE, CUDA_ERROR_LAUNCH_FAILED, "divided by zero, or the like"},
}};
std::array<struct sigaction, faults_of_kernels.size()> before;  // the handlers before ours

struct Running {
  sigjmp_buf back;
  const char* kernel = nullptr;
  volatile bool guarded = false;
  volatile size_t fault = 0;
  void* volatile address = nullptr;
};
thread_local Running running;

// Takes the lock; gives up where this thread or a stuck one holds it.
bool lock_soon(Lock& lock) {
  for (int tries = 0; tries < 1000; ++tries) {
    if (lock.try_lock()) return true;
    const timespec pause{0, 1000000};
    ::nanosleep(&pause, nullptr);
  }
  return false;
}

/// Why the program's own access to GPU memory was a fault.
void explain(const siginfo_t& info) {
  const int error = errno;
  {
    Lock lock(gpu().mutex, std::defer_lock);
    const auto address = reinterpret_cast<uint64_t>(info.si_addr);
    if (info.si_code > 0 && lock_soon(lock)) {
      const std::string words = gpu().space.access_words(address);
      const std::string line = "firn software GPU: fault at " + hex(address) + ": " + words + "\n";
      if (!words.empty()) (void)!::write(STDERR_FILENO, line.data(), line.size());
    }
  }
  errno = error;
}

void on_signal(int signal, siginfo_t* info, void* context) {
  size_t index = 0;
  while (faults_of_kernels[index].signal != signal) ++index;
  if (running.guarded) {
    running.fault = index;
    running.address = info->si_addr;
    ::siglongjmp(running.back, 1);
  }
  if (signal == SIGSEGV) explain(*info);
  const struct sigaction& old = before[index];
  if (old.sa_flags & SA_SIGINFO && old.sa_sigaction) return old.sa_sigaction(signal, info, context);
  if (old.sa_handler == SIG_IGN && info->si_code <= 0) return;
  if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) return old.sa_handler(signal);
  // The default handling: the instruction is tried again, or the signal sent again.
  ::signal(signal, SIG_DFL);
  if (info->si_code <= 0 || signal == SIGABRT) (void)::raise(signal);
}

// Sorted by name; they do not ask about the dead context. Memory is still made, mapped and given
// back by address (as an H100's driver answers: bench/results/h100-2026-11-23.json).
constexpr std::string_view answering_still[] = {
    "cuCtxCreate", "cuCtxDestroy", "cuCtxGetApiVersion", "cuCtxGetCurrent", "cuCtxGetDevice",
    "cuCtxGetFlags", "cuCtxGetId", "cuCtxPopCurrent", "cuCtxPushCurrent", "cuCtxSetCurrent",
    "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuGetExportTable",
    "cuGetProcAddress", "cuInit", "cuMemAddressFree", "cuMemAddressReserve", "cuMemCreate",
    "cuMemExportToShareableHandle", "cuMemGetAllocationGranularity",
    "cuMemImportFromShareableHandle", "cuMemMap", "cuMemRelease", "cuMemSetAccess", "cuMemUnmap",
    "cuPointerGetAttribute", "cuPointerGetAttributes", "firnGpuBusy", "firnGpuKernelCreate"};

}  // namespace

bool answers_sticky(const char* entry) {
  const std::string_view name = entry;
  return !name.starts_with("cuDevice") &&
         !std::binary_search(std::begin(answering_still), std::end(answering_still), name);
}

void explain_faults() {
  static const bool caught = [] {
    for (size_t i = 0; i < faults_of_kernels.size(); ++i) {
      struct sigaction action {};
      action.sa_sigaction = on_signal;
      action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
      sigemptyset(&action.sa_mask);
      if (::sigaction(faults_of_kernels[i].signal, &action, &before[i]) != 0)
        die("explain_faults", "sigaction failed");
    }
    return true;
  }();
  (void)caught;
}

CUresult run_guarded(const char* entry, const std::function<void()>& body) {
  explain_faults();
  running.kernel = nullptr;
  if (::sigsetjmp(running.back, 1) == 0) {
    running.guarded = true;
    body();
    running.guarded = false;
    return CUDA_SUCCESS;
  }
  running.guarded = false;
  const Fault& fault = faults_of_kernels[running.fault];
  std::string line = std::string("firn software GPU: ") + entry + ": " +
                     (running.kernel ? std::string("kernel ") + running.kernel : "work") + " " +
                     fault.words;
  if (fault.error == CUDA_ERROR_ILLEGAL_ADDRESS) {
    const auto address = reinterpret_cast<uint64_t>(running.address);
    const Lock lock(gpu().mutex);
    const std::string words = gpu().space.access_words(address);
    line += hex(address) + (words.empty() ? "" : " (" + words + ")");
  }
  line += ": error " + std::to_string(fault.error) + " for its whole context\n";
  (void)!::write(STDERR_FILENO, line.data(), line.size());
  return fault.error;
}

void name_running(const char* kernel) { running.kernel = kernel; }

void kill_context(const std::shared_ptr<Context>& context, CUresult error) {
  if (!context || context->dead != CUDA_SUCCESS) return;
  context->dead = error;
  gpu().scheduler.drop(context);
  gpu().changed.notify_all();
}

void kill_contexts(CUresult error) {
  std::vector<std::shared_ptr<Context>> all;
  for (const auto& [handle, context] : gpu().contexts.live()) all.push_back(context);
  for (const auto& context : all) kill_context(context, error);
}

FIRN_GPU_API int firnGpuDie(int error, uint64_t after) {
  Gpu& g = gpu();
  if (g.forked) return -1;
  Lock lock(g.mutex);
  if (!g.initialised || error == CUDA_SUCCESS) return -1;
  g.faults.die_after(after, static_cast<CUresult>(error));
  if (after == 0) kill_contexts(static_cast<CUresult>(error));
  return 0;
}

}  // namespace firn::software
