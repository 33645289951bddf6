// Opening a device's engine, looking up addresses, and pump(): one round of everything that
// completes by itself.
#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "allocator/blocks/each_of.h"
#include "allocator/engine/hot.h"
#include "firn/canary.h"
#include "firn/check.h"
#include "firn/said.h"

namespace firn {

int& EngineImpl::shared_cell_holds(int device) {
  static thread_local int holds[64];
  return holds[device & 63];
}

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options, const Driver& driver,
                                             Store* store, unsigned queue, Clock& clock,
                                             TraceWriter* trace) {
  auto engine = std::make_unique<EngineImpl>(options, driver, store, queue, clock, trace);
  if (Result<void> started = engine->start(); !started) return started.error();
  return std::unique_ptr<Engine>(std::move(engine));
}

/// Pieces lie within spans.
static EngineOptions with_whole_pieces(EngineOptions options) {
  const auto whole = [](uint64_t bytes, uint64_t most) {
    return std::bit_floor(std::clamp<uint64_t>(bytes, granule_bytes, most));
  };
  options.span_bytes = whole(options.span_bytes, large_frame_granules * granule_bytes);
  options.piece_bytes = whole(options.piece_bytes, options.span_bytes);
  return options;
}

EngineImpl::EngineImpl(const EngineOptions& options, const Driver& driver, Store* store,
                       unsigned queue, Clock& clock, TraceWriter* trace)
    : options_(with_whole_pieces(options)),
      span_granules_(static_cast<uint32_t>(options_.span_bytes / granule_bytes)), driver_(driver),
      store_(store), clock_(clock), trace_(trace),
      traced_(trace || options.verify), health_(driver, options.device),
      frames_(driver, health_, options.device, options.budget_bytes),
      host_(driver, store, options.host_bytes, options.host_left, options.host_own,
            options.no_bytes, frames_.host_location().id, options.host_ahead, options.host_room),
      streams_(driver, health_),
      transfers_({driver, health_, streams_, uses_, host_, frames_.host_location(), store, queue,
                  clock, [this](const std::string& words) FIRN_HELD { trouble(words); }}),
      mapper_({driver, health_, frames_, transfers_.gate(), clock, options.device, span_granules_,
               poll_ns}),
      movement_({*this,
                 {options_.span_bytes, options_.piece_bytes, options_.io_patience_ns,
                  options_.sums, options_.verify, options_.guard, options_.poison},
                 driver, health_, clock, store, host_, streams_, uses_, transfers_, mapper_}),
      births_({span_granules_ * granule_pages,
               [this](unsigned stream, unsigned size_class) {
                 return ready(stream).count(table_, size_class, Births::events_ahead);
               },
               [this](Identity identity, uint64_t known_as) FIRN_HELD {
                 return placed_.place_of(identity, known_as) != nullptr;
               }}) {
  if (options.verify) net_ = std::make_unique<Net>();
}

Result<void> EngineImpl::start() {
  Entered context(*this);
  if (Result<void> usable = can_use(context); !usable) return usable;
  if (options_.budget_bytes < 2 * granule_bytes)
    return make_error(Code::invalid_argument, 0,
                      fmt::format("firn_budget: {} bytes is less than the minimum of {} bytes",
                                  options_.budget_bytes, 2 * granule_bytes));
  if (Result<void> fine = frames_.check(); !fine) return fine;
  // Addresses are plenty: every block keeps its own, also while most of them are spilled.
  Result<std::unique_ptr<Arena>> arena = Arena::reserve(driver_, uint64_t{4} << 40);
  if (!arena) return arena.error();
  arena_ = std::move(*arena);
  if (Result<void> started = transfers_.start(options_.copy_gate); !started) {
    arena_.reset();  // (Else opening engines again and again would use up all addresses.)
    return started;
  }
  Lock lock(mutex_);
  const auto out = static_cast<unsigned>(see_stream(transfers_.out_stream()));
  const auto in = static_cast<unsigned>(see_stream(transfers_.in_stream()));
  transfers_.know_streams(out, in);
  if (options_.watch_fraction <= 0 || options_.adversarial) watching_ = true;
  if (options_.policy != Policy::age) {
    ring_ = std::make_unique<EventRing>();
    learner_ = std::make_unique<Learner>(*ring_, table_, streams_, options_.places);
  }
  return {};
}

Block* EngineImpl::block_at(uint64_t address) const {
  if (!arena_->contains(address)) return nullptr;
  uint32_t number = arena_->at(address);
  if (number == 0) return nullptr;
  if (!(number & SmallBlocks::segment_mark)) {
    Block* block = large_at(number, address);
    return block && address - block->address < block->mapped_bytes() ? block : nullptr;
  }
  return small_blocks_.at(number, address, table_);
}

Block* EngineImpl::live_at(const void* pointer, bool exact) const {
  auto address = reinterpret_cast<uint64_t>(pointer);
  Block* block = block_at(address);
  if (!block || (exact && block->address != address)) return nullptr;
  uint64_t w = block->word.load();
  State state = word::state(w);
  if (state == State::free || state == State::ready || state == State::draining ||
      (w & word::freed))
    return nullptr;
  return block;
}

void EngineImpl::context_ends(CUcontext context) {
  Lock lock(mutex_);
  while (device_waited_ == context) wait(lock, poll_ns);
  streams_.context_ends(context);
}

void EngineImpl::may_end(CUstream stream) {
  int index = streams_.find(stream);
  if (index >= 0 && streams_.may_end_known(static_cast<unsigned>(index))) return;
  Lock lock(mutex_);
  index = see_stream(stream);
  if (index >= 0) streams_.may_end(static_cast<unsigned>(index));
}

bool EngineImpl::contains(const void* pointer) const {
  return arena_->contains(reinterpret_cast<uint64_t>(pointer));
}

std::optional<BlockInfo> EngineImpl::find(const void* pointer) const {
  Block* block = live_at(pointer, false);
  if (!block) return std::nullopt;
  BlockInfo info = describe_block(*block, block->word.load());
  info.live = true;
  return info;
}

BlockInfo EngineImpl::describe_block(const Block& block, uint64_t w) const {
  BlockInfo info;
  info.base = reinterpret_cast<void*>(block.address);
  info.bytes = block.bytes;
  info.requested_bytes = block.requested;
  info.capacity = block.pages ? block.mapped_bytes() : size_t{block.bytes};
  info.stream = streams_.handle(block.stream);
  info.state = state_names[static_cast<int>(state_of(block))];
  info.small = w & word::small;
  info.live = word::state(w) != State::ready && word::state(w) != State::draining &&
              !(w & (word::freed | word::segment));
  info.recorded = w & word::recorded;
  info.pins = word::holds(w) + ((w & word::pinned) ? 1 : 0);
  return info;
}

/// Before anything that needs the driver: the error to return if it is gone. (Not under the lock.)
Result<void> EngineImpl::can_use(const Driver::ContextGuard& context) {
  const CUresult result = context.result();
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_PERMITTED &&
      result != CUDA_ERROR_DEINITIALIZED) {
    Lock lock(mutex_);
    health_.end("cuCtxPushCurrent", result);
  }
  if (health_.dead()) return health_.error();
  if (result != CUDA_SUCCESS) return driver_.error("cuCtxPushCurrent", result);
  return {};
}

/// A call was abandoned in its middle: the process has no memory for the engine's bookkeeping.
/// Blocks may be half moved: nothing is moved from here on, so that no byte is handed over that
/// might be wrong.
void EngineImpl::left_undone() noexcept {
  Lock lock(mutex_);
  health_.end_without_memory();
}

bool EngineImpl::pump() {
  if (abandoned_) return false;
  Entered context(*this);
  if (!can_use(context)) {
    busy_.store(false, std::memory_order_relaxed);
    return false;
  }
  Lock lock(mutex_);
  bool changed = pump_locked();
  if (health_.dead()) {  // waiting threads get the error
    lock.unlock();
    clock_.notify();
    return false;
  }
  changed |= movement_.carry_out_sums(lock);
  changed |= carry_out_device_wait(lock);
  changed |= carry_out_unmappings(lock);
  changed |= take_hints();
  changed |= run_prefetches();
  learn(lock);
  const bool asleep = learner_ && learner_->history().now() == asleep_at_;
  changed |= !asleep && carry_out();
  changed |= carry_out_unmappings(lock);
  changed |= carry_out_mappings(lock);
  if (trace_) trace_sample();
  context.told |= !events_.empty();  // (those of calls that could not tell them)
  bool awaited = waiting_ > 0;
  lock.unlock();
  if (changed && awaited) clock_.notify();
  return changed;
}

bool EngineImpl::pump_locked() {
  if (health_.dead()) return false;
  settle_freed();
  if (learner_)
    reading_.tell(clock_.now_ns(),
                  transfers_.bandwidths().busy(lifetimes::Channel::store_read));
  bool changed = movement_.begin_round();
  changed |= streams_.poll();
  if (health_.dead()) return false;
  if (learner_) learner_->poll_time(clock_.now_ns());
  changed |= movement_.reap_copies();
  changed |= movement_.advance();
  each_of(draining_, [this](Block& block) FIRN_HELD { finish_drain(block); });
  settle_deferred();
  take_back_later();
  if (!placed_.active() && !placed_.regions().empty()) (void)reclaim_regions(UINT64_MAX);
  if (store_) changed |= movement_.write_back();
  host_.look_again(clock_.now_ns());
  host_due_.store(host_.ahead_due(), std::memory_order_release);
  busy_.store(movement_.busy() || transfers_.requesting() || transfers_.copying() ||
                  !draining_.empty() || !deferred_.empty() || !unkept_.empty() ||
                  !prefetches_.empty() || !hints_.empty() ||
                  mapper_.mappings_due() > 0 || mapper_.unmappings_due() > 0 || waiting_ > 0 ||
                  streams_.device_wait_due() || !aside_.empty() ||
                  (learner_ && learner_->clock().pending()),
              std::memory_order_relaxed);
  return changed;
}

bool EngineImpl::busy() const { return busy_.load(std::memory_order_relaxed); }

/// For `ns` at most. (Where no thread pumps, it waits for the device if that is due.)
void EngineImpl::wait(Lock& lock, uint64_t ns) {
  if (!options_.served && carry_out_device_wait(lock)) return;
  busy_.store(true, std::memory_order_relaxed);
  const UnlockedEngine unlocked(lock);
  clock_.wait(ns);
}

/// Goes on once the use may be over: the caller looks again. Without an event behind it, the stream
/// is asked. (For arrivals: Firn's own stream is never captured, and answers at last.)
void EngineImpl::await(Lock& lock, Use use) {
  if (!streams_.close(use) && streams_.ask(use)) return;
  if (!streams_.poll()) wait(lock, poll_ns);
}

/// Waits for the device where streams whose handles may be gone have work there. One thread does,
/// without the lock.
bool EngineImpl::carry_out_device_wait(Lock& lock) {
  if (device_waited_ || !streams_.device_wait_due()) return false;
  const std::optional<Streams::DeviceWait> wait = streams_.begin_device_wait();
  if (!wait) return false;
  device_waited_ = wait->context ? wait->context : options_.context;
  CUresult result;
  {
    const UnlockedEngine unlocked(lock);
    std::optional<Driver::ContextGuard> other;
    if (wait->context) other.emplace(driver_, wait->context);
    none_held("cuCtxSynchronize");
    result = other ? other->result() : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) result = driver_.ctx_synchronize();
  }
  device_waited_ = nullptr;
  streams_.end_device_wait(*wait, result);
  return result == CUDA_SUCCESS;
}

void EngineImpl::trace(const char* event, const Block& block, const char* detail) {
  if (net_) net_->note(block, clock_.now_ns(), event, detail);
  if (trace_)
    trace_->row(clock_.now_ns(), event, options_.device, block.stream, block.address,
                block.requested, detail);
}

void EngineImpl::trace_sample() {
  uint64_t now = clock_.now_ns();
  if (now - sample_ns_ < 10'000'000) return;
  sample_ns_ = now;
  const Moved moved = movement_.moved();
  uint64_t nvme = 0, hosted = 0, away_nvme = 0, away_host = 0, dropped = 0;
  for (const Block* block : live_) {
    if (block->state() == State::dropped) {
      dropped += block->requested;
      continue;
    }
    for (const Piece& piece : block->pieces) {
      if (piece.slot_valid) nvme += piece.bytes;
      if (piece.host_valid) hosted += piece.bytes;
      if (block->span_of(piece).mapped()) continue;
      (piece.host_valid ? away_host : away_nvme) += piece.bytes;
    }
  }
  trace_->row(
      now, "sample", options_.device, 0, 0, 0,
      fmt::format("resident={};hosted={};nvme={};away_host={};away_nvme={};dropped={};budget={};"
                  "flight={};allocated={};out={};in={};written={};read={}",
                  (frames_.held_granules() - frames_.free_granules()) * granule_bytes, hosted,
                  nvme, away_host, away_nvme, dropped, frames_.budget_granules() * granule_bytes,
                  transfers_.in_flight_bytes(), hot_.allocated_bytes().current(),
                  moved.spilled_bytes, moved.faulted_bytes + moved.prefetched_bytes,
                  moved.store_written_bytes, moved.store_read_bytes));
  if (now - pinned_ns_ < 500'000'000) return;
  pinned_ns_ = now;
  for (const PinnedBytes& pinned : pinned_bytes())
    trace_->row(now, "pinned", options_.device, 0, 0, pinned.bytes, pinned.reason);
}

/// (Queued: no thread waits under the lock for the reader of stderr.)
void EngineImpl::say(const std::string& words) const {
  firn::say(fmt::format("firn: device {}: {}", options_.device, words));
}

void EngineImpl::trouble(const std::string& words) {
  auto& list = counted_.trouble;
  if (std::find(list.begin(), list.end(), words) != list.end()) return;
  if (list.size() < 32) list.push_back(words);
  if (list.size() == 32) return;
  say(words);
}

/// One thread does it; others go on meanwhile, but nothing leaves before it is done.
void EngineImpl::reach_watch() {
  if (watching_.load(std::memory_order_relaxed) || !watch_due_) return;
  EngineObserver* observer;
  {
    Entered context(*this);
    Lock lock(mutex_);
    if (watching_ || watch_begins_ != std::thread::id()) return;
    // Waiting for the device would spoil a capture: watching begins, and blocks leave, only after
    // its end.
    if (!streams_told_.load(std::memory_order_acquire) && streams_.any_captured()) return;
    observer = observer_.load(std::memory_order_relaxed);
    if (!observer || std::exchange(watch_told_, true)) {
      begin_watching();
      return;
    }
    watch_begins_ = std::this_thread::get_id();
  }
  try {
    observer->watching_begins();
  } catch (...) {  // another allocation tries again
    Lock lock(mutex_);
    watch_told_ = false;
    watch_begins_ = std::thread::id();
    throw;
  }
  // Uses before this moment were not seen: they must be over before anything can leave. Where
  // streams were seen, any block may be in use on any of them; they are not waited for here, since
  // they may wait for what this thread enqueues next.
  Entered context(*this);
  const bool streams_told = streams_told_.load(std::memory_order_acquire);
  CUresult result = CUDA_SUCCESS;
  if (!streams_told) {
    none_held("cuCtxSynchronize");
    result = driver_.ctx_synchronize();
  }
  Lock lock(mutex_);
  begin_watching();
  watch_begins_ = std::thread::id();
  if (result != CUDA_SUCCESS) return health_.end("cuCtxSynchronize", result);
  for (Block* block : live_) {
    for (unsigned stream = 0; streams_told && stream < streams_.count(); ++stream)
      if (stream != transfers_.out() && stream != transfers_.in())
        uses_.add(*block, streams_.now(stream));
    prove_told(*block);
  }
}

/// From here on, all uses of the block are reported.
void EngineImpl::prove_told(Block& block) {
  uint64_t w = block.word.load();
  while ((w & word::told) && !(w & word::freed) && word::state(w) == State::resident)
    if (block.word.try_prove(w)) return;
}

}  // namespace firn
