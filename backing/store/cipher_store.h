// A store whose slots are encrypted on their way to the store below (cipher.h): a reader of the
// spill file, or of the disk afterwards, learns only how many bytes there were. Threads of its own
// encrypt into buffers of its own, since a write's memory must stay as it is, and decrypt in place.
//
// Requests are ordered only as the store below orders them. A read that does not decrypt is
// Code::corrupt: the store below has compared sums before, so somebody has changed the file.
//
// Owns: the store below, the cipher, the buffers (at most buffers_most, as large as the largest
// slot written), the threads, which start with the first request and take no signals. Lock: mutex_,
// taken before the lower store's; never held while bytes are encrypted.
#pragma once

#include <array>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "backing/store/cipher.h"
#include "backing/store/file_store.h"
#include "firn/clock.h"
#include "firn/ranked_mutex.h"
#include "firn/store.h"

namespace firn {

/// The working part; the Store seam over it is CipherStore, which forgets it in a forked child.
class CipherStoreCore {
 public:
  static constexpr size_t buffers_most = 8;
  CipherStoreCore(std::unique_ptr<Store> lower, std::unique_ptr<Cipher> cipher, Clock& clock,
                  unsigned threads);
  ~CipherStoreCore();

  Store& lower() { return *lower_; }
  const Store& lower() const { return *lower_; }
  /// Forked child: the store below is not destroyed either.
  void abandon();
  Result<Slot> reserve(size_t bytes, bool wait);
  Result<void> submit(StoreCompletion::Kind kind, unsigned queue, Slot slot, std::byte* data,
                      size_t bytes, uint64_t tag);
  bool cancel(unsigned queue, uint64_t tag);
  void discard(Slot slot);
  std::optional<bool> holds(Slot slot, std::span<const std::byte> bytes);
  size_t poll(unsigned queue, std::span<StoreCompletion> out);
  StoreStats stats() const;

 private:
  struct Buffer {
    std::optional<StagingMemory> memory;
  };
  struct Request {
    enum class Step : uint8_t { waits, under_way, below };  // for a thread; at one; the store below
    StoreCompletion::Kind kind;
    unsigned queue;
    uint64_t tag;
    Slot slot;
    std::byte* data;
    size_t bytes;
    uint64_t submitted_ns;
    Step step;
    std::unique_ptr<Buffer> buffer;  // of a write
    Seal seal;
    // Made with it, so that it goes on and ends without taking memory.
    std::list<uint64_t> turn{};  // its number, for to_decrypt_ or to_encrypt_
    std::list<StoreCompletion> completion{};
    bool write() const { return kind == StoreCompletion::Kind::write; }
  };
  struct SlotState {  // of a slot; unused when bytes == 0
    size_t bytes = 0;
    unsigned jobs = 0;
    bool writing = false, filled = false, discarded = false;
    Seal seal;
  };

  SlotState* state_of(Slot slot);
  Result<void> start();
  void work();
  uint64_t next();
  void encrypt(uint64_t id, Request& request, std::unique_lock<RankedMutex<Rank::cipher_store>>& lock);
  void decrypt(uint64_t id, Request& request, std::unique_lock<RankedMutex<Rank::cipher_store>>& lock);
  /// A buffer that holds `bytes`; mutex_ held by `lock`, let go while memory is made.
  Result<std::unique_ptr<Buffer>> take_buffer(size_t bytes, std::unique_lock<RankedMutex<Rank::cipher_store>>& lock);
  Result<std::unique_ptr<Buffer>> make_buffer(size_t bytes);
  void give_up(std::unique_ptr<Buffer> buffer);
  bool buffer_free() const { return !spare_.empty() || buffers_ < buffers_most; }
  void take_completed();
  /// The request is over. Takes no memory. mutex_ held.
  void end(uint64_t id, Error error);
  void leave(SlotState& state, Slot slot);

  std::unique_ptr<Store> lower_;
  const std::unique_ptr<Cipher> cipher_;
  Clock& clock_;
  const unsigned threads_most_;

  mutable RankedMutex<Rank::cipher_store> mutex_;
  RankedCondition changed_;
  bool stopping_ = false;
  uint64_t ids_ = 0;
  std::unordered_map<uint64_t, std::unique_ptr<Request>> requests_;
  std::list<uint64_t> to_decrypt_, to_encrypt_;
  std::vector<std::unique_ptr<Buffer>> spare_;
  size_t buffers_ = 0;
  std::unordered_map<uint32_t, SlotState> slots_;  // by slot id
  std::array<std::list<StoreCompletion>, store_queues> done_;
  std::array<size_t, store_queues> below_{};  // requests that the store below has
  uint64_t forged_ = 0;
  std::vector<std::thread> threads_;
};

/// Errors: as Cipher::create.
Result<std::unique_ptr<Store>> encrypted(std::unique_ptr<Store> lower, Clock& clock);

}  // namespace firn
