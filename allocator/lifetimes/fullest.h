// Gaps in shared frames (shared_frames.h) when the device is fullest: then they take room from
// blocks. At other moments they are memory just freed that will be filled again; a plan that
// counted it as lost would evict blocks that have room. Sizes are in pages, moments in events.
#pragma once

#include <cstdint>

namespace firn::lifetimes {

class Fullest {
 public:
  /// At event `now` of a program that repeats after `period`: the pages used, and the gaps between
  /// them.
  void note(uint64_t now, uint64_t period, uint64_t used, uint64_t gaps) {
    if (now >= since_ + period) {
      last_ = this_;
      this_ = {};
      since_ = now;
    }
    if (used > this_.used || (used == this_.used && gaps < this_.gaps)) this_ = {used, gaps};
  }
  /// Gaps at the fullest moment of this period and the last; `otherwise` if none was seen.
  uint64_t gaps(uint64_t otherwise) const {
    const Moment& fullest = this_.used > last_.used ? this_ : last_;
    return fullest.used > 0 ? fullest.gaps : otherwise;
  }

 private:
  struct Moment {
    uint64_t used = 0, gaps = 0;
  };
  Moment this_, last_;
  uint64_t since_ = 0;
};

}  // namespace firn::lifetimes
