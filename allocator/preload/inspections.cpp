#include "allocator/preload/inspections.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <system_error>
#include <thread>

#include "allocator/preload/captures.h"
#include "allocator/preload/engines.h"
#include "allocator/preload/globals.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/memory.h"
#include "firn/signals_blocked.h"

namespace firn::preload {

namespace {
constexpr size_t chunk_bytes = 4u << 20;
constexpr auto poll = std::chrono::microseconds(300);
constexpr auto patience = std::chrono::seconds(2);
constexpr unsigned tries = 3;  // of a call that the driver refuses
const char* const stored = "a kernel stored its address in memory";
const char* const unreadable = "what a kernel wrote beside it could not be looked at";

const void* pointer(uint64_t address) { return reinterpret_cast<const void*>(address); }
void stay(const Reached& block, const char* reason) {
  (void)block.view->engine->give_address(pointer(block.base), reason);
}
}  // namespace

Inspections& inspections() {
  static Inspections& all = *new Inspections;
  return all;
}

Kernel& unkept_kernel() {
  static Kernel& kernel = *new Kernel;
  kernel.stores_addresses.store(true, std::memory_order_relaxed);
  return kernel;
}

Inspections::Inspections() {
  if (Result<Config> config = configuration()) looks_ = config->looks;
}

void Inspections::begin() {
  std::lock_guard one(beginning_);
  if (begun() || captures_under_way()) return;
  begun_.store(true, std::memory_order_seq_cst);
  for (unsigned i = 0, n = views().count(); i < n; ++i) {
    View& view = views()[i];
    if (wait_for_context(view.context) != CUDA_SUCCESS) continue;  // nothing runs there any more
    std::vector<Reached> all;
    for (const BlockInfo& block : view.engine->blocks())
      if (block.live) all.push_back({&view, reinterpret_cast<uint64_t>(block.base), block.bytes});
    CUcontext left = nullptr;
    if (real().cuCtxPushCurrent_v2(view.context) != CUDA_SUCCESS) continue;
    add(unkept_kernel(), true, nullptr, all, nullptr, true);
    (void)real().cuCtxPopCurrent_v2(&left);
  }
  look_at_globals();
  drain();
  for (unsigned i = 0, n = views().count(); i < n; ++i) views()[i].engine->stop_spilling(false);
  ready_.store(true, std::memory_order_release);
}

void Inspections::follow(Engine& engine) {
  std::lock_guard one(beginning_);
  if (begun()) return;
  // Held back, unless another front end hands out the memory, and so sees its uses from the start,
  // or a test wants everything to move at once.
  if (serving() && !runtime_here()->config().adversarial) {
    engine.stop_spilling(true);
    return;
  }
  begun_.store(true, std::memory_order_seq_cst);
  ready_.store(true, std::memory_order_release);
}

bool Inspections::Launch::reaches(uint64_t base) const {
  return std::any_of(memory.begin(), memory.end(),
                     [&](const Memory& m) { return m.block.base == base && !m.gone; });
}

void Inspections::add(Kernel& kernel, bool tables, CUstream stream,
                      const std::vector<Reached>& reached, std::shared_ptr<Kernel> owner,
                      bool first) {
  if (reached.empty()) return;
  auto launch = std::make_unique<Launch>();
  launch->kernel = &kernel;
  launch->owner = std::move(owner);
  launch->tables = tables;
  launch->first = first;
  if (real().cuCtxGetCurrent(&launch->context) == CUDA_SUCCESS) {
    std::lock_guard lock(mutex_);
    std::vector<CUevent>& spare = spare_[launch->context];
    if (!spare.empty()) {
      launch->event = spare.back();
      spare.pop_back();
    }
  }
  constexpr unsigned no_timing = CU_EVENT_DISABLE_TIMING;
  // Waits for nothing: a launch returns at once, whatever it is behind.
  bool recorded = false;
  for (unsigned i = 0; i < tries && !recorded; ++i)
    recorded =
        (launch->event || real().cuEventCreate(&launch->event, no_timing) == CUDA_SUCCESS) &&
        real().cuEventRecord(launch->event, stream) == CUDA_SUCCESS;
  if (!recorded) {
    if (launch->event) (void)real().cuEventDestroy_v2(launch->event);
    for (const Reached& block : reached) stay(block, unreadable);
    return;
  }
  for (const Reached& block : reached)
    launch->memory.push_back({block, block.view->engine->hold_apart(pointer(block.base)), false});
  std::lock_guard lock(mutex_);
  for (const Memory& memory : launch->memory) ++concerned_[memory.block.base];
  launches_.push_back(std::move(launch));
  pending_.fetch_add(1, std::memory_order_release);
  if (!running_) start_thread();
  changed_.notify_all();
}

void Inspections::start_thread() {
  static const int registered = std::atexit([] { inspections().stop(); });
  (void)registered;
  SignalsBlocked blocked;
  try {
    std::thread([this] {
      pthread_setname_np(pthread_self(), "firn-look");
      run();
    }).detach();
    running_ = true;
  } catch (const std::system_error&) {
    // No thread could be started: blocks stay held until the next launch tries again.
  }
}

/// Once exit has begun the driver must not be called: waits a moment for the thread to leave it.
void Inspections::stop() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
  changed_.wait_for(lock, patience, [this] { return !within_; });
}

bool Inspections::concerns(uint64_t base) const {
  std::lock_guard lock(mutex_);
  return concerned_.contains(base);
}

bool Inspections::reach(uint64_t base, std::vector<uint64_t>& addresses) const {
  std::lock_guard lock(mutex_);
  if (!concerned_.contains(base)) return false;
  const auto add = [&](const Launch& launch) {
    if (!launch.reaches(base)) return;
    for (const Memory& memory : launch.memory) addresses.push_back(memory.block.base);
  };
  for (const auto& launch : launches_) add(*launch);
  if (looking_)
    for (const auto& launch : *looking_) add(*launch);
  return true;
}

void Inspections::forget(uint64_t base) {
  if (!pending()) return;
  std::vector<std::pair<Engine*, Hold>> holds;
  {
    std::unique_lock lock(mutex_);
    if (!concerned_.contains(base)) return;
    const auto leave = [&](Launch& launch) {
      for (Memory& memory : launch.memory) {
        if (memory.block.base != base || memory.gone) continue;
        memory.gone = true;
        holds.emplace_back(memory.block.view->engine, memory.hold);
        memory.hold = {};
      }
    };
    for (const auto& launch : launches_) leave(*launch);
    if (looking_)
      for (const auto& launch : *looking_) leave(*launch);
    concerned_.erase(base);
    changed_.wait(lock, [&] { return reading_ != base || stopping_; });
  }
  for (const auto& [engine, hold] : holds) engine->release_apart(hold);
}

void Inspections::drain() {
  std::unique_lock lock(mutex_);
  while (!launches_.empty() || looking_) {
    const uint64_t before = ended_;
    if (!changed_.wait_for(lock, patience, [&] {
          return ended_ != before || stopping_ || (launches_.empty() && !looking_);
        }) || stopping_)
      return;
  }
}

/// Gives up launches that could not be inspected in time: their events end with the context.
void Inspections::context_ends(CUcontext context) {
  drain();
  std::vector<CUevent> events;
  Batch given_up;
  Holds holds;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !querying_ || stopping_; });
    if (stopping_) return;
    for (auto& launch : launches_)
      if (launch->context == context) given_up.push_back(std::move(launch));
    std::erase(launches_, nullptr);
    leave(given_up, holds);
    if (looking_)
      for (const auto& launch : *looking_)
        if (launch->context == context) {
          events.push_back(std::exchange(launch->event, nullptr));
          launch->context = nullptr;
        }
    if (const auto found = spare_.find(context); found != spare_.end()) {
      events.insert(events.end(), found->second.begin(), found->second.end());
      spare_.erase(found);
    }
  }
  for (const auto& launch : given_up) stay_for(*launch);
  release(given_up.size(), holds);
  for (CUevent event : events) (void)real().cuEventDestroy_v2(event);
}

void Inspections::run() {
  Inside inside;  // the driver's own nested calls go to the driver
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !launches_.empty() || stopping_; });
    if (stopping_) return;
    within_ = true;
    lock.unlock();
    Batch batch;
    take_completed(batch);
    if (!batch.empty()) look(batch);
    lock.lock();
    within_ = false;
    if (stopping_) {
      changed_.notify_all();
      return;
    }
    if (batch.empty()) changed_.wait_for(lock, poll, [this] { return stopping_; });
  }
}

/// Moves launches whose work is over into `batch`, which is looking_ from then on.
void Inspections::take_completed(Batch& batch) {
  Runtime* runtime = runtime_here();
  if (!runtime) return;
  std::vector<Launch*> waiting;
  {
    std::lock_guard lock(mutex_);
    for (const auto& launch : launches_) waiting.push_back(launch.get());
    querying_ = true;
  }
  std::erase_if(waiting, [&](Launch* launch) {
    Driver::ContextGuard context(runtime->driver(), launch->context);
    const CUresult result = runtime->driver().event_query(launch->event);
    if (result == CUDA_SUCCESS) return false;
    if (result == CUDA_ERROR_NOT_READY) return true;
    return ++launch->refused < tries;
  });
  std::lock_guard lock(mutex_);
  querying_ = false;
  changed_.notify_all();
  if (waiting.empty()) return;
  for (auto it = launches_.begin(); it != launches_.end();) {
    if (std::find(waiting.begin(), waiting.end(), it->get()) == waiting.end()) {
      ++it;
      continue;
    }
    batch.push_back(std::move(*it));
    it = launches_.erase(it);
  }
  looking_ = &batch;
}

void Inspections::look(Batch& batch) {
  std::unordered_map<uint64_t, bool> seen;  // by base: it could be read
  for (const auto& launch : batch) {
    if (!wanted(*launch->kernel, launch->tables)) continue;
    if (launch->refused >= tries) {  // whether it is over is unknown
      stay_for(*launch);
      continue;
    }
    bool all = true;
    for (size_t i = 0; i < launch->memory.size(); ++i) {
      const Reached block = launch->memory[i].block;
      const auto known = seen.find(block.base);
      const bool read =
          known != seen.end() ? known->second : (seen[block.base] = look_at(block, batch));
      all &= read;
    }
    if (all) continue;
    stay_for(*launch);
  }
  for (const auto& launch : batch)
    (launch->tables ? launch->kernel->looked_at_with_tables : launch->kernel->looked_at)
        .fetch_add(1, std::memory_order_relaxed);
  end(batch);
}

/// Its writes are unknown: every block that it could reach stays, except those freed meanwhile,
/// whose addresses may be other blocks' by now.
void Inspections::stay_for(const Launch& launch) {
  launch.kernel->stores_addresses = true;
  std::vector<Reached> reached;
  {
    std::lock_guard lock(mutex_);
    for (const Memory& memory : launch.memory)
      if (!memory.gone) reached.push_back(memory.block);
  }
  for (const Reached& block : reached) stay(block, unreadable);
}

/// False: it could not be read. A block that was freed meanwhile is as good as read.
bool Inspections::look_at(const Reached& block, Batch& batch) {
  {
    std::lock_guard lock(mutex_);
    if (!concerned_.contains(block.base)) return true;
    reading_ = block.base;
  }
  Finds found;
  bool ok = false;
  for (unsigned i = 0; i < tries && !ok; ++i) {
    found.clear();
    ok = read(block, found);
  }
  {
    std::lock_guard lock(mutex_);
    reading_ = 0;
    changed_.notify_all();
  }
  if (ok) settle(batch, block, found);
  return ok;
}

bool Inspections::read(const Reached& block, Finds& found) {
  const Driver& driver = runtime_here()->driver();
  Driver::ContextGuard context(driver, block.view->context);
  Reader& reader = readers_[block.view->context];
  if (!reader.stream) {
    if (driver.stream_create(&reader.stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) return false;
    if (real().cuMemHostAlloc(&reader.buffer, chunk_bytes, 0) != CUDA_SUCCESS)
      reader.buffer = std::malloc(chunk_bytes);
  }
  if (!reader.buffer) return false;
  const Range arenas = tables().arenas();
  for (uint64_t at = 0; at < block.bytes; at += chunk_bytes) {
    const size_t bytes = std::min<uint64_t>(chunk_bytes, block.bytes - at);
    if (driver.memcpy_dtoh_async(reader.buffer, block.base + at, bytes, reader.stream) !=
            CUDA_SUCCESS ||
        driver.stream_synchronize(reader.stream) != CUDA_SUCCESS)
      return false;
    scan_words(block.base + at, reader.buffer, bytes, arenas, [&](size_t offset, uint64_t value) {
      found.emplace_back(block.base + at + offset, value);
    });
  }
  counters().looked_bytes.fetch_add(block.bytes, std::memory_order_relaxed);
  return true;
}

/// Records those of the addresses found in the block that these launches could have stored there.
void Inspections::settle(Batch& batch, const Reached& block, const Finds& found) {
  for (const auto& [at, value] : found) {
    View* view = views().at(value);
    Reached target;
    // A block's addresses of itself lead nowhere new.
    if (!view || !block_around(*view, value, target) || target.base == block.base ||
        tables().was(at, value))
      continue;
    bool could = false, before = false;
    std::unique_lock lock(mutex_);
    for (const auto& launch : batch) {
      if (!launch->reaches(block.base) || !launch->reaches(target.base)) continue;
      (launch->first ? before : could) = true;
      if (!launch->first) launch->kernel->stores_addresses.store(true, std::memory_order_relaxed);
    }
    lock.unlock();
    if (!could && !before) continue;
    tables().add(at, value);
    if (before) continue;  // whoever stored it: it is followed
    stay(target, stored);
    counters().stored_addresses.fetch_add(1, std::memory_order_relaxed);
  }
}

void Inspections::end(Batch& batch) {
  Holds holds;
  {
    std::lock_guard lock(mutex_);
    looking_ = nullptr;
    leave(batch, holds);
  }
  release(batch.size(), holds);
}

/// Its launches end: recycles their events, collects their holds. With the lock held.
void Inspections::leave(const Batch& batch, Holds& holds) {
  for (const auto& launch : batch) {
    for (const Memory& memory : launch->memory) {
      if (memory.gone) continue;
      holds.emplace_back(memory.block.view->engine, memory.hold);
      const auto it = concerned_.find(memory.block.base);
      if (it != concerned_.end() && --it->second == 0) concerned_.erase(it);
    }
    if (launch->event) spare_[launch->context].push_back(launch->event);
  }
}

void Inspections::release(size_t launches, const Holds& holds) {
  for (const auto& [engine, hold] : holds) engine->release_apart(hold);
  std::lock_guard lock(mutex_);
  ended_ += launches;
  pending_.fetch_sub(launches, std::memory_order_release);
  changed_.notify_all();
}

}  // namespace firn::preload
