// Addresses that kernels themselves write into memory: found by inspecting what they wrote.
//
// Why this is enough. An address of a block is born on the host, and reaches a kernel by its
// parameters or by memory. The host's writes are scanned (tables.h). So memory can hold an address
// that Firn does not know of only if a kernel stored it there: one that it was given, or one that
// it loaded. Both are of blocks which that launch could reach. Therefore:
//  - all that such a launch can reach is held on the device until the memory it could write has
//    been inspected, and a launch that reaches any of that memory meanwhile reaches all of it
//    (reach());
//  - an address found there, of a block that the launch could reach, is remembered as a table is,
//    and its block stays on the device from then on, with the reason in the statistics.
// None of this is done before memory is first short: until then nothing leaves the device
// (begin()). Then every live block is inspected once, while nothing runs, whoever wrote it: every
// address that is found is known as a table from then on. Only later copies are scanned.
//
// This is proven for inspected launches and whole 8-byte aligned addresses. Assumed: a kernel
// function whose first launches (firn_looks; counted apart for launches that reach tables, since
// those could copy addresses) stored none will store none later. One that stored an address is
// inspected after each launch, for ever. FIRN_LOOKS=all assumes nothing.
//
// Not seen: addresses that kernels store outside the arenas (variables of modules, managed and host
// memory, the device's own heap); addresses in parts or in disguise; addresses more than a block
// away from what they are used for; copies from the host whose source changes after the call.
//
// Owns a thread, started by the first launch to inspect, that waits for launches and reads memory
// through a stream of its own. Lock: one, never held while the driver or an engine is called.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "allocator/preload/work.h"

namespace firn::preload {

class Inspections {
 public:
  /// Has memory been short? Ask after a launch was enqueued: work enqueued while this was false is
  /// over before begin() inspects.
  bool begun() const { return begun_.load(std::memory_order_seq_cst); }
  /// Memory is short: inspects everything live, then lets it leave the device; once. Does nothing
  /// while a capture is under way.
  void begin();
  /// Has begin() done that?
  bool ready() const { return ready_.load(std::memory_order_acquire); }
  /// An engine was opened: before its first block.
  void follow(Engine& engine);
  /// Is a launch of this kernel to be inspected? `tables`: it reached addresses in memory.
  bool wanted(const Kernel& kernel, bool tables) const {
    if (!begun()) return false;
    return kernel.stores_addresses.load(std::memory_order_relaxed) ||
           (tables ? kernel.looked_at_with_tables : kernel.looked_at)
                   .load(std::memory_order_relaxed) < looks_;
  }
  /// The launch is enqueued on `stream` (of the current context, CU_STREAM_PER_THREAD by name);
  /// what it reached is still held.
  void add(Kernel& kernel, bool tables, CUstream stream, const std::vector<Reached>& reached,
           std::shared_ptr<Kernel> owner = nullptr, bool first = false);

  bool pending() const { return pending_.load(std::memory_order_acquire) != 0; }
  /// Is the block yet to be inspected?
  bool concerns(uint64_t base) const;
  /// Appends the blocks that this one may lead to. False: it is not to be inspected.
  bool reach(uint64_t base, std::vector<uint64_t>& addresses) const;
  /// The block ends: it is not inspected any more. Waits while it is.
  void forget(uint64_t base);
  /// A context is about to be destroyed.
  void context_ends(CUcontext context);
  /// Waits until everything enqueued is inspected; gives up after a while without progress.
  void drain();

 private:
  struct Memory {
    Reached block;
    Hold hold;       // apart; empty for small blocks
    bool gone = false;
  };
  struct Launch {
    Kernel* kernel = nullptr;
    std::shared_ptr<Kernel> owner;  // of a kernel that may end first
    bool tables = false;
    bool first = false;  // not a launch: everything live, for begin()
    CUcontext context = nullptr;
    CUevent event = nullptr;  // behind it
    unsigned refused = 0;  // failed queries of its event
    std::vector<Memory> memory;
    bool reaches(uint64_t base) const;
  };
  using Batch = std::vector<std::unique_ptr<Launch>>;
  using Holds = std::vector<std::pair<Engine*, Hold>>;
  using Finds = std::vector<std::pair<uint64_t, uint64_t>>;  // (address, value)

  Inspections();
  friend Inspections& inspections();
  void run();
  void start_thread();
  void take_completed(Batch& batch);
  void look(Batch& batch);
  bool look_at(const Reached& block, Batch& batch);
  bool read(const Reached& block, Finds& found);
  void settle(Batch& batch, const Reached& block, const Finds& found);
  void end(Batch& batch);
  void leave(const Batch& batch, Holds& holds);
  void release(size_t launches, const Holds& holds);
  void stay_for(const Launch& launch);
  void stop();

  uint32_t looks_ = 2;  // of each kernel (firn_looks)
  std::atomic<bool> begun_{false}, ready_{false};
  std::mutex beginning_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Launch>> launches_;
  Batch* looking_ = nullptr;                          // taken from launches_, not yet ended
  std::unordered_map<uint64_t, unsigned> concerned_;  // by base: launches that wait
  std::unordered_map<CUcontext, std::vector<CUevent>> spare_;
  uint64_t reading_ = 0;                              // base of the block that is being read
  uint64_t ended_ = 0;                                // launches inspected so far
  bool querying_ = false;                             // the thread asks for launches_' events
  bool running_ = false, stopping_ = false, within_ = false;  // within_: the thread may be calling
  std::atomic<size_t> pending_{0};
  struct Reader {  // the thread's own
    CUstream stream = nullptr;
    void* buffer = nullptr;
  };
  std::unordered_map<CUcontext, Reader> readers_;
};

Inspections& inspections();
/// Stands for kernels that cannot be kept: inspected after each launch.
Kernel& unkept_kernel();

}  // namespace firn::preload
