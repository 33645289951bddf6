// The socket by which viewers of the same user query this process: `firn top`, `firn stats`,
// `firn spill`. A word and a line's end come in, a document goes out, and the connection ends.
//
// Owns: the socket, its file, one thread that waits for viewers, and one for each connection.
// Locks: one of its own, a leaf. A forked child keeps no socket (firn/descriptor.h).
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "firn/descriptor.h"
#include "firn/ranked_mutex.h"
#include "firn/result.h"

namespace firn {

class ControlSocket {
 public:
  /// Returns the answer to a word; empty: no such word, and the connection just ends.
  using Answer = std::function<std::string(const std::string& word)>;

  /// Opens it in the first usable folder of control_folders(). Removes dead processes' files there.
  static Result<std::unique_ptr<ControlSocket>> open(Answer answer);
  /// Never called while the threads live: stop() leaks the object, as they may end late.
  ~ControlSocket() = default;

  /// Removes the file, ends the sleeping thread, and waits a while for those that answer.
  void stop();
  const std::string& path() const { return path_; }

 private:
  static constexpr size_t callers_most = 8;  // at once; further ones are turned away

  explicit ControlSocket(Answer answer) : answer_(std::move(answer)) {}
  Result<void> listen_in(const std::string& folder);
  void wait_for_callers();
  void serve(size_t caller, int socket);

  const Answer answer_;
  std::string path_;
  Descriptor listening_;
  std::array<Descriptor, callers_most> callers_;  // connected sockets; under mutex_
  std::array<bool, callers_most> serving_{};      // the same
  std::atomic<bool> stopping_{false};
  RankedMutex<Rank::control> mutex_;
  RankedCondition left_;
  unsigned threads_ = 0;
};

}  // namespace firn
