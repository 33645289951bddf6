// Is an iteration any slower since results of it are made again? The times of whole iterations are
// compared, by the host's clock: some that only move, then some that make again, once the engine has
// learned of it. A choice that does not hold what it promised is given up.
//
// Owns: the times. Locks: none; one thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace firn::pytorch {

class RemakeTrial {
 public:
  // (Plans, and how much is written ahead, take some iterations to follow.)
  static constexpr unsigned before = 2, settle = 8, after = 4;  // iterations
  static constexpr double slower_most = .005;                   // a part of the time before

  enum class Stage : uint8_t { before, settling, after, passed, failed };

  /// An iteration is over, in which the program did all that was expected.
  void iteration(uint64_t ns) {
    ++count_;
    if (stage_ == Stage::before) before_ns_ = std::min(before_ns_, ns);
    if (stage_ == Stage::after) after_ns_ = std::min(after_ns_, ns);
    if (stage_ == Stage::before && count_ == before)
      enter(Stage::settling);
    else if (stage_ == Stage::settling && count_ == settle)
      enter(Stage::after);
    else if (stage_ == Stage::after && count_ == after)
      enter(static_cast<double>(after_ns_) > static_cast<double>(before_ns_) * (1 + slower_most)
                ? Stage::failed
                : Stage::passed);
  }
  Stage stage() const { return stage_; }
  /// Are results to be made again now?
  bool makes_again() const { return stage_ != Stage::before && stage_ != Stage::failed; }
  /// The fastest of either; 0: not measured yet.
  uint64_t before_ns() const { return stage_ == Stage::before ? 0 : before_ns_; }
  uint64_t after_ns() const { return stage_ > Stage::after ? after_ns_ : 0; }

 private:
  void enter(Stage stage) {
    stage_ = stage;
    count_ = 0;
  }

  Stage stage_ = Stage::before;
  unsigned count_ = 0;  // iterations of this stage
  uint64_t before_ns_ = UINT64_MAX, after_ns_ = UINT64_MAX;
};

}  // namespace firn::pytorch
