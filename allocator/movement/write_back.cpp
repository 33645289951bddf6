#include "allocator/movement/write_back.h"

#include <utility>

#include "allocator/movement/io_pause.h"

namespace firn {

bool WriteBack::pauses(uint64_t now_ns) const {
  if (grows_) return true;
  return !full_ && unwritten_ns_ != 0 && now_ns < again_ns_;
}

bool WriteBack::begin_round(uint64_t now_ns) {
  grows_ = false;
  return now_ns >= again_ns_ && std::exchange(full_, false);
}

void WriteBack::slot_came_free() {
  // (Where writes failed for other reasons, the pause stays.)
  if (std::exchange(full_, false) && failing_ns_ == 0) again_ns_ = 0;
}

void WriteBack::succeeded() {
  failures_ = 0;
  unwritten_ns_ = failing_ns_ = 0;
}

/// It is tried again: after pauses if the failure may pass soon; as a full store if it has no room
/// or failed for all of the patience.
bool WriteBack::failed(const Error& error, uint64_t begun_ns, uint64_t now_ns) {
  const bool first = unwritten_ns_ == 0;
  if (first) unwritten_ns_ = now_ns;
  // (Failures are a row only if something was to be written between them.)
  const bool given_up = failing_ns_ != 0 && again_ns_ >= failing_ns_ + patience_ns_;
  if (failing_ns_ == 0 || (!given_up && begun_ns > again_ns_ + io_pause_most_ns)) {
    failing_ns_ = now_ns;
    failures_ = 0;
  }
  if (error.code == Code::no_space) failing_ns_ = 0;
  if (error.code == Code::no_space || now_ns - failing_ns_ >= patience_ns_) {
    full_ = true;
    again_ns_ = now_ns + full_pause_ns;
    return first;
  }
  again_ns_ = now_ns + io_pause_ns(failures_);
  ++failures_;
  return first;
}

}  // namespace firn
