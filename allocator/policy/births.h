// Allocations that are foreseen, so that blocks can be made ready before they are asked for. A
// coming allocation counts on a block that is ready, or that the program frees before it; where
// there is none, one is to be made. Ready blocks that memory is taken from (parked ones) give it up
// in the order in which they are wanted, the last first.
//
// Blocks of one stream and as many pages are one kind: they can serve the same allocations.
//
// Owns: the counts of ready blocks and of those that coming allocations count on, and when each
// kind is wanted. (The engine owns the blocks, and makes them.) Lock: the engine's, around every
// call. It calls nothing above, but for the functions that it is given; the one that makes a block
// may call begin_reclaiming() and spared().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "allocator/blocks/block.h"
#include "allocator/policy/learner.h"
#include "firn/thread_safety.h"

namespace firn {

class Births {
 public:
  /// How many events ahead blocks are made for coming allocations.
  static constexpr uint64_t events_ahead = 4;

  struct Neighbours {
    /// As size_class::pages() takes it.
    uint32_t shared_most;
    /// How many ready blocks of the class the stream has, besides parked ones; at most
    /// events_ahead.
    std::function<uint32_t(unsigned stream, unsigned size_class)> ready;
    /// Is a place planned for the identity's next block, which the history knows by so many bytes?
    /// Then it needs none of these.
    std::function<bool(Identity identity, uint64_t known_as)> placed;
  };
  explicit Births(Neighbours neighbours) : at_(std::move(neighbours)) {}

  /// Makes a block ready. False: it cannot, for want of room.
  using Make = std::function<bool(unsigned stream, size_t bytes)>;
  /// Counts blocks that are ready, or will be when the program frees them, against the coming
  /// allocations; calls `make` for each one that lacks a block, until it fails. Returns whether any
  /// was made. `make` may change `parked`.
  bool allocate_ahead(const Learner& learner, const std::vector<Block*>& parked, const Make& make)
      FIRN_HELD;
  /// Nothing is made ready before the program goes on.
  void pause(const Learner& learner) FIRN_HELD { done_at_ = learner.history().now(); }

  /// Sorts parked blocks by the order of reclaiming, from the back: those wanted last, as far as
  /// that is known (this order makes the fewest changes of kind), then those freed first.
  /// `learner`: null without one.
  void begin_reclaiming(const Learner* learner, std::vector<Block*>& parked) FIRN_HELD;
  /// Does a coming allocation count on this ready block? Since begin_reclaiming(), once for each
  /// allocation.
  bool spared(const Block& block) FIRN_HELD;

 private:
  // The order in which ready blocks are wanted is updated after this part of the period.
  static constexpr uint64_t wants_part = 16;
  struct Kind {  // of blocks that can serve the same allocation
    unsigned stream;
    uint32_t pages;
    uint32_t ready;    // no allocation counts on these yet
    uint32_t claimed;  // allocations count on these
    uint32_t spared;   // of those, since begin_reclaiming()
  };
  struct Wants {
    int64_t balance = 0;
    uint32_t ready = 0;
    std::vector<uint64_t> at;  // event numbers
  };
  /// Of an event, if it makes or frees a block that is no planned place's.
  struct Coming {
    bool frees;
    unsigned stream;
    size_t bytes;
    uint32_t pages;
  };
  std::optional<Coming> coming(const Learner& learner, uint64_t ahead) const FIRN_HELD;
  Kind& kind_of(const Coming& coming, const std::vector<Block*>& parked) FIRN_HELD;
  void foresee_wants(const Learner& learner) FIRN_HELD;

  const Neighbours at_;
  uint64_t done_at_ FIRN_GUARDED = UINT64_MAX;              // event number up to which all was done
  std::vector<Kind> kinds_ FIRN_GUARDED;                    // of the coming allocations
  std::map<std::pair<unsigned, uint32_t>, Wants> wants_ FIRN_GUARDED;  // by stream and pages
  uint64_t wants_made_ FIRN_GUARDED = UINT64_MAX;           // event number
};

}  // namespace firn
