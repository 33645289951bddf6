// Learns what a program does with its large blocks, from the events that the hot path pushes into a
// ring (event_ring.h): its history (lifetimes/history.h), which block plays what in it, and what is
// known of each identity besides. What comes next, and when, follows from it.
//
// Owns: the history, and the marks of the device's time. Lock: the engine's; the ring is filled
// without it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "allocator/base/cpu_timer.h"
#include "allocator/blocks/block.h"
#include "allocator/blocks/device_clock.h"
#include "allocator/blocks/streams.h"
#include "allocator/lifetimes/events.h"
#include "allocator/lifetimes/history.h"
#include "allocator/policy/event_ring.h"
#include "firn/thread_safety.h"

namespace firn {

using lifetimes::EventKind;
using lifetimes::History;
using lifetimes::Identity;
using lifetimes::Life;

class Learner {
 public:
  /// `ring`, `table` and `streams` outlive it. `sizes`: remembers how many bytes were asked for.
  Learner(EventRing& ring, BlockTable& table, Streams& streams, bool sizes)
      : ring_(ring), table_(table), sizes_(sizes), clock_(streams) {}

  History& history() FIRN_HELD { return history_; }
  const History& history() const FIRN_HELD { return history_; }
  /// Feeds the events since the last time to the history, and calls begun(identity, block) for each
  /// life that begins. False: there were none. Adds the time that it takes to `cpu_ns`.
  template <class Begun>
  bool take_events(uint64_t& cpu_ns, Begun&& begun) FIRN_HELD {
    // Events pushed meanwhile are for the next time: a reader close behind a thread that pushes
    // would take the cache line from it again and again.
    const uint64_t end = ring_.pushed();
    EventRing::Event event;
    const bool any = ring_.pop(event, end);
    if (any) {
      CpuTimer timer(cpu_ns);
      do {
        if (const Identity identity = feed(event)) begun(identity, table_[event.block]);
      } while (ring_.pop(event, end));
    }
    if (!just_dropped_.empty()) place_dropped();
    if (!just_hosted_.empty()) place_hosted();
    return any;
  }
  /// Has anything happened since the last call of this?
  bool moved_on() FIRN_HELD { return std::exchange(seen_, history_.now()) != history_.now(); }

  /// The block's life; 0: it has none yet (it was never used since it was watched).
  Life life_of(const Block& block) const FIRN_HELD {
    return block.index < life_of_.size() ? life_of_[block.index] : 0;
  }
  /// The block that plays the identity at this moment; null: none does.
  Block* player_of(Identity identity) FIRN_HELD;
  /// The block has left, to be made again from these: behind its last use among the events so far.
  void note_dropped(const Block& block, std::span<const Block* const> inputs) FIRN_HELD;
  /// The event number of the last use before the identity's block last left so; 0: it never did.
  uint64_t dropped_behind(Identity identity) const FIRN_HELD {
    return identity < dropped_behind_.size() ? dropped_behind_[identity] : 0;
  }
  /// The identities that it was made from when it last left so.
  std::span<const Identity> made_from(Identity identity) const FIRN_HELD {
    if (identity >= made_from_.size()) return {};
    return made_from_[identity];
  }
  /// The processor uses the block in host memory, behind the events so far. As events these would not
  /// repeat: other threads ask for them, at times of their own.
  void note_host_use(const Block& block, bool writes) FIRN_HELD {
    just_hosted_.push_back({{block.index, block.generation}, writes});
  }
  /// The last use of an identity there, behind that event.
  struct HostUsed {
    Identity identity;
    bool writes;
    uint64_t position;
  };
  std::span<const HostUsed> host_uses() const FIRN_HELD { return host_uses_; }
  /// Events from now until it comes again, a period behind the last time, or somewhat later;
  /// History::never: it does not.
  uint64_t host_use_ahead(const HostUsed& last) const FIRN_HELD;

  /// The identity of the life that the block, which has not ended, was freed with; 0: unknown.
  Identity last_identity_of(const Block& block) const FIRN_HELD {
    return block.index < identity_of_.size() ? identity_of_[block.index] : 0;
  }
  /// The stream that the identity was last allocated on; none: it never was.
  std::optional<unsigned> stream_of(Identity identity) const FIRN_HELD {
    if (identity >= stream_of_.size() || stream_of_[identity] == 0) return std::nullopt;
    return stream_of_[identity] - 1u;
  }
  /// Bytes asked for when the identity, which the history knows by `known_as` bytes, was last
  /// allocated; none: unknown.
  std::optional<uint64_t> bytes_of(Identity identity, uint64_t known_as) const FIRN_HELD;

  // The device's time, while somebody asks for it: marks are events on the program's stream, and
  // are polled.
  void set_timing(bool timing) FIRN_HELD { timing_ = timing; }
  bool timing() const FIRN_HELD { return timing_; }
  /// Marks it behind the work on the stream so far, if so many events happened since the last mark.
  void mark_time(int stream, uint64_t events_least) FIRN_HELD;
  /// Takes the marks that are over.
  void poll_time(uint64_t now_ns) FIRN_HELD;
  DeviceClock& clock() FIRN_HELD { return clock_; }

 private:
  // How many sizes are remembered of blocks that may have places.
  static constexpr size_t sizes_most = 1 << 18;
  Identity feed(const EventRing::Event& event) FIRN_HELD;
  void place_dropped() FIRN_HELD;
  void place_hosted() FIRN_HELD;
  void foresee_use(Block& block, Life life) FIRN_HELD;

  EventRing& ring_;
  BlockTable& table_;
  const bool sizes_;
  History history_ FIRN_GUARDED;
  DeviceClock clock_ FIRN_GUARDED;
  bool timing_ FIRN_GUARDED = false;
  uint64_t seen_ FIRN_GUARDED = 0;                // event number
  std::vector<Life> life_of_ FIRN_GUARDED;        // by descriptor
  std::vector<uint32_t> block_of_ FIRN_GUARDED;   // descriptor, by life
  std::vector<uint64_t> used_at_ FIRN_GUARDED;    // event number of its last, by descriptor
  struct Named {  // a block, whose last events may still be in the ring
    uint32_t index, generation;
  };
  struct Dropped {
    Named block;
    std::vector<Named> inputs;
  };
  std::vector<Identity> identity_of_ FIRN_GUARDED;     // of the life that last ended, by descriptor
  std::vector<Dropped> just_dropped_ FIRN_GUARDED;
  std::vector<uint64_t> dropped_behind_ FIRN_GUARDED;  // by identity
  std::vector<std::vector<Identity>> made_from_ FIRN_GUARDED;  // by identity
  struct Hosted {
    Named block;
    bool writes;
  };
  std::vector<Hosted> just_hosted_ FIRN_GUARDED;
  std::vector<HostUsed> host_uses_ FIRN_GUARDED;
  std::vector<uint32_t> host_use_of_ FIRN_GUARDED;  // by identity: its number among them + 1
  std::vector<uint16_t> stream_of_ FIRN_GUARDED;  // by identity: the stream + 1
  // By identity and known_as.
  std::map<std::pair<Identity, uint64_t>, uint64_t> bytes_of_ FIRN_GUARDED;
};

}  // namespace firn
