#include "allocator/engine/thrash.h"

#include <algorithm>

namespace firn {

Thrash::Step Thrash::waited(uint64_t begin_ns, uint64_t end_ns, const Totals& totals) {
  if (window_begin_ns_ == 0) {
    window_begin_ns_ = begin_ns;
    window_totals_ = totals;
  }
  // Threads that wait at the same time count once.
  const uint64_t from = std::max(begin_ns, covered_ns_);
  if (end_ns > from) waited_ns_ += end_ns - from;
  covered_ns_ = std::max(covered_ns_, end_ns);
  movable_most_ = std::max(movable_most_, totals.movable_bytes);
  return end_ns < window_begin_ns_ + window_ns ? Step::none : window_over(end_ns, totals);
}

Thrash::Step Thrash::window_over(uint64_t end_ns, const Totals& totals) {
  const auto part = [](uint64_t waited, uint64_t all) {
    return static_cast<double>(waited) / static_cast<double>(all);
  };
  if (!storm_ && part(waited_ns_, end_ns - window_begin_ns_) >= begin_part) {
    storm_ = true;
    storm_begin_ns_ = window_begin_ns_;
    storm_totals_ = window_totals_;
    storm_waited_ns_ = 0;
    movable_most_ = totals.movable_bytes;
    asked_ = false;
  }
  storm_end_ns_ = end_ns;
  storm_waited_ns_ += waited_ns_;
  window_begin_ns_ = end_ns;
  window_totals_ = totals;
  waited_ns_ = 0;
  if (!storm_) return Step::none;
  const uint64_t lasted_ns = end_ns - storm_begin_ns_;
  if (part(storm_waited_ns_, lasted_ns) < last_part) {
    storm_ = false;
    return std::exchange(asking_, false) ? Step::over : Step::none;
  }
  if (thrash_said_) return Step::none;
  if (!asked_ && lasted_ns >= ask_ns) {
    asked_ = asking_ = true;
    asked_arrived_ = totals.arrived_bytes;
    return Step::ask;
  }
  if (asking_ && totals.arrived_bytes - asked_arrived_ >= rounds_least * movable_most_) {
    asking_ = false;
    thrash_said_ = true;
    return Step::thrash;
  }
  // (Room for what is new is waited for once: nothing has come back yet.)
  if (storm_waited_ns_ >= say_ns && totals.faults > storm_totals_.faults &&
      !std::exchange(storm_said_, true))
    return Step::storm;
  return Step::none;
}

Thrash::Stretch Thrash::stretch(const Totals& totals) const {
  Stretch out;
  const uint64_t length = storm_end_ns_ - storm_begin_ns_;
  out.seconds = static_cast<double>(length) / 1e9;
  out.part = length ? static_cast<double>(storm_waited_ns_) / static_cast<double>(length) : 0;
  out.arrived_bytes = totals.arrived_bytes - storm_totals_.arrived_bytes;
  out.faults = totals.faults - storm_totals_.faults;
  out.rounds = movable_most_ ? static_cast<double>(out.arrived_bytes) /
                                   static_cast<double>(movable_most_)
                             : 0;
  return out;
}

void Waiters::add(std::string_view name, std::string_view site, uint64_t times, uint64_t ns,
                  const Waiter& longest) {
  const Name key{name, site};
  if (waiters_.size() >= most && !waiters_.contains(key)) return;
  Waiter& waiter = waiters_[key];
  waiter.times += times;
  waiter.ns += ns;
  if (longest.longest_ns < waiter.longest_ns) return;
  waiter.longest_ns = longest.longest_ns;
  waiter.bytes = longest.bytes;
  waiter.room = longest.room;
  waiter.maker = longest.maker;
}

const std::pair<const Waiters::Name, Waiters::Waiter>* Waiters::first() const {
  const auto at = std::max_element(
      waiters_.begin(), waiters_.end(),
      [](const auto& a, const auto& b) { return a.second.ns < b.second.ns; });
  return at == waiters_.end() ? nullptr : &*at;
}

}  // namespace firn
