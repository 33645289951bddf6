// Lives and identities. A life is one allocation until its free; an identity is a role that a new
// life plays in every iteration. Keeps the positions of each identity's events in the history.
// Bounded by the events kept and the number of lives. The caller holds the lock.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/lifetimes/events.h"

namespace firn::lifetimes {

/// One allocation until its free. Numbers are used again. 0: none.
using Life = uint32_t;

class Identities {
 public:
  struct LifeRecord {
    uint64_t bytes = 0, born = 0;  // born: the position of its allocation
    Identity identity = 0;
    bool live = false;
    bool persistent = false;  // outlived an iteration: it recurs as itself
  };

  Identities() : lives_(1), identities_(1) {}
  /// Begins a life with the identity `wanted`, or a fresh one if that is 0. If another life still
  /// holds it (Python frees a variable's old value after making the new one), that life continues
  /// under the identity's marker, so that its free is found again too.
  Life begin(uint64_t bytes, uint64_t position, Identity wanted);
  void end(Life life);
  LifeRecord& operator[](Life life) { return lives_[life]; }
  const LifeRecord& operator[](Life life) const { return lives_[life]; }
  bool alive(Life life) const { return life && life < lives_.size() && lives_[life].live; }

  Life holder(Identity identity) const { return identities_[identity].holder; }
  Identity marker(Identity identity) const { return identities_[identity].marker; }
  /// An identity that no life holds, for events given in advance.
  Identity fresh();

  /// Appends `position`, the identity's newest.
  void record(Identity identity, uint64_t position);
  /// The oldest position is leaving the history.
  void forget(Identity identity, uint64_t position);
  /// The first position later than `position`; 0: none. `oldest`: of the history.
  uint64_t first_after(Identity identity, uint64_t position, uint64_t oldest) const;
  /// The first position that is kept; 0: none.
  uint64_t oldest(Identity identity, uint64_t oldest) const;
  /// The position of the event so many before the identity's newest, which is at `now`; 0: none.
  uint64_t recent(Identity identity, size_t back, uint64_t now) const;
  /// Gives the life the identity `to`, and renames its few events so far. False: `to` is held, or
  /// the order of its events would break.
  bool rebind(Life life, Identity to, Events& events);

  uint64_t live_bytes() const { return live_bytes_; }
  uint32_t live_count() const { return live_count_; }
  /// Identities and lives there is room for: for tests of the bound.
  size_t size() const { return identities_.size() + lives_.size(); }
  size_t bytes() const;

 private:
  struct IdentityRecord {
    std::vector<uint32_t> at;  // ascending, the low half of positions
    uint32_t head = 0;         // those before it are forgotten
    Life holder = 0;
    Identity marker = 0;  // an older holder continues as this
    Identity marked = 0;  // the identity whose marker this is
    bool used = false;
  };
  void recycle_if_unused(Identity identity);
  void step_aside(Identity identity, int depth);

  std::vector<LifeRecord> lives_;
  std::vector<IdentityRecord> identities_;
  std::vector<Life> free_lives_;
  std::vector<Identity> free_identities_;
  uint64_t live_bytes_ = 0;
  uint32_t live_count_ = 0;
};

}  // namespace firn::lifetimes
