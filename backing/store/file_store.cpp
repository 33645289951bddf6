#include "backing/store/file_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <new>
#include <utility>

#include "firn/check.h"
#include "firn/said.h"
#include "firn/topology.h"

namespace firn {

namespace {
constexpr size_t slot_bytes_max = size_t{1} << 30;
constexpr uint64_t share_wait_ns = 500'000'000;    // between counts of neighbours
constexpr uint64_t full_wait_ns = 1'000'000'000;   // after a write that found the disk full
constexpr unsigned depth_least = 4;                // keeps an SSD busy, and a write beside reads

}  // namespace

std::string request_trouble(unsigned queue, const void* data, size_t bytes, size_t slot_bytes) {
  if (queue >= store_queues) return fmt::format("queue {} of {}", queue, store_queues);
  if (bytes != slot_bytes)
    return fmt::format("a request of {} bytes for a slot of {}", bytes, slot_bytes);
  if (reinterpret_cast<uintptr_t>(data) % store_alignment != 0)
    return fmt::format("memory at {} is not aligned to {}", data, store_alignment);
  return {};
}

std::string reservation_trouble(size_t bytes) {
  if (bytes > 0 && bytes % store_alignment == 0 && bytes <= slot_bytes_max) return {};
  return fmt::format("a slot of {} bytes: not a multiple of {} up to {}", bytes, store_alignment,
                     slot_bytes_max);
}

FileStoreCore::Dir::Dir(SpillFile opened)
    : file(std::move(opened)),
      why(file.why()),
      in_dir(Neighbours::join({file.dir()})),
      on_disk(Neighbours::join({disk_of(file.dir())})) {}

FileStoreCore::FileStoreCore(const StoreOptions& options, FileCalls& calls,
                             std::vector<SpillFile> files, bool ring, std::string why)
    : options_(options),
      calls_(calls),
      clock_(options.clock ? *options.clock : wall_clock()),
      ring_(ring),
      why_(std::move(why)),
      slots_(1) {
  IoLimits limits{options.request_bytes, options.depth, options.threads};
  for (SpillFile& file : files) {
    auto dir = std::make_unique<Dir>(std::move(file));
    dir->io = std::make_unique<DirIo>(dir->file, calls, *this, limits, ring,
                                      static_cast<unsigned>(dirs_.size()));
    dir->own = options.own_dirs.empty() ||
               std::find(options.own_dirs.begin(), options.own_dirs.end(), dirs_.size()) !=
                   options.own_dirs.end();
    dirs_.push_back(std::move(dir));
  }
  for (const auto& dir : dirs_) growing_files_.emplace_back(dir->file);
}

/// Called by I/O threads, after a job: a wait for the engine's lock never includes a count of
/// neighbours. All sharers together have no more in flight than one alone would: an urgent read has
/// no more requests before it.
void FileStoreCore::share() {
  const uint64_t now = clock_.now_ns();
  uint64_t due = share_again_ns_.load(std::memory_order_relaxed);
  if (now < due || !share_again_ns_.compare_exchange_strong(due, now + share_wait_ns,
                                                            std::memory_order_relaxed))
    return;
  for (auto& dir : dirs_) {
    const unsigned sharers = std::max(dir->in_dir.count(), dir->on_disk.count());
    dir->sharers.store(sharers, std::memory_order_relaxed);
    dir->io->share_depth(
        std::max(options_.depth / sharers, std::min(options_.depth, depth_least)));
  }
}

FileStoreCore::~FileStoreCore() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  grow_due_.notify_all();
  grow_tried_.notify_all();
  if (growing_.joinable()) growing_.join();
  for (auto& dir : dirs_) dir->io->stop();  // threads end while all they report to still stands
}

Result<void> FileStoreCore::attach_staging(std::span<std::byte> staging) {
  if (staging.empty() || reinterpret_cast<uintptr_t>(staging.data()) % store_alignment != 0 ||
      staging.size() % store_alignment != 0)
    return invalid(fmt::format("staging of {} bytes at {}: not aligned to {}", staging.size(),
                               static_cast<void*>(staging.data()), store_alignment));
  // All of them or none: the memory behind these addresses may be another's after a refusal.
  size_t attached = 0;
  const auto undo = [&] {
    while (attached > 0) dirs_[--attached]->io->detach(staging);
  };
  try {
    for (; attached < dirs_.size(); ++attached) {
      Result<void> done = dirs_[attached]->io->attach(staging);
      if (done) continue;
      undo();
      return done;
    }
  } catch (const std::bad_alloc&) {
    undo();
    throw;
  }
  return {};
}

void FileStoreCore::detach_staging(std::span<std::byte> staging) {
  for (auto& dir : dirs_) dir->io->detach(staging);
}

FileStoreCore::SlotState* FileStoreCore::state_of(Slot slot) {
  if (slot.id == 0 || slot.id >= slots_.size() || slots_[slot.id].bytes == 0 ||
      slots_[slot.id].discarded)
    return nullptr;
  return &slots_[slot.id];
}

Result<Slot> FileStoreCore::reserve(size_t bytes, bool wait) {
  if (std::string trouble = reservation_trouble(bytes); !trouble.empty()) return invalid(trouble);
  const uint64_t now = clock_.now_ns();
  std::unique_lock lock(mutex_);
  struct Number {  // taken first: room must not be lost for want of memory
    FileStoreCore& store;
    std::unique_lock<RankedMutex<Rank::store>>& lock;
    uint32_t id;
    ~Number() {
      if (id == 0) return;
      if (!lock.owns_lock()) lock.lock();
      store.give_id(id);
    }
  } number{*this, lock, take_id()};
  // Its own, then the others; of these the one with the least in flight; equals in turn.
  std::vector<size_t> order(dirs_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::rotate(order.begin(), order.begin() + static_cast<ptrdiff_t>(next_dir_ % order.size()),
              order.end());
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (dirs_[a]->own != dirs_[b]->own) return dirs_[a]->own;
    return dirs_[a]->outstanding_bytes < dirs_[b]->outstanding_bytes;
  });
  Error last = make_error(Code::no_space, 0, "");
  bool busy = false, pauses = false;
  std::string words;
  for (size_t at : order) {
    Dir& dir = *dirs_[at];
    if (busy && !dir.own) break;  // its own will have room
    if (!dir.writable || now < dir.full_until_ns || !dir.health.takes_slots(now)) {
      words += (words.empty() ? "" : "; ") + dir.trouble;
      pauses |= dir.writable && dir.health.pauses(now);
      continue;
    }
    Result<uint64_t> offset = find_room(dir, bytes, wait, lock);
    if (!offset) {
      last = offset.error();
      busy |= last.code == Code::busy;
      words += (words.empty() ? "" : "; ") + last.text;
      continue;
    }
    next_dir_ = at + 1;
    const uint32_t id = std::exchange(number.id, 0);
    slots_[id].dir = static_cast<uint32_t>(at);
    slots_[id].offset = *offset;
    slots_[id].bytes = bytes;
    ++slots_in_use_;
    slot_bytes_ += bytes;
    return Slot{id};
  }
  last.code = busy ? Code::busy : pauses ? Code::io : Code::no_space;
  last.text = fmt::format("no room for a slot of {} bytes: {}", bytes, words);
  return last;
}

Result<void> FileStoreCore::submit(StoreCompletion::Kind kind, unsigned queue, Slot slot,
                                   std::byte* data, size_t bytes, uint64_t tag) {
  auto job = std::make_unique<Job>();
  job->kind = kind;
  job->queue = queue;
  job->tag = tag;
  job->slot = slot;
  job->data = data;
  job->bytes = bytes;
  job->submitted_ns = clock_.now_ns();
  job->completion.emplace_back();
  Dir* dir = nullptr;
  {
    std::lock_guard lock(mutex_);
    SlotState* at = state_of(slot);
    if (!at) return invalid(fmt::format("slot {} is not reserved", slot.id));
    std::string trouble = request_trouble(queue, data, bytes, at->bytes);
    if (!trouble.empty()) return invalid(fmt::format("slot {}: {}", slot.id, trouble));
    if (job->write() ? at->jobs > 0 : at->writing)
      return invalid(fmt::format("slot {}: a request for it is in flight", slot.id));
    if (!job->write() && !at->filled)
      return invalid(fmt::format("slot {} holds nothing readable", slot.id));
    dir = dirs_[at->dir].get();
    job->offset = at->offset;
    job->sum = at->sum;
    job->was_filled = at->filled;
    if (job->write()) {
      at->filled = false;
      at->writing = true;
    }
    ++at->jobs;
    dir->outstanding_bytes += bytes;
    (job->write() ? dir->writes : dir->reads).begin(clock_.now_ns());
  }
  Job refused;  // for settle(), if the job is not taken
  refused.kind = kind;
  refused.slot = slot;
  refused.bytes = bytes;
  refused.was_filled = job->was_filled;
  refused.sum = job->sum;
  Result<void> begun;
  try {
    begun = dir->io->submit(std::move(job));
  } catch (const std::bad_alloc&) {
    begun = make_error(Code::io, ENOMEM, "no memory");  // (short: it takes none)
  }
  if (!begun) {
    std::lock_guard lock(mutex_);
    refused.error = make_error(Code::cancelled, 0, "");
    settle(slots_[slot.id], refused, *dir);
  }
  return begun;
}

std::optional<bool> FileStoreCore::holds(Slot slot, std::span<const std::byte> bytes) {
  Sum sum;
  {
    std::lock_guard lock(mutex_);
    const SlotState* at = state_of(slot);
    if (!at || !at->filled || at->bytes != bytes.size()) return std::nullopt;
    sum = at->sum;
  }
  return sum_of(bytes.data(), bytes.size()) == sum;
}

/// A job is over: what its slot holds now, and whether its room goes back. mutex_ held.
void FileStoreCore::settle(SlotState& state, const Job& job, Dir& dir) {
  dir.outstanding_bytes -= job.bytes;
  (job.write() ? dir.writes : dir.reads).end(job.failed() ? 0 : job.bytes, clock_.now_ns());
  --state.jobs;
  if (job.write()) {
    state.writing = false;
    if (!job.failed()) {
      state.filled = true;
      state.sum = job.sum;
    } else if (job.error.code == Code::cancelled) {
      state.filled = job.was_filled;  // nothing was begun
    }
  }
  if (state.discarded && state.jobs == 0) release(job.slot.id);
}

uint32_t FileStoreCore::take_id() {
  if (first_unused_ == 0) {
    slots_.emplace_back();
    return static_cast<uint32_t>(slots_.size() - 1);
  }
  const uint32_t id = first_unused_;
  first_unused_ = std::exchange(slots_[id].next, 0);
  if (first_unused_ == 0) last_unused_ = 0;
  return id;
}

void FileStoreCore::give_id(uint32_t id) noexcept {
  slots_[id] = SlotState{};
  (last_unused_ ? slots_[last_unused_].next : first_unused_) = id;
  last_unused_ = id;
}

void FileStoreCore::release(uint32_t id) noexcept {
  SlotState& state = slots_[id];
  Dir& dir = *dirs_[state.dir];
  if (state.suspect)
    dir.quarantined_bytes += state.bytes;
  else
    dir.free.release(state.offset, state.bytes);
  --slots_in_use_;
  slot_bytes_ -= state.bytes;
  give_id(id);
}

std::string FileStoreCore::judge(Dir& dir, SlotState& state, const Job& job) {
  const uint64_t now = clock_.now_ns();
  const Code code = job.error.code;
  if (code == Code::lost) return closed(dir, job.error);
  if ((code == Code::io || code == Code::no_space) && !dir.health.distrusted())
    dir.trouble = job.error.text;
  if (code == Code::no_space) dir.full_until_ns = now + full_wait_ns;
  if (code == Code::io) (void)dir.health.failed(now);
  if (job.wrong.empty()) return {};
  state.suspect = true;
  if (job.failed() && code != Code::corrupt) return {};
  const bool healed = !job.failed();
  ++(healed ? reread_ : corrupt_);
  if (!(healed ? dir.health.healed(now) : dir.health.wrong())) return {};
  dir.trouble = fmt::format(
      "{}: Firn stops writing to this directory for good: {} had a wrong checksum{}, the last in "
      "{}. Firn still reads the data there. Check the disk's own log (smartctl, nvme smart-log), "
      "and take the directory out of firn_dir",
      dir.file.dir(),
      healed ? fmt::format("{} reads within {} s", DirHealth::healed_most,
                           DirHealth::healed_within_ns / DirHealth::second_ns)
             : fmt::format("{} reads", DirHealth::wrong_most),
      healed ? " and a right one when repeated" : "", place_words(job, dir.file));
  return dir.trouble;
}

void FileStoreCore::finished(std::unique_ptr<Job> job) {
  {
    std::lock_guard lock(mutex_);
    // Its completion was allocated with the job: it comes even if memory is out.
    StoreCompletion& completion = job->completion.front();
    completion.tag = job->tag;
    completion.kind = job->kind;
    completion.slot = job->slot;
    completion.bytes = job->bytes;
    completion.busy_ns = clock_.now_ns() - job->submitted_ns;
    SlotState& at = slots_[job->slot.id];
    Dir& dir = *dirs_[at.dir];
    try {
      if (const std::string words = judge(dir, at, *job); !words.empty()) say("firn: " + words);
    } catch (const std::bad_alloc&) {  // then nothing is said
    }
    if (!job->failed()) {
      (job->write() ? dir.written_bytes : dir.read_bytes) += job->bytes;
      completion.sum = job->sum;
    }
    settle(at, *job, dir);
    completion.error = std::move(job->error);
    auto& done = done_[job->queue];
    done.splice(done.end(), job->completion);
  }
  try {
    clock_.notify();
    Said::of_process().write();
    share();
  } catch (const std::bad_alloc&) {  // the neighbours are counted again later
    clock_.notify();
  }
}

bool FileStoreCore::cancel(unsigned queue, uint64_t tag) {
  for (auto& dir : dirs_) {
    std::unique_ptr<Job> job = dir->io->withdraw(queue, tag);
    if (!job) continue;
    std::lock_guard lock(mutex_);
    job->error = make_error(Code::cancelled, 0, "withdrawn before it began");
    settle(slots_[job->slot.id], *job, *dir);
    return true;
  }
  return false;
}

void FileStoreCore::discard(Slot slot) {
  std::lock_guard lock(mutex_);
  SlotState* at = state_of(slot);
  FIRN_CHECK(at, "discard of slot %u, which is not reserved", slot.id);
  at->discarded = true;
  if (at->jobs == 0) release(slot.id);
}

size_t FileStoreCore::poll(unsigned queue, std::span<StoreCompletion> out) {
  FIRN_CHECK(queue < store_queues, "queue %u of %u", queue, store_queues);
  std::lock_guard lock(mutex_);
  auto& done = done_[queue];
  size_t count = std::min(done.size(), out.size());
  for (size_t i = 0; i < count; ++i) {
    out[i] = std::move(done.front());
    done.pop_front();
  }
  return count;
}

StoreStats FileStoreCore::stats() const {
  StoreStats stats;
  bool ring = ring_;
  std::string why = why_;
  auto add = [&](const std::string& words) {
    if (!words.empty()) why += (why.empty() ? "" : "; ") + words;
  };
  for (const auto& dir : dirs_) {
    if (ring_) ring = ring && dir->io->ring();
    add(dir->io->why());
  }
  const uint64_t now = clock_.now_ns();
  std::lock_guard lock(mutex_);
  stats.kind = ring ? "io_uring" : "threads";
  for (const auto& dir : dirs_) {
    add(dir->why);
    stats.dirs.push_back({dir->file.dir(), dir->written_bytes, dir->read_bytes, dir->file_bytes,
                          dir->trouble,
                          dir->writable && now >= dir->full_until_ns &&
                              dir->health.takes_slots(now),
                          dir->writes.bytes_s(), dir->reads.bytes_s(), dir->own,
                          dir->sharers.load(std::memory_order_relaxed), dir->quarantined_bytes});
    stats.quarantined_bytes += dir->quarantined_bytes;
    stats.written_bytes += dir->written_bytes;
    stats.read_bytes += dir->read_bytes;
  }
  stats.why = std::move(why);
  stats.slots_in_use = slots_in_use_;
  stats.slot_bytes_in_use = slot_bytes_;
  stats.reread = reread_;
  stats.corrupt = corrupt_;
  return stats;
}

}  // namespace firn
