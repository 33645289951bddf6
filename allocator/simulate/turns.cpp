#include "allocator/simulate/turns.h"

#include <algorithm>
#include <utility>

namespace firn::simulate {

namespace {
uint64_t later(uint64_t now, uint64_t ns) { return ns > UINT64_MAX - now ? UINT64_MAX : now + ns; }
}  // namespace

Turns::Turns(Clock& clock) : clock_(clock) { parties_.push_back(std::make_unique<Party>()); }

Turns::~Turns() {
  for (const auto& party : parties_)
    if (party->thread.joinable()) party->thread.join();
}

void Turns::start(std::function<void()> body) {
  const size_t index = parties_.size();
  parties_.push_back(std::make_unique<Party>());
  Party& party = *parties_.back();
  party.seen = happened_ - 1;  // it may run
  party.thread = std::thread([this, &party, index, body = std::move(body)] {
    party.go.acquire();
    body();
    party.over = true;
    hand_to(next_after(index));
  });
}

bool Turns::may_run(const Party& party) const {
  if (party.over) return false;
  return party.ready ? (*party.ready)() : party.seen != happened_;
}

/// One that may run, or the first: it looks again, and lets time pass.
size_t Turns::next_after(size_t index) const {
  for (size_t i = 1; i < parties_.size(); ++i) {
    const size_t next = (index + i) % parties_.size();
    if (may_run(*parties_[next])) return next;
  }
  return parties_[index]->over ? 0 : index;
}

void Turns::hand_to(size_t index) {
  running_ = index;
  parties_[index]->go.release();
}

/// To the next thing that happens, or to the time that a thread waits for.
void Turns::pass_time() {
  uint64_t until = UINT64_MAX;
  for (const auto& party : parties_)
    if (!party->over) until = std::min(until, party->until_ns);
  const uint64_t now = clock_.now_ns();
  clock_.wait(until == UINT64_MAX ? until : until - std::min(until, now));
  ++happened_;
}

/// One that may run has its turn; where there is none, time passes.
void Turns::let_others(size_t mine) {
  const size_t next = next_after(mine);
  if (next == mine) return pass_time();
  hand_to(next);
  parties_[mine]->go.acquire();
}

void Turns::wait(uint64_t ns_max) {
  if (parties_.size() == 1) return clock_.wait(ns_max);
  const size_t mine = running_;
  Party& party = *parties_[mine];
  party.seen = happened_;
  party.until_ns = later(clock_.now_ns(), ns_max);
  while (party.seen == happened_) let_others(mine);
  party.until_ns = UINT64_MAX;
}

void Turns::await(const std::function<bool()>& ready) {
  const size_t mine = running_;
  Party& party = *parties_[mine];
  party.ready = &ready;
  while (!ready()) let_others(mine);
  party.ready = nullptr;
}

void Turns::sleep(uint64_t ns) {
  Party& party = *parties_[running_];
  const uint64_t until = later(clock_.now_ns(), ns);
  party.until_ns = until;
  await([this, until] { return clock_.now_ns() >= until; });
  party.until_ns = UINT64_MAX;
}

bool Turns::alone() const {
  return std::all_of(parties_.begin() + 1, parties_.end(),
                     [](const auto& party) { return party->over; });
}

}  // namespace firn::simulate
