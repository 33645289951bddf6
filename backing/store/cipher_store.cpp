#include "backing/store/cipher_store.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "firn/check.h"
#include "firn/signals_blocked.h"

namespace firn {

namespace {
}  // namespace

CipherStoreCore::CipherStoreCore(std::unique_ptr<Store> lower, std::unique_ptr<Cipher> cipher,
                                 Clock& clock, unsigned threads)
    : lower_(std::move(lower)), cipher_(std::move(cipher)), clock_(clock),
      threads_most_(threads) {
  spare_.reserve(buffers_most);
}

CipherStoreCore::~CipherStoreCore() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  lower_.reset();  // waits for its I/O, which uses our buffers
}

void CipherStoreCore::abandon() {
  lower_->abandon();
  (void)lower_.release();
}

CipherStoreCore::SlotState* CipherStoreCore::state_of(Slot slot) {
  const auto found = slots_.find(slot.id);
  return found == slots_.end() || found->second.discarded ? nullptr : &found->second;
}

Result<Slot> CipherStoreCore::reserve(size_t bytes, bool wait) {
  Result<Slot> slot = lower_->reserve(bytes, wait);
  if (!slot) return slot;
  try {
    std::lock_guard lock(mutex_);
    SlotState& at = slots_[slot->id];
    at = SlotState{};
    at.bytes = bytes;
  } catch (const std::bad_alloc&) {
    lower_->discard(*slot);
    throw;
  }
  return slot;
}

/// mutex_ held.
Result<void> CipherStoreCore::start() {
  SignalsBlocked blocked;
  try {
    while (threads_.size() < threads_most_) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error& refused) {  // fewer threads will do
    if (threads_.empty())
      return make_error(Code::io, refused.code().value(),
                        fmt::format("firn_encrypt: cannot start a thread: {}", refused.what()));
  }
  return {};
}

Result<void> CipherStoreCore::submit(StoreCompletion::Kind kind, unsigned queue, Slot slot,
                                     std::byte* data, size_t bytes, uint64_t tag) {
  const uint64_t now = clock_.now_ns();
  std::lock_guard lock(mutex_);
  SlotState* at = state_of(slot);
  if (!at) return invalid(fmt::format("slot {} is not reserved", slot.id));
  if (std::string trouble = request_trouble(queue, data, bytes, at->bytes); !trouble.empty())
    return invalid(fmt::format("slot {}: {}", slot.id, trouble));
  const bool write = kind == StoreCompletion::Kind::write;
  if (write ? at->jobs > 0 : at->writing)
    return invalid(fmt::format("slot {}: a request for it is in flight", slot.id));
  if (!write && !at->filled)
    return invalid(fmt::format("slot {} holds nothing readable", slot.id));
  if (Result<void> started = start(); !started) return started;
  const uint64_t id = ++ids_;
  auto made = std::make_unique<Request>(
      Request{kind, queue, tag, slot, data, bytes, now,
              write ? Request::Step::waits : Request::Step::below, nullptr, at->seal});
  made->turn.push_back(id);
  made->completion.emplace_back();
  Request& request = *made;
  requests_[id] = std::move(made);
  if (write) {
    at->writing = true;
    to_encrypt_.splice(to_encrypt_.end(), request.turn);
    changed_.notify_one();
  } else {
    Result<void> begun;
    try {
      begun = lower_->read(queue, slot, {data, bytes}, id);
    } catch (const std::bad_alloc&) {
      requests_.erase(id);
      throw;
    }
    if (!begun) {
      requests_.erase(id);
      return begun;
    }
    ++below_[queue];
  }
  ++at->jobs;
  return {};
}

bool CipherStoreCore::cancel(unsigned queue, uint64_t tag) {
  std::lock_guard lock(mutex_);
  for (auto& [id, request] : requests_) {
    if (request->queue != queue || request->tag != tag) continue;
    if (request->step == Request::Step::under_way) continue;
    if (request->step == Request::Step::below) {
      // (A write that got so far has changed what its slot holds.)
      if (request->write() || !lower_->cancel(queue, id)) continue;
      --below_[queue];
    } else {
      std::erase(request->write() ? to_encrypt_ : to_decrypt_, id);
    }
    const Slot slot = request->slot;
    SlotState& at = slots_.at(slot.id);
    if (request->write()) at.writing = false;  // what was there is there still
    requests_.erase(id);
    leave(at, slot);
    return true;
  }
  return false;
}

void CipherStoreCore::discard(Slot slot) {
  std::lock_guard lock(mutex_);
  SlotState* at = state_of(slot);
  FIRN_CHECK(at, "discard of slot %u, which is not reserved", slot.id);
  at->discarded = true;
  ++at->jobs;
  leave(*at, slot);
}

/// One request for the slot is over; the last one lets its room go. mutex_ held.
void CipherStoreCore::leave(SlotState& at, Slot slot) {
  if (--at.jobs > 0 || !at.discarded) return;
  slots_.erase(slot.id);
  lower_->discard(slot);
}

std::optional<bool> CipherStoreCore::holds(Slot slot, std::span<const std::byte> bytes) {
  Sum sum;
  {
    std::lock_guard lock(mutex_);
    const SlotState* at = state_of(slot);
    if (!at || !at->filled || at->writing || at->bytes != bytes.size()) return std::nullopt;
    sum = at->seal.sum;
  }
  return sum_of(bytes.data(), bytes.size()) == sum;
}

void CipherStoreCore::end(uint64_t id, Error error) {
  const auto found = requests_.find(id);
  FIRN_CHECK(found != requests_.end(), "request %llu ends twice", (unsigned long long)id);
  Request& request = *found->second;
  SlotState& at = slots_.at(request.slot.id);
  if (request.write()) {
    at.writing = false;
    at.filled = error.code == Code::ok;
    at.seal = request.seal;
  }
  if (request.buffer) {
    spare_.push_back(std::move(request.buffer));
    changed_.notify_one();
  }
  StoreCompletion& completion = request.completion.front();
  completion.tag = request.tag;
  completion.kind = request.kind;
  completion.slot = request.slot;
  completion.bytes = request.bytes;
  completion.busy_ns = clock_.now_ns() - request.submitted_ns;
  if (error.code == Code::ok) completion.sum = request.seal.sum;
  completion.error = std::move(error);
  auto& done = done_[request.queue];
  done.splice(done.end(), request.completion);
  const Slot slot = request.slot;
  requests_.erase(found);
  leave(at, slot);
}

/// Takes the completions of the store below: of every queue, since others may wait for the buffers
/// of an engine that does not poll. mutex_ held.
void CipherStoreCore::take_completed() {
  std::array<StoreCompletion, 32> done;
  for (unsigned queue = 0; queue < store_queues; ++queue) {
    const size_t count = below_[queue] > 0 ? lower_->poll(queue, done) : 0;
    below_[queue] -= count;
    for (size_t i = 0; i < count; ++i) {
      const auto found = requests_.find(done[i].tag);
      FIRN_CHECK(found != requests_.end(), "completed: queue %u, request %llu, never begun",
                 queue, (unsigned long long)done[i].tag);
      Request& request = *found->second;
      if (request.write() || done[i].error.code != Code::ok) {
        end(done[i].tag, std::move(done[i].error));
        continue;
      }
      request.step = Request::Step::waits;
      to_decrypt_.splice(to_decrypt_.end(), request.turn);
      changed_.notify_one();
    }
  }
}

size_t CipherStoreCore::poll(unsigned queue, std::span<StoreCompletion> out) {
  FIRN_CHECK(queue < store_queues, "queue %u of %u", queue, store_queues);
  std::lock_guard lock(mutex_);
  take_completed();
  auto& done = done_[queue];
  const size_t count = std::min(done.size(), out.size());
  for (size_t i = 0; i < count; ++i) {
    out[i] = std::move(done.front());
    done.pop_front();
  }
  return count;
}

StoreStats CipherStoreCore::stats() const {
  StoreStats stats = lower_->stats();
  stats.cipher = "AES-256-GCM";
  std::lock_guard lock(mutex_);
  stats.corrupt += forged_;
  if (!cipher_->trouble().empty())
    stats.why += fmt::format("{}{}", stats.why.empty() ? "" : "; ", cipher_->trouble());
  return stats;
}

// The threads.

/// The next request for a thread, reads first; 0: none. mutex_ held.
uint64_t CipherStoreCore::next() {
  auto* from = !to_decrypt_.empty()                    ? &to_decrypt_
               : !to_encrypt_.empty() && buffer_free() ? &to_encrypt_
                                                       : nullptr;
  if (!from) return 0;
  const uint64_t id = from->front();
  from->pop_front();
  return id;
}

void CipherStoreCore::work() {
  pthread_setname_np(pthread_self(), "firn-cipher");
  std::unique_lock lock(mutex_);
  for (;;) {
    uint64_t id = 0;
    changed_.wait(lock, [&] { return stopping_ || (id = next()) != 0; });
    if (stopping_) return;
    Request& request = *requests_.at(id);
    request.step = Request::Step::under_way;
    try {
      if (request.write())
        encrypt(id, request, lock);
      else
        decrypt(id, request, lock);
    } catch (const std::bad_alloc&) {  // a later try may pass
      if (!lock.owns_lock()) lock.lock();
      Error none;
      none.code = Code::io;
      end(id, std::move(none));
    }
    clock_.notify();
  }
}

Result<std::unique_ptr<CipherStoreCore::Buffer>> CipherStoreCore::take_buffer(
    size_t bytes, std::unique_lock<RankedMutex<Rank::cipher_store>>& lock) {
  const auto fits = std::find_if(spare_.begin(), spare_.end(), [bytes](const auto& buffer) {
    return buffer->memory->bytes().size() >= bytes;
  });
  if (fits != spare_.end()) {
    std::unique_ptr<Buffer> buffer = std::move(*fits);
    spare_.erase(fits);
    return buffer;
  }
  std::unique_ptr<Buffer> smaller;
  if (buffers_ < buffers_most) {
    ++buffers_;
  } else {
    smaller = std::move(spare_.back());  // makes way
    spare_.pop_back();
  }
  lock.unlock();
  if (smaller) give_up(std::move(smaller));
  Result<std::unique_ptr<Buffer>> made = make_buffer(bytes);
  lock.lock();
  if (made) return made;
  --buffers_;
  changed_.notify_one();
  return made;
}

Result<std::unique_ptr<CipherStoreCore::Buffer>> CipherStoreCore::make_buffer(size_t bytes) {
  try {
    auto buffer = std::make_unique<Buffer>();
    Result<StagingMemory> memory = StagingMemory::create(bytes, false, -1, false);
    if (!memory) return memory.error();
    buffer->memory = std::move(*memory);
    Result<void> attached = lower_->attach_staging(buffer->memory->bytes());
    if (!attached) return attached.error();
    return buffer;
  } catch (const std::bad_alloc&) {
    return make_error(Code::host_out_of_memory, 0, "");
  }
}

void CipherStoreCore::give_up(std::unique_ptr<Buffer> buffer) {
  try {
    lower_->detach_staging(buffer->memory->bytes());
  } catch (const std::bad_alloc&) {
    buffer->memory->abandon();  // the kernel has its pages still: no others come to these addresses
  }
}

void CipherStoreCore::encrypt(uint64_t id, Request& request,
                              std::unique_lock<RankedMutex<Rank::cipher_store>>& lock) {
  Result<std::unique_ptr<Buffer>> buffer = take_buffer(request.bytes, lock);
  if (!buffer) {
    Error error = buffer.error();
    error.code = Code::io;  // a later try may pass
    return end(id, std::move(error));
  }
  request.buffer = std::move(*buffer);
  std::byte* to = request.buffer->memory->bytes().data();
  lock.unlock();
  Result<Seal> seal = cipher_->encrypt({request.data, request.bytes}, to);
  lock.lock();
  if (!seal) return end(id, seal.error());
  request.seal = *seal;
  request.step = Request::Step::below;
  Result<void> begun = lower_->write(request.queue, request.slot, {to, request.bytes}, id);
  if (!begun) return end(id, begun.error());
  ++below_[request.queue];
}

void CipherStoreCore::decrypt(uint64_t id, Request& request,
                              std::unique_lock<RankedMutex<Rank::cipher_store>>& lock) {
  lock.unlock();
  Result<void> right = cipher_->decrypt({request.data, request.bytes}, request.seal);
  lock.lock();
  if (right) return end(id, {});
  if (right.error().code != Code::corrupt) return end(id, right.error());
  ++forged_;
  end(id, make_error(Code::corrupt, 0,
                     fmt::format("slot {} ({} bytes) fails to decrypt: the spill file holds other "
                                 "bytes than were written there, although their checksum matches; "
                                 "Firn withholds the bytes", request.slot.id, request.bytes)));
}

namespace {

class CipherStore final : public Store {
 public:
  explicit CipherStore(std::unique_ptr<CipherStoreCore> core) : core_(core.release()) {}
  ~CipherStore() override { delete core_; }

  Result<void> attach_staging(std::span<std::byte> staging) override {
    return core_ ? core_->lower().attach_staging(staging) : abandoned();
  }
  void detach_staging(std::span<std::byte> staging) override {
    if (core_) core_->lower().detach_staging(staging);
  }
  Result<Slot> reserve(size_t bytes, bool wait) override {
    if (!core_) return abandoned().error();
    return core_->reserve(bytes, wait);
  }
  Result<void> write(unsigned queue, Slot slot, std::span<const std::byte> bytes,
                     uint64_t tag) override {
    if (!core_) return abandoned();
    return core_->submit(StoreCompletion::Kind::write, queue, slot,
                         const_cast<std::byte*>(bytes.data()), bytes.size(), tag);
  }
  Result<void> read(unsigned queue, Slot slot, std::span<std::byte> bytes, uint64_t tag) override {
    if (!core_) return abandoned();
    return core_->submit(StoreCompletion::Kind::read, queue, slot, bytes.data(), bytes.size(), tag);
  }
  bool cancel(unsigned queue, uint64_t tag) override { return core_ && core_->cancel(queue, tag); }
  void discard(Slot slot) override {
    if (core_) core_->discard(slot);
  }
  std::optional<bool> holds(Slot slot, std::span<const std::byte> bytes) const override {
    return core_ ? core_->holds(slot, bytes) : std::nullopt;
  }
  size_t poll(unsigned queue, std::span<StoreCompletion> out) override {
    return core_ ? core_->poll(queue, out) : 0;
  }
  StoreStats stats() const override {
    if (core_) return core_->stats();
    StoreStats stats;
    stats.kind = "abandoned";
    return stats;
  }
  /// Locks may be held by threads that the child does not have: the core is left as it is.
  void abandon() override {
    if (core_) core_->abandon();
    forgotten_ = core_;
    core_ = nullptr;
  }

 private:
  static Result<void> abandoned() {
    return make_error(Code::not_supported, 0, "the parent process opened the store before fork");
  }

  CipherStoreCore* core_;                 // owned
  CipherStoreCore* forgotten_ = nullptr;  // the parent's; leaked on purpose
};

}  // namespace

Result<std::unique_ptr<Store>> encrypted(std::unique_ptr<Store> lower, Clock& clock) {
  constexpr unsigned threads_most = 4;
  Result<std::unique_ptr<Cipher>> cipher = Cipher::create();
  if (!cipher) return cipher.error();
  const unsigned threads =
      std::clamp(std::thread::hardware_concurrency() / 2, 1u, threads_most);
  return std::unique_ptr<Store>(new CipherStore(std::make_unique<CipherStoreCore>(
      std::move(lower), std::move(*cipher), clock, threads)));
}

}  // namespace firn
