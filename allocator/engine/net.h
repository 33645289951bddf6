// firn_verify's record beside an engine: each block's recent events, with who caused it, for the
// report when a block was written without a reported use.
//
// Owns: the histories. Lock: its own, taken by note() in any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "allocator/blocks/block.h"
#include "allocator/engine/observer.h"
#include "firn/ranked_mutex.h"

namespace firn {

class Net {
 public:
  static constexpr size_t remembered = 12;  // events of a block

  /// `event` and `detail` are literals.
  void note(const Block& block, uint64_t now_ns, const char* event, const char* detail);
  /// The block's recent events, the last one last, one line each.
  std::string events_words(const Block& block, uint64_t now_ns);

  std::atomic<EngineObserver*> observer{nullptr};  // see EngineObserver::doing()

 private:
  struct Event {
    uint64_t at_ns = 0;
    const char* event = nullptr;
    const char* detail = "";
    std::string who;
  };
  struct BlockEvents {
    std::array<Event, remembered> events;
    size_t count = 0;
  };
  RankedMutex<Rank::net> mutex_;
  std::unordered_map<uint32_t, BlockEvents> of_;  // by descriptor
};

}  // namespace firn
