// The uses of a block: its last one, those on other streams that may not be over yet, and the copy
// in that a user's stream waits for. Its memory may be unmapped or handed on when all are over.
//
// Owns nothing; the uses are the blocks'. Needs the engine's lock (add(): no context; the others:
// its context current). Nothing waits here.
#pragma once

#include "allocator/blocks/block.h"
#include "allocator/blocks/streams.h"
#include "firn/thread_safety.h"

namespace firn {

class Uses {
 public:
  explicit Uses(Streams& streams) : streams_(streams) {}

  /// Adds a use that is not the block's last one, until it is over. One for each stream, the
  /// latest, since a stream's work ends in order.
  void add(Block& block, Use use) FIRN_HELD;
  /// Is everything that used the block over, its copies included? Forgets the uses that are.
  bool over(Block& block) FIRN_HELD;
  /// The same of all streams but `copies`, on which pieces are copied out: a piece whose own copy
  /// is over may leave before the others.
  bool over_but_on(Block& block, unsigned copies) FIRN_HELD;
  /// Records events behind the uses, so that they can become over. False if a use that is not over
  /// has none: the driver refused, or the stream is captured; tried again at the next call.
  bool close(const Block& block) FIRN_HELD;
  /// `stream`'s later work waits for every use.
  Result<void> order(unsigned stream, const Block& block) FIRN_HELD;
  /// Is it in use on a stream beside the program's own, which may wait for another process?
  bool aside(const Block& block) const FIRN_HELD;

 private:
  Streams& streams_;
};

}  // namespace firn
