// Hints that wait for their places in streams. A hint is due once the work that was queued on its
// stream before it is over; until then it costs one comparison per stream and look. Hints of one
// stream become due in the order in which they were given; between streams there is none.
//
// Owns: the hints; the blocks are the engine's, and so is its lock, around every call. Nothing here
// calls the driver: who adds a hint sees to an event behind its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "allocator/blocks/block.h"
#include "allocator/blocks/streams.h"
#include "firn/thread_safety.h"

namespace firn {

/// The program's word on one block. It is void once the block was freed (its generation).
struct Hint {
  enum class Kind : uint8_t { prefetch, cold };
  Kind kind;
  Block* block;
  uint32_t generation;  // the block's, when it was given
  SpanRange spans;      // prefetch: those that are wanted
  uint64_t last_use;    // cold: the block's, when it was given; one behind the hint makes it void
};

class HintQueue {
 public:
  /// So many wait at most: a program that queues work for long, and hints all the while, is not to
  /// fill the host's memory.
  static constexpr size_t most = 1u << 16;

  /// False: too many wait, and this one is not kept.
  bool add(Use place, const Hint& hint) FIRN_HELD {
    if (full()) return false;
    auto [of_stream, fresh] = waiting_.try_emplace(place.stream());
    try {
      of_stream->second.push_back({place, hint});
    } catch (...) {  // no memory
      if (fresh) waiting_.erase(of_stream);
      throw;
    }
    ++size_;
    return true;
  }
  /// Takes a hint whose place is over. None: no hint's is. `streams` answers over(use), as Streams.
  template <class S>
  std::optional<Hint> next_due(const S& streams) FIRN_HELD {
    for (auto& [stream, hints] : waiting_) {
      if (!streams.over(hints.front().place)) continue;
      const Hint hint = hints.front().hint;
      hints.pop_front();
      --size_;
      if (hints.empty()) waiting_.erase(stream);
      return hint;
    }
    return std::nullopt;
  }
  void clear() FIRN_HELD {
    waiting_.clear();
    size_ = 0;
  }
  bool empty() const FIRN_HELD { return size_ == 0; }
  bool full() const FIRN_HELD { return size_ == most; }
  size_t size() const FIRN_HELD { return size_; }

 private:
  struct Placed {
    Use place;
    Hint hint;
  };
  // By Use::stream(); none is empty.
  std::map<unsigned, std::deque<Placed>> waiting_ FIRN_GUARDED;
  size_t size_ FIRN_GUARDED = 0;
};

}  // namespace firn
