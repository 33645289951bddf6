#include "tests/simulation/turns.h"

namespace firn::sim {

void Turns::begin(unsigned me) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return current_ == me; });
}

void Turns::pass(std::unique_lock<std::mutex>& lock, unsigned to) {
  const unsigned me = current_;
  current_ = to;
  ++switches_;
  changed_.notify_all();
  if (alive_[me]) changed_.wait(lock, [&] { return current_ == me; });
}

bool Turns::yield() {
  std::unique_lock lock(mutex_);
  const auto to = static_cast<unsigned>(random_.below(alive_.size()));
  if (to == current_ || !alive_[to]) return false;
  pass(lock, to);
  return true;
}

void Turns::end() {
  std::unique_lock lock(mutex_);
  alive_[current_] = false;
  for (unsigned i = 0; i < alive_.size(); ++i)
    if (alive_[i]) return pass(lock, i);
}

}  // namespace firn::sim
