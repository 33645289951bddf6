// Serves viewers of this process, by its control socket or where firn_metrics says: reports
// statistics, spills memory. Owns: the socket, and the metrics output. Locks: one of its own, a
// leaf.
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
  /// `runtime` is never destroyed: queries may come until the process ends.
  explicit Viewers(Runtime& runtime) : runtime_(runtime) {}

  /// Opens both, once. Without a folder for the socket, viewers cannot connect, and that is all; a
  /// failure of the metrics output is reported.
  void open();
  /// `looked` is called on every query "watch".
  void on_look(std::function<void()> looked);
  void stop();
  /// In the child after fork.
  void abandon();

 private:
  std::string answer(const std::string& word);
  std::string spill_away();

  Runtime& runtime_;
  std::atomic<bool> begun_{false};
  // Never destroyed: their threads may end late.
  std::atomic<ControlSocket*> control_{nullptr};
  std::atomic<MetricsOutput*> metrics_{nullptr};
  RankedMutex<Rank::viewers> mutex_;
  std::vector<std::function<void()>> looked_;
};

}  // namespace firn
