// Looks at this process from outside, by its control socket or where firn_metrics says: statistics
// are told, memory is sent away. Owns: the socket, and what tells monitoring. Locks: one
// of its own, a leaf.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "firn/ranked_mutex.h"

namespace firn {

class ControlSocket;
class MetricsOutput;
class Runtime;

class Viewers {
 public:
  /// `runtime` outlives the process's ability to answer: it is never destroyed.
  explicit Viewers(Runtime& runtime) : runtime_(runtime) {}

  /// Opens both, once. Where there is no place for the socket the process only cannot be looked at;
  /// why monitoring is not told is said.
  void open();
  /// `looked` is called whenever somebody looks on ("watch").
  void on_look(std::function<void()> looked);
  void stop();
  /// In the child after fork.
  void abandon();

 private:
  std::string answer(const std::string& word);
  std::string spill_away();

  Runtime& runtime_;
  std::atomic<bool> begun_{false};
  // Never destroyed: their threads may be late.
  std::atomic<ControlSocket*> control_{nullptr};
  std::atomic<MetricsOutput*> metrics_{nullptr};
  RankedMutex<Rank::viewers> mutex_;
  std::vector<std::function<void()>> looked_;
};

}  // namespace firn
