// Constants of the engine's parts; none is for the user to choose. Private to the engine.
#pragma once

#include <cstdint>

namespace firn {

struct EngineLimits {
  static constexpr uint32_t region_mark = 0x40000000u;  // (beside SmallBlocks::segment_mark)
  // The driver does not call back: completed copies are found by polling, this often while a thread
  // waits.
  static constexpr uint64_t poll_ns = 100'000;
  // Nothing has left the device for so long, though a thread waits for room: the work in the way
  // may itself wait for what this process enqueues next (another rank's receive). Host memory
  // serves then; where there is none, an error, later.
  static constexpr uint64_t still_ns = 5'000'000'000, still_ns_most = 120'000'000'000;
  // How often room is made for memory that the device then refuses (others use it too).
  static constexpr int refusals_most = 8;
  // Pause after a decision, for each event of the period: about three times what the decision took,
  // so that deciding takes little CPU time, however short the iterations
  // are.
  static constexpr uint64_t decision_pause_ns = 25;
  // Device times are taken at least so many events apart.
  static constexpr uint64_t stamp_events = 4;
};

}  // namespace firn
