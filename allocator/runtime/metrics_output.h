// A job's metrics, where its monitoring reads them: a file that is rewritten again and again, or a
// port of this machine's own that answers like any web server.
//
// Owns: the listening socket, and one thread that sleeps in between. Locks: one of its own, a leaf.
// A forked child keeps neither socket nor thread: the file stays its parent's.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "firn/descriptor.h"
#include "firn/ranked_mutex.h"
#include "firn/result.h"

namespace firn {

class MetricsOutput {
 public:
  /// OpenMetrics text, as of now. Called by the thread, and by stop().
  using Text = std::function<std::string()>;

  /// `where` as Config::metrics has it: a port in digits, else a file. Each of several ranks has
  /// its own: the port plus the rank, or FILE.RANK unless %p makes the names differ. Errors: io
  /// (the port is in use, ...), not_supported (no thread).
  static Result<std::unique_ptr<MetricsOutput>> open(const std::string& where, Text text);
  /// Never called while the thread lives: stop() leaks the object, as it may end late.
  ~MetricsOutput() = default;

  /// Ends the thread. The file is written a last time; the port answers no more.
  void stop();

  /// The answer to what a caller sent, up to the empty line that ends it.
  static std::string answer(std::string_view request, const Text& text);

 private:
  explicit MetricsOutput(Text text) : text_(std::move(text)) {}
  Result<void> listen_at(unsigned port);
  void write_again();
  void write();
  void wait_for_callers();
  void serve(Descriptor& socket);
  void left();

  const Text text_;
  std::string path_;      // empty: a port
  Descriptor listening_;
  std::atomic<bool> stopping_{false};
  bool told_ = false;     // the user knows that the file cannot be written
  RankedMutex<Rank::metrics> mutex_;
  RankedCondition changed_;
  bool ended_ = false;    // the thread has ended; under mutex_
};

}  // namespace firn
