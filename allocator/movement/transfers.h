// Transfers of pieces: copies between the device and host memory, on two streams of the engine's
// own, and the store's requests between host memory and disks. They begin here, and what has ended
// is taken from here, one at a time; why a piece moves, and what becomes of it, is others'
// business.
//
// Owns: the two copy streams, the gate between copies out and mapping, the requests, a reference to
// the staging of each transfer in flight, and what was measured of each channel.
// Lock: the engine's, around every call but start()'s, which comes before there are others, and
// those of gate(). The device's context is current, but for started(), abandon() and figures.
// Stream order: a copy in lies behind what its stream was given before, a copy out behind what its
// caller had ordered (Uses::order()). Nothing waits here but wait_for_copies().
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <unordered_set>

#include "allocator/blocks/piece_ref.h"
#include "allocator/blocks/uses.h"
#include "allocator/lifetimes/bandwidths.h"
#include "allocator/memory/copy_gate.h"
#include "firn/clock.h"
#include "firn/store.h"
#include "firn/thread_safety.h"

namespace firn {

/// One request of the store in flight; its address is the store's tag.
struct IoRequest {
  PieceRef ref;
  Staging* staging;
  bool reads;
  uint64_t begun_ns;
};

/// A copy in flight between a piece and its staging.
struct CopyInFlight {
  PieceRef ref;
  Staging* staging;
  Use use;      // on the copy stream; over when the copy is
  bool waited;  // for the program: its time does not measure the link
};

class Transfers {
 public:
  struct Neighbours {
    const Driver& driver;
    DeviceHealth& health;
    Streams& streams;
    Uses& uses;
    HostTier& host;
    CUmemLocation host_location;  // of host memory at device addresses
    Store* store;    // null: none
    unsigned queue;  // of the store
    Clock& clock;
    std::function<void(const std::string&)> trouble;  // reports something to the user, once
  };
  explicit Transfers(Neighbours neighbours)
      : at_(std::move(neighbours)), gate_(at_.driver) {}
  ~Transfers();
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  /// Makes the streams; errors: driver, and nothing is made. `gated`: see copy_gate.h.
  Result<void> start(bool gated);
  bool started() const { return in_stream_ != nullptr; }
  /// The streams' indices in Streams, which has seen them.
  void know_streams(unsigned out, unsigned in) { out_ = out, in_ = in; }
  /// Releases everything; no copy is in flight.
  void end() FIRN_HELD;
  /// The context is lost, or the parent's of a fork.
  void abandon() { gate_.abandon(); }

  /// Device to host, and host to device.
  CUstream out_stream() const { return out_stream_; }
  CUstream in_stream() const { return in_stream_; }
  unsigned out() const { return out_; }
  unsigned in() const { return in_; }
  /// Has its own lock: closed while access is given to mapped memory.
  CopyGate& gate() { return gate_; }

  // Copies. An error of the driver's: nothing has begun.
  /// From the device to `staging`, which becomes the piece's own (Piece::copying_out). `waited`:
  /// for the program's work.
  Result<void> copy_out(Block& block, uint32_t piece, Staging* staging, bool waited) FIRN_HELD;
  /// Copies from the piece's copy in host memory; it counts as on the device from here on.
  Result<void> copy_in(Block& block, uint32_t piece) FIRN_HELD;
  /// Only the copy, between the piece's addresses and `host`, which the caller keeps until it is
  /// over.
  CUresult copy(const Block& block, const Piece& piece, void* host, bool in) FIRN_HELD;

  // Requests. After an error of the store's nothing has begun, and the piece is as before.
  /// Writes the piece's copy in host memory to `slot` (Piece::slot, writing).
  Result<void> write(Block& block, uint32_t piece, Slot slot) FIRN_HELD;
  /// Reads the piece's slot to `staging`, which becomes its own (Piece::host, reading).
  Result<void> read(Block& block, uint32_t piece, Staging* staging) FIRN_HELD;
  /// Ends what is under way for the piece: a request that has not begun is taken back, the end of
  /// another is ignored.
  void drop(Piece& piece) FIRN_HELD;

  // Completions, in the order in which they began (requests: in the store's). None: no more.
  /// The next copy that is over, out or in. If it has no event behind it, one is recorded.
  std::optional<PieceRef> next_out() FIRN_HELD;
  std::optional<PieceRef> next_in() FIRN_HELD;
  struct Answer {
    PieceRef ref;
    size_t bytes;       // of the staging
    uint64_t begun_ns;
    bool reads;
    StoreCompletion completion;
  };
  std::optional<Answer> next_answer() FIRN_HELD;
  /// Waits once for each copy in flight; the driver's refusals are its health's. At the engine's
  /// end.
  void wait_for_copies() FIRN_HELD;
  /// A request without an answer for `patience_ns`; looked for once a second.
  const IoRequest* unanswered(uint64_t patience_ns) FIRN_HELD;

  // Figures, in bytes of staging.
  bool copying() const FIRN_HELD { return !copies_out_.empty() || !copies_in_.empty(); }
  bool requesting() const FIRN_HELD { return !requests_.empty(); }
  size_t requests() const FIRN_HELD { return requests_.size(); }
  uint64_t writing_bytes() const FIRN_HELD { return writing_bytes_; }
  uint64_t reading_bytes() const FIRN_HELD;
  uint64_t bytes_out() const FIRN_HELD { return bytes_of(copies_out_); }
  uint64_t bytes_in() const FIRN_HELD { return bytes_of(copies_in_); }
  /// Being copied, written or read.
  uint64_t in_flight_bytes() const FIRN_HELD;
  const std::deque<CopyInFlight>& copies_out() const FIRN_HELD { return copies_out_; }
  const std::deque<CopyInFlight>& copies_in() const FIRN_HELD { return copies_in_; }
  const lifetimes::Bandwidths& bandwidths() const FIRN_HELD { return bandwidths_; }

 private:
  std::optional<PieceRef> next(std::deque<CopyInFlight>& copies, lifetimes::Channel channel)
      FIRN_HELD;
  IoRequest* request_for(Block& block, uint32_t piece, Staging* staging, bool reads) FIRN_HELD;
  void forget(IoRequest* request) FIRN_HELD;
  CUresult copy_by_processor(const Block& block, const Piece& piece, void* host, bool in) FIRN_HELD;
  static uint64_t bytes_of(const std::deque<CopyInFlight>& copies);

  const Neighbours at_;
  CopyGate gate_;
  CUstream out_stream_ = nullptr, in_stream_ = nullptr;
  unsigned out_ = 0, in_ = 0;
  // How pieces in host memory at device addresses are copied: as the driver was seen to take it.
  enum class CopyWay : uint8_t { as_others, unified, by_processor } host_way_ FIRN_GUARDED{};
  std::deque<CopyInFlight> copies_out_ FIRN_GUARDED, copies_in_ FIRN_GUARDED;
  std::unordered_set<IoRequest*> requests_ FIRN_GUARDED;
  uint64_t writing_bytes_ FIRN_GUARDED = 0;
  uint64_t next_look_ns_ FIRN_GUARDED = 0;  // for requests without an answer
  StoreCompletion answers_[4];              // polled, not yet taken
  size_t answer_ FIRN_GUARDED = 0, answered_ FIRN_GUARDED = 0;
  lifetimes::Bandwidths bandwidths_ FIRN_GUARDED;
};

}  // namespace firn
