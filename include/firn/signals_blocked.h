// The program's signals are for its own threads: a thread that is started while this lives takes
// none (but those that its own faults raise, which cannot be blocked). Owns: the calling thread's
// mask as it was. Locks: none.
#pragma once

#include <csignal>

namespace firn {

class [[nodiscard]] SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace firn
