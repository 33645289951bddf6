#include "allocator/movement/sums.h"

#include <utility>

namespace firn {

bool Sums::add(const PieceRef& ref, bool arrived) {
  Piece& piece = piece_of(ref);
  if (std::exchange(piece.summing, true)) return false;
  host_.ref(piece.host);
  due_.push_back({ref, piece.host, arrived});
  return true;
}

bool Sums::take(Lock& lock, const Summed& summed) {
  bool any = false;
  while (!due_.empty()) {
    const Due due = due_.front();
    due_.pop_front();
    const auto is_there = [&]() FIRN_HELD {
      return current(due.ref) && piece_of(due.ref).host == due.staging;
    };
    if (is_there()) {
      const size_t bytes = piece_of(due.ref).bytes;
      ++taking_;
      Sum sum;
      {
        const UnlockedEngine unlocked(lock);
        sum = sum_of_(due.staging->data, bytes);
      }
      --taking_;
      bytes_ += bytes;
      any = true;
      if (is_there()) {
        piece_of(due.ref).summing = false;
        summed(due.ref, due.arrived, sum);
      }
    }
    host_.unref(due.staging);
  }
  return any;
}

void Sums::drop() {
  for (const Due& due : due_) host_.unref(due.staging);
  due_.clear();
}

}  // namespace firn
