// Transfers that have ended are handed on from here to the way that began them, where the block is
// still the one that was meant.
#include <fmt/format.h>

#include "allocator/movement/movement.h"

namespace firn {

bool Movement::reap_copies() {
  bool any = false;
  while (const std::optional<PieceRef> out = transfers_.next_out()) {
    any = true;
    if (!current(*out)) continue;
    if (options_.sums)
      sum_later(*out, true);
    else
      came_out(*out);
  }
  while (const std::optional<PieceRef> in = transfers_.next_in()) {
    any = true;
    if (current(*in) && owner_.window()) host_copies_.returned(*in);
    if (options_.guard && current(*in)) guard(*in->block);
  }
  return any;
}

bool Movement::reap_store() {
  bool any = false;
  while (const std::optional<Transfers::Answer> answer = transfers_.next_answer()) {
    any = true;
    const uint64_t moved = answer->completion.error.code == Code::ok ? answer->bytes : 0;
    if (answer->reads) {
      moved_.store_read_bytes += moved;
      read_done(answer->ref, answer->completion);
    } else {
      moved_.store_written_bytes += moved;
      written(answer->ref, answer->completion, answer->begun_ns);
    }
  }
  return any;
}

/// Says so when the store has not answered for long: a thread that waits for it sees nothing else.
/// (A request cannot be taken back: whether its bytes are still to come nobody knows.)
void Movement::look_for_unanswered() {
  if (const IoRequest* request = transfers_.unanswered(unanswered_ns))
    trouble(fmt::format("a {} of a spill file has had no answer for {} s: the disk behind firn_dir "
                        "is very slow or hangs; Firn keeps waiting",
                        request->reads ? "read" : "write", unanswered_ns / 1'000'000'000));
}

}  // namespace firn
