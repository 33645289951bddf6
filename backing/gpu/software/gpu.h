// The software GPU's state: devices, contexts, handles, clock, settings, and the gate through which
// every driver entry point enters.
//
// Owns: everything, in one object that is never destroyed. Lock: Gpu::mutex, taken by enter(), held
// while an entry runs, dropped while it waits and while work (kernels, copies) executes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "abi.h"
#include "faults.h"
#include "firn/software_gpu.h"
#include "handles.h"
#include "memory.h"
#include "own.h"
#include "tags.h"
#include "work.h"

#define FIRN_GPU_API extern "C" __attribute__((visibility("default")))

namespace firn::software {

/// Ends the process for something that the real driver forbids. One line on stderr: entry, what,
/// rule.
[[noreturn]] void die(const char* entry, const std::string& rule);
/// One line on stderr, and on. Allocates; calls nothing of the driver.
void tell(const std::string& what);
std::string hex(uint64_t value);
inline void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

struct Context {
  uint64_t handle = 0;
  int device = 0;
  bool primary = false;
  unsigned flags = 0;
  std::shared_ptr<Stream> legacy;
  std::map<uint64_t, std::shared_ptr<Stream>> streams;  // by serial; legacy and per-thread included
  std::set<int> peers;                                  // devices whose memory it may reach
  std::map<int, size_t> limits;
  CUresult dead = CUDA_SUCCESS;  // the sticky error that ended it (sticky.h)
};

struct Link {  // a resource that copies take in turn
  uint64_t free_at_ns = 0;
};

struct Device {
  int ordinal = 0;
  DeviceMemory memory;
  std::shared_ptr<Context> primary;
  unsigned primary_references = 0;
  unsigned primary_flags = 0;
  Link to_device, to_host, within;
  uint64_t kernels = 0, copies = 0, copied_bytes = 0;
  uint64_t copied_to_device_bytes = 0, copied_to_host_bytes = 0;  // of them, over the link
  uint64_t default_pool = 0, current_pool = 0;
};

struct Pool {
  uint64_t handle = 0;
  int device = 0;
  bool is_default = false;
  uint64_t release_threshold = 0;
  int reuse[4] = {0, 1, 1, 1};  // settings that are only remembered, by attribute
  uint64_t used_bytes = 0, used_high = 0;
  bool destroyed = false;       // lives on until its last allocation is freed
};

/// Requests that this machine refuses and another grants. Read from the environment at each cuInit.
struct Refusals {
  enum class HostNuma { granted, none, fails, crashes };
  CUresult posix_fd = CUDA_SUCCESS;  // of frames that could be shared
  HostNuma host_numa = HostNuma::granted;
  // Copies between host memory and frames of host memory: by the calls of one direction, by any.
  bool host_copies_typed = false, host_copies = false;
};

struct Function;
struct Module;
struct Graph;
struct GraphExec;
struct GraphNode;
struct Capture;

struct Gpu {
  std::mutex mutex;
  std::condition_variable changed;    // host waiters: some work has completed
  unsigned host_waiters = 0;
  std::atomic<bool> initialised{false};
  std::atomic<bool> forked{false};    // in the child of a fork: everything is refused
  std::atomic<bool> exiting{false};   // exit() has begun: no new work starts
  std::atomic<int> entries{0};        // threads inside the driver
  std::atomic<uint64_t> contexts_gone{0};  // raised whenever one ends

  FirnGpuConfig config{};
  bool configured = false;
  FirnGpuObserver observer = nullptr;
  void* observer_context = nullptr;
  std::vector<std::unique_ptr<Device>> devices;
  AddressSpace space;
  Scheduler scheduler;
  Faults faults;
  Refusals refusals;
  OwnNeeds own_needs;
  HostTags host_tags;

  Table<Context> contexts{1, "context"};
  Table<Stream> streams{2, "stream"};
  Table<Event> events{3, "event"};
  Table<Frame> frames{4, "frame handle"};
  Table<Module> modules{5, "module"};
  Table<Function> functions{6, "function"};
  Table<Graph> graphs{7, "graph"};
  Table<GraphExec> graph_execs{8, "executable graph"};
  Table<GraphNode> graph_nodes{9, "graph node"};
  Table<Pool> pools{10, "memory pool"};
  std::vector<std::shared_ptr<Capture>> captures;  // under way
  uint64_t captures_begun = 0;

  Device& device(int ordinal) { return *devices[static_cast<size_t>(ordinal)]; }
  bool has_device(int ordinal) const {
    return ordinal >= 0 && static_cast<size_t>(ordinal) < devices.size();
  }
};

Gpu& gpu();

/// The calling thread's state: its stack of contexts and its modes.
struct Thread {
  std::vector<uint64_t> contexts;  // handles; the current one last
  std::map<uint64_t, std::shared_ptr<Stream>> own_streams;  // per-thread default, by context
  bool per_thread_default = false;  // the call came in through a _ptsz or _ptds entry
  bool in_host_function = false;    // on a worker, inside a callback: no driver calls
  int capture_mode = capture_global;
  struct {
    uint64_t context = 0;           // a handle
    uint64_t contexts_gone = 0;     // as it was when that context was seen to live
    int device = 0;
  } known;                          // answers that the thread has without the lock
};
Thread& thread();

/// Takes settings from the environment, where firnGpuConfigure() gave none. Empty on success, else
/// what was wrong in words.
std::string read_environment(FirnGpuConfig& config, Faults& faults);
std::string read_refusals(Refusals& refusals);
void fill_defaults(FirnGpuConfig& config);

/// The precondition of an entry.
enum class Need { nothing, initialised, context };

class Gate {
 public:
  Gate(const char* entry, Need need, bool fallible);
  ~Gate() { gpu().entries.fetch_sub(1); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  CUresult result() const { return result_; }
  Lock& lock() { return lock_; }
  const std::shared_ptr<Context>& context() const { return context_; }
  const char* entry() const { return entry_; }
  /// The entry's own answer, or the error that its context, or one whose handle it was given, has
  /// died of (meanwhile, too: only entries that wait let go of the lock).
  CUresult answer(CUresult result) const;
  /// The entry uses a handle of that context, whichever is current.
  CUresult uses(const std::shared_ptr<Context>& context);

 private:
  CUresult check(Need need, bool fallible);
  const char* entry_;
  Lock lock_;
  std::shared_ptr<Context> context_;
  std::shared_ptr<Context> used_;  // the current one, or that of a handle
  CUresult result_;
};

/// Runs `body(Gate&)` inside the driver: initialised, not in a forked child, no injected error. If
/// the machine is out of memory, that is the entry's answer, as it is a driver's.
template <class Body_>
CUresult enter(const char* entry, Need need, Body_&& body, bool fallible = true) {
  Gate gate(entry, need, fallible);
  if (gate.result() != CUDA_SUCCESS) return gate.result();
  try {
    return gate.answer(body(gate));
  } catch (const std::bad_alloc&) {
    return gate.answer(CUDA_ERROR_OUT_OF_MEMORY);
  }
}

/// The error for which no entry may run just now; read without the lock.
CUresult barred(Need need);
/// The calling thread's current context; null when none, or when it was destroyed.
std::shared_ptr<Context> current_context(Lock& lock);
std::shared_ptr<Context> make_context(Lock& lock, int device, bool primary, unsigned flags);
/// Waits for the context's work, then destroys its streams, events' marks and linear memory.
void destroy_context(Lock& lock, const char* entry, const std::shared_ptr<Context>& context);

/// The stream of `handle`, resolving null, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD in `context`
/// (the current one when null). Destroyed handles abort.
CUresult find_stream(Gate& gate, CUstream handle, std::shared_ptr<Stream>* out);

/// Refuses (and invalidates captures under way) where the capture mode forbids the call.
CUresult forbid_in_capture(Gate& gate);

struct PerThreadScope {
  PerThreadScope() { thread().per_thread_default = true; }
  ~PerThreadScope() { thread().per_thread_default = false; }
};

// Defines an entry together with the variant whose null stream is the calling thread's own.
#define FIRN_GPU_ENTRY_PER_THREAD(name, suffix, parameters, arguments) \
  FIRN_GPU_API CUresult name parameters;                               \
  FIRN_GPU_API CUresult name##suffix parameters {                      \
    ::firn::software::PerThreadScope scope;                            \
    return name arguments;                                             \
  }                                                                    \
  FIRN_GPU_API CUresult name parameters
#define FIRN_GPU_ENTRY_PTSZ(name, parameters, arguments) \
  FIRN_GPU_ENTRY_PER_THREAD(name, _ptsz, parameters, arguments)
#define FIRN_GPU_ENTRY_PTDS(name, parameters, arguments) \
  FIRN_GPU_ENTRY_PER_THREAD(name, _ptds, parameters, arguments)

}  // namespace firn::software
