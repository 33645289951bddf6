// Threads of a program under simulation, of which one runs at a time: until it waits. Then those
// go on for which something has happened since they waited, in turn; when there is none, time
// passes. So the same program gives the same figures, whatever the machine beneath does. With one
// thread a wait is the clock's.
// Owns: its threads. Locks: none (a thread hands its turn to the next one).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <semaphore>
#include <thread>
#include <vector>

#include "firn/clock.h"

namespace firn::simulate {

class Turns {
 public:
  /// The thread that makes it is the first.
  explicit Turns(Clock& clock);
  ~Turns();  // the further threads have ended, or end without another wait

  /// A further thread, which begins at a wait of the others.
  void start(std::function<void()> body);
  /// Returns when something has happened, or `ns_max` later; others may have had their turns.
  void wait(uint64_t ns_max);
  /// Returns when `ready` is true, which costs nothing until then. (Only what another thread does,
  /// or time, makes it true.)
  void await(const std::function<bool()>& ready);
  /// Returns `ns` later.
  void sleep(uint64_t ns);
  /// Has each further thread ended?
  bool alone() const;

 private:
  struct Party {
    std::binary_semaphore go{0};
    std::thread thread;
    const std::function<bool()>* ready = nullptr;  // what it waits for; null: for anything
    uint64_t seen = 0;                             // happened_ when it began to wait
    uint64_t until_ns = UINT64_MAX;                // and no longer
    bool over = false;
  };

  bool may_run(const Party& party) const;
  size_t next_after(size_t index) const;
  void hand_to(size_t index);
  void pass_time();
  void let_others(size_t mine);

  Clock& clock_;
  std::vector<std::unique_ptr<Party>> parties_;
  size_t running_ = 0;
  uint64_t happened_ = 0;  // how often time passed
};

}  // namespace firn::simulate
